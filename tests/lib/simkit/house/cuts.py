"""Cuts of a house with a lake: taken at any broker, held by a lease, read while the lease lives.

A cut says where the table ends and the log goes on. For as long as its lease is alive, whoever
leads keeps the records of its hot part, and the table's version keeps its cold part; what is read
then is the history up to the cut, each record once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.errors import CorruptDataError, FencedError, UnavailableError
from broker.model.cut import Cut, PartitionCut
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import OffsetRange
from broker.model.stream import Stream
from broker.runtime.api.leases import LEASE_TTL_MS_MIN
from checkkit.readings import PartReading, Reading
from simkit.house.clients import rows_of
from simkit.house.lake import HouseLake
from simkit.house.node import Node
from simkit.network.world import World

_PAUSE_MS: Final = 300


class CutTaker:
    """Takes cuts of one stream, and reads each some time later."""

    def __init__(
        self,
        stream: Stream,
        numbers: Mapping[PartitionId, int],
        world: World,
        nodes: Mapping[str, Node],
        lake: HouseLake,
        *,
        own_version: bool = False,  # read at the version of the cut; else at the newest
    ) -> None:
        self._own_version = own_version
        self._stream, self.numbers = stream, dict(numbers)
        self._world, self._nodes, self._lake = world, nodes, lake
        self.readings: list[Reading] = []
        world.at(200, self._tick)

    def grown(self, stream: Stream) -> None:
        """Take cuts of all partitions from now on, if this is the stream."""
        if stream.uuid == self._stream.uuid:
            self._stream = stream

    def _tick(self) -> None:
        node = self._nodes[self._world.rng.choice(sorted(self._nodes))]
        if node.machine.alive and not node.machine.paused and self._leads_all(node):
            self._take(node)
        self._world.at(self._world.rng.randrange(_PAUSE_MS), self._tick)

    def _leads_all(self, node: Node) -> bool:
        """Tell whether a broker can take a cut by itself, because no call may wait here."""
        found = [node.replica(one) for one in self._ids()]
        return all(
            one is not None and one.replication.newest_committed is not None for one in found
        )

    def _ids(self) -> list[PartitionId]:
        count = self._stream.config.partitions
        return [PartitionId(self._stream.uuid, PartitionNumber(one)) for one in range(count)]

    def _take(self, node: Node) -> None:
        assert node.broker is not None
        began = self._world.steps
        try:
            cut = node.broker.cuts.take(self._stream.name, owner="taker", ttl_ms=LEASE_TTL_MS_MIN)
        except (FencedError, UnavailableError):
            self._world.note("cut refused")
            return
        self._world.note("cut taken")
        delay_ms = self._world.rng.choice((0, 100, 400, LEASE_TTL_MS_MIN * 3 // 4))
        self._world.at(delay_ms, self._read, node, node.machine.process, cut, began)

    def _read(self, node: Node, process: str, cut: Cut, began: int) -> None:
        """Read at the broker that gave the cut, if its process still leads everything."""
        if node.machine.process != process or not self._leads_all(node):
            self._world.note("cut of a broker that leads no more")
            return
        assert cut.lease.expires_us > node.machine.now_us(), "read while the lease lives"
        try:
            parts = [self._part(node, one, cut.table_version) for one in cut.partitions]
        except CorruptDataError:
            self._world.note("cut of a log that cannot be read")
            return
        self.readings.append(Reading.of(f"cut at {process}", began, parts))
        self._world.note("cut read")

    def _part(self, node: Node, part: PartitionCut, version: int | None) -> PartReading:
        partition_id = PartitionId(self._stream.uuid, PartitionNumber(part.partition))
        driver = node.replica(partition_id)
        assert driver is not None, "it leads"
        if driver.reads.log_start > part.cold_end:
            raise AssertionError(
                f"{partition_id} begins at {driver.reads.log_start}, "
                f"a live lease holds {part.cold_end}"
            )
        rows = []
        at = part.cold_end
        while at < part.hot_end:
            batches = driver.reads.read(at, part.hot_end, bytes_max=1 << 20)
            rows += [row for row in rows_of(batches) if part.cold_end <= row.offset < part.hot_end]
            at = batches[-1].header.end_offset
        cold = OffsetRange(part.start, part.cold_end)
        if self._own_version:
            whole = self._lake.whole_start(self._stream, part.partition)
            assert whole <= max(part.start, part.cold_end), "a live lease holds what came later"
        version = version if self._own_version else None  # the newest one is as good
        return PartReading(
            partition=self.numbers[partition_id],
            start=part.start,
            cold_end=part.cold_end,
            hot_end=part.hot_end,
            cold_rows=self._lake.rows(self._stream, part.partition, cold, version=version)
            if len(cold)
            else [],
            hot_rows=rows,
        )
