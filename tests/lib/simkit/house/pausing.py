"""An operator who pauses streams, resumes them, and makes them read-only, while they are in use.

It asks the product's ``Pauses`` of some broker, under all the faults of the life, with draws of its
own: a life without it is not another one. Streams pause by themselves now and then, too. While a
leader obeys a pause, its log does not grow. In the end everything is resumed and written to again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.runtime.partition.driver import PartitionDriver

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

_AUTO_PAUSES_MS: Final = (100, 300, None)
_AGAIN_MS: Final = 100

# Process, leader epoch, partition epoch and log end of a leader that obeys a pause.
_Still = tuple[str, int, int, int]


class Pausing:
    """Acts on one house. ``counts`` has what became of it, by name of the deed or of its error."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._rng = random.Random(f"pausing {seed}")
        self._still: dict[PartitionId, _Still] = {}
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Act from time to time, while there is trouble."""
        self._house.world.at(self._rng.choice((40, 100, 250)), self._act)

    def end(self) -> None:
        """Once every replica has heard of the pauses, resume everything, at any broker."""
        if self.is_done():
            return
        for name in self._nodes() if self._is_heard() else ():
            node = self._house.nodes[name]
            node.machine.run(node.machine.life, self._try, node, partial(self._free, node))
        self._house.world.at(_AGAIN_MS, self.end)

    def is_done(self) -> bool:
        """Tell whether every partition takes records again, and every replica knows it."""
        streams = self._house.house.state.streams.values()
        rows = map(self._house.row, self._house.partitions)
        taking = not any(row.paused or row.readonly for row in rows)
        calm = all(one.config.auto_pause_ms is None for one in streams)
        return taking and calm and self._is_heard()

    def _is_heard(self) -> bool:
        house = self._house
        for partition_id in house.partitions:
            row = house.row(partition_id)
            for name in row.replicas:
                driver = house.nodes[name].replica(partition_id)
                if driver is not None and (row.paused, row.readonly) != _stops_of(driver):
                    return False
        return True

    def look(self) -> None:
        """Check that no leader that obeys a pause has written since."""
        for partition_id in self._house.partitions:
            now = self._stopped(partition_id)
            before = self._still.get(partition_id)
            if now is None:
                self._still.pop(partition_id, None)
                continue
            if before is not None and before[:3] == now[:3]:
                assert before == now, f"{partition_id} at {now[0]} was written to while it is not"
                continue
            self.counts["stopped"] += 1
            self._still[partition_id] = now

    # ------------------------------------------------------------------ inside

    def _stopped(self, partition_id: PartitionId) -> _Still | None:
        for name in self._nodes():
            node = self._house.nodes[name]
            driver = node.replica(partition_id)
            if driver is not None and driver.leads and any(_stops_of(driver)):
                view = driver.replication.view
                assert view is not None, "its view stops it"
                epochs = int(driver.reads.leader_epoch), view.partition_epoch
                return (node.machine.process, *epochs, int(driver.reads.log_end))
        return None

    def _nodes(self) -> list[str]:
        return sorted(self._house.nodes)

    def _act(self) -> None:
        if not self._house.faults.is_trouble:
            return
        node = self._house.nodes[self._rng.choice(self._nodes())]
        node.machine.run(node.machine.life, self._try, node, partial(self._deed, node))
        self.begin()

    def _try(self, node: Node, deed: Callable[[], str]) -> None:
        if not node.is_open or node.broker is None:
            return
        try:
            self.counts[deed()] += 1
        except HeadwaterError as error:
            self.counts[type(error).__name__] += 1

    def _deed(self, node: Node) -> str:
        assert node.broker is not None
        rng, pauses = self._rng, node.broker.pauses
        stream = rng.choice(self._house.streams)
        some = () if rng.random() < 0.5 else (rng.randrange(stream.config.partitions),)
        match rng.choice(("pause", "resume", "resume", "readonly", "writable", "auto")):
            case "pause":
                pauses.pause(stream.name, some, resume_all=rng.random() < 0.3)
                return "paused"
            case "resume":
                pauses.resume(stream.name, some)
                return "resumed"
            case "readonly":
                pauses.set_readonly(stream.name, some)
                return "readonly"
            case "writable":
                pauses.set_readonly(stream.name, some, readonly=False)
                return "writable"
            case _:
                node.broker.streams.alter(
                    stream.name, {"auto_pause_ms": rng.choice(_AUTO_PAUSES_MS)}
                )
                return "auto"

    def _free(self, node: Node) -> str:
        assert node.broker is not None
        for stream in self._house.streams:
            node.broker.streams.alter(stream.name, {"auto_pause_ms": None})
            node.broker.pauses.set_readonly(stream.name, readonly=False)
            node.broker.pauses.resume(stream.name)
        return "freed"


def _stops_of(driver: PartitionDriver) -> tuple[bool, bool]:
    """Return whether a replica believes that its partition is paused, and that it is read-only."""
    return driver.is_paused, driver.is_readonly
