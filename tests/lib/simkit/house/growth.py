"""An operator who adds partitions to the streams of a house while they are in use.

It asks the product's ``Streams`` of some broker, under all the faults of the life, with draws of
its own: a life without it is not another one. Publishers, readers and takers of cuts come to the
new partitions as soon as the metadata has them; from then on the judge asks the same of these as
of all others. Now and then it takes a lease first: all of what is added later has to be there for
as long as that lease lives.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import HeadwaterError
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.stream import Stream

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

_PARTITIONS_MAX: Final = 6  # of a stream: more would only make a life longer
_FACTORS: Final = (2, 2, 3)
_LEASE_MS: Final = 4_000
_CLOCKS_MS: Final = 1_000  # the clocks of brokers differ by less


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease that was taken when a stream had so many partitions."""

    stream: Stream
    partitions: int
    until_ms: int  # of the world; it lives until then at least


class Growth:
    """Acts on one house. ``counts`` has what became of it, by name of the deed or of its error."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._rng = random.Random(f"growth {seed}")
        self._leases: list[_Lease] = []
        self._looked: object = None
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Act from time to time, while there is trouble."""
        self._house.world.at(self._rng.choice((100, 300, 700)), self._act)

    def _act(self) -> None:
        house, rng = self._house, self._rng
        if not house.faults.is_trouble:
            return
        node = house.nodes[rng.choice(sorted(house.nodes))]
        stream = rng.choice(house.streams)
        node.machine.run(node.machine.life, self._try, node, stream)
        self.begin()

    def _try(self, node: Node, stream: Stream) -> None:
        if not node.is_open or node.broker is None:
            return
        count = stream.config.partitions * self._rng.choice(_FACTORS)
        wrong = self._rng.random() < 0.1
        try:
            if self._rng.random() < 0.3:
                self._hold(node, stream)
            elif wrong or count <= _PARTITIONS_MAX:
                asked = count + stream.config.partitions * wrong + wrong
                node.broker.streams.alter(stream.name, {"partitions": asked})
                self.counts["grown"] += 1
        except HeadwaterError as error:
            self.counts[type(error).__name__] += 1

    def _hold(self, node: Node, stream: Stream) -> None:
        assert node.broker is not None
        began_ms = self._house.world.now_ms
        node.broker.cuts.take_lease(stream.name, owner="growth", ttl_ms=_LEASE_MS)
        known = node.broker.streams.get(stream.name).config.partitions
        until_ms = began_ms + _LEASE_MS - _CLOCKS_MS
        self._leases.append(_Lease(stream, known, until_ms))
        self.counts["held"] += 1

    def look(self) -> None:
        """Let clients come to what the metadata has by now, and look at what leases hold."""
        state = self._house.house.state
        if state.streams is not self._looked:
            self._looked = state.streams
            for number, stream in enumerate(self._house.streams):
                now = state.streams[stream.name]
                if now.config.partitions != stream.config.partitions:
                    self._adopt(number, stream, now)
        self._leases = [one for one in self._leases if one.until_ms > self._house.world.now_ms]
        for lease in self._leases:
            self._look_at(lease)

    def _adopt(self, place: int, before: Stream, now: Stream) -> None:
        assert now.config.partitions % before.config.partitions == 0, "the keys would move about"
        self._house.streams[place] = now
        for taker in self._house.takers:
            taker.grown(now)
        for number in range(before.config.partitions, now.config.partitions):
            self._house.add_partition(PartitionId(now.uuid, PartitionNumber(number)))
        self.counts["adopted"] += 1

    def _look_at(self, lease: _Lease) -> None:
        rows = self._house.house.state.partitions[lease.stream.uuid]
        for number in range(lease.partitions, len(rows)):
            partition_id = PartitionId(lease.stream.uuid, PartitionNumber(number))
            for name in rows[number].replicas:
                driver = self._house.nodes[name].replica(partition_id)
                assert driver is None or driver.reads.log_start == 0, (
                    f"{partition_id} at {name} begins at {driver.reads.log_start}, and a lease "
                    "from before it was added lives"
                )
