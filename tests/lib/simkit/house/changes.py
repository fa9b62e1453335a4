"""An operator who changes and purges the streams of a house while they are in use.

It asks the product's ``Streams`` of some broker, under all the faults of the life, with draws of
its own: a life without it is not another one. What is purged from a stream without a table is kept
here, as the leader had it: the judge reads it before what the replicas still show.

Left out: ``min_isr``. How many disks a life may damage is drawn by it, and the oracle compares
each commit with the newest one, which a leader obeys a moment later.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadwaterError, PurgedError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from checkkit.readings import Row
from simkit.house.clients import rows_of

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

_CHANGES: Final[dict[str, tuple[Any, ...]]] = {
    "segment_bytes_max": (4096, 16_384, 1 << 20),
    "segment_age_ms_max": (200, 600, 600_000),
    "dedup_window_ms": (60_000, 120_000, 300_000),
    "compression": ("none", "lz4", "zstd"),
    "local_retention_bytes": (0, 6_000, 1 << 30),
    "record_bytes_max": (10_000, 1 << 20),
}


class Changes:
    """Acts on one house. ``counts`` has what became of it, by name of the deed or of its error."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._rng = random.Random(f"changes {seed}")
        self._purged: dict[PartitionId, dict[int, Row]] = {}
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Act from time to time, while there is trouble."""
        self._house.world.at(self._rng.choice((30, 80, 200)), self._act)

    def _act(self) -> None:
        house, rng = self._house, self._rng
        if not house.faults.is_trouble:
            return
        name = rng.choice(sorted(house.nodes))
        partition_id = rng.choice(house.partitions)
        purges = rng.random() < 0.6
        if purges and rng.random() < 0.9:
            name = house.row(partition_id).leader or name
        node = house.nodes[name]
        deed = partial(self._purge, node, partition_id) if purges else partial(self._alter, node)
        node.machine.run(node.machine.life, self._try, node, deed)
        self.begin()

    def _try(self, node: Node, deed: Callable[[], str]) -> None:
        if not node.is_open or node.broker is None:
            return
        try:
            self.counts[deed()] += 1
        except HeadwaterError as error:
            self.counts[type(error).__name__] += 1

    def _alter(self, node: Node) -> str:
        assert node.broker is not None
        name = self._rng.choice(self._house.streams).name
        setting = self._rng.choice(sorted(_CHANGES))
        altered = node.broker.streams.alter(name, {setting: self._rng.choice(_CHANGES[setting])})
        return "altered" if altered.changes else "unchanged"

    def _purge(self, node: Node, partition_id: PartitionId) -> str:
        assert node.broker is not None
        stream = next(one for one in self._house.streams if one.uuid == partition_id.stream_uuid)
        driver = node.replica(partition_id)
        end = None if driver is None else driver.replication.newest_committed
        if driver is None or end is None or not driver.leads:
            return "not led here"
        if stream.config.tiering and self._rng.random() < 0.8:
            end = driver.tier.cold_end
        elif self._rng.random() < 0.3:
            end = driver.reads.log_end  # what is not committed is refused
        start = driver.reads.log_start
        before = self._rng.randrange(start, max(start, end) + 1)
        if not stream.config.tiering:
            self._keep(partition_id, driver, Offset(before))
        told = node.broker.streams.purge(
            stream.name, partition_id.number, before=Offset(before), operator="simulated"
        )
        assert driver.reads.log_start >= told.end, "what was purged is still shown"
        return "purged" if told.records_count else "nothing to purge"

    def _keep(self, partition_id: PartitionId, driver: Any, before: Offset) -> None:
        """Note what is to be purged: whether it will be may not be told."""
        kept = self._purged.setdefault(partition_id, {})
        at = driver.reads.log_start
        while at < before:
            batches = driver.reads.read(at, before, bytes_max=1 << 20)
            kept.update({row.offset: row for row in rows_of(batches)})
            at = batches[-1].header.end_offset

    def below(self, partition_id: PartitionId, end: int, *, start: int = 0) -> list[Row]:
        """Return the purged records ``[start, end)`` of a stream without a table."""
        kept = self._purged.get(partition_id, {})
        return [kept[offset] for offset in range(start, end)]

    def instead(self, partition_id: PartitionId, position: int, error: PurgedError) -> list[Row]:
        """Return what a reader at ``position`` has missed: it was told from where on to read."""
        purged_end = self._house.row(partition_id).purged_end
        assert position < error.start <= purged_end, f"{error.start} of {purged_end}"
        self.counts["reader told"] += 1
        return self.below(partition_id, error.start, start=position)

    def look(self) -> None:
        """Look at every replica in the end: none shows what was purged."""
        for partition_id in self._house.partitions:
            row = self._house.row(partition_id)
            for name in row.replicas:
                driver = self._house.nodes[name].replica(partition_id)
                if driver is not None:
                    assert driver.reads.purged_end == row.purged_end, f"{name} has not heard"
                    assert driver.reads.log_start >= row.purged_end
            stream = self._house.house.state.streams
            config = next(one for one in stream.values() if one.uuid == partition_id.stream_uuid)
            for name in row.replicas:
                driver = self._house.nodes[name].replica(partition_id)
                assert driver is None or driver.stream == config, f"{name} obeys older settings"
