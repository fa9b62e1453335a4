"""A broker in memory whose cold tier is a real Delta table, behind a real Flight service.

:meth:`LakeBroker.ship` moves records over by the same writer, commit and ledger as tiering's
uploader; what is in the table and held by no lease is gone from memory at once. Readers (Spark, the
command) can be tested against it without the daemon. What it has in common with a real broker that
tiers is in tests/contract/test_tiered_broker.py.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.ids import LeaseId, PartitionId, PartitionNumber
from broker.model.lineage import first_lineage_id
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from broker.model.tiering import TierStatus
from broker.ports.tiering import ColdRows, RetentionStanding
from simkit.brokers.memory_broker import MemoryBroker
from simkit.brokers.memory_partition import MemoryPartition
from simkit.encryption_keys import rotated
from tiering.config import TieringConfig
from tiering.read.lake import Lake
from tiering.read.reader import read_rows
from tiering.read.times import first_reaching
from tiering.ship.key_compaction.compactor import PartitionKeyCompactor
from tiering.ship.segment_writer import SegmentPlace, write_segment
from tiering.ship.table_upkeep import TableUpkeep
from tiering.store.location import StoreConfig
from tiering.store.table_keys import encryption_of
from tiering.table.delta_log import commit_digest
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.expiries import Expiries, ExpiryEntry
from tiering.table.ledger import Ledger, LedgerEntry, encode_ranges
from tiering.table.table import NewFile


class WallClock:
    """The machine's clocks: leases of real clients run out in real time."""

    def now_us(self) -> int:
        """Return UTC microseconds."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000


class LakeBroker(MemoryBroker):
    """A MemoryBroker with a lake."""

    def __init__(self, location: StoreConfig | str) -> None:
        super().__init__(WallClock())  # type: ignore[arg-type]  # only its now_us is used
        self.lake = Lake.open(location, cluster=self.cluster)
        self._cold_ends: dict[tuple[str, int], Offset] = {}
        self._holds: dict[LeaseId, dict[int, Offset]] = {}  # cold ends as they were then

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """Take a lease whose id was never given before."""
        lease = super().take_lease(name, owner=f"{owner}-{uuid.uuid4().hex}", ttl_ms=ttl_ms)
        partitions = range(self.get(name).config.partitions)
        self._holds[lease.lease_id] = {
            number: self._cold_end(name, number) for number in partitions
        }
        return lease

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease, and free the records that only it held."""
        name, _ = self.leases.get(lease_id, ("", 0))
        super().drop_lease(lease_id)
        if name in {stream.name for stream in self.all()}:
            self._free(name)

    def flush(
        self, name: str, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[TierStatus]:
        """Move everything that is committed into the table."""
        for number in range(self.get(name).config.partitions):
            end = self.handle(name, number).high_watermark
            if end > self._cold_end(name, number):
                self.ship(name, number, end)
        return self.status(name)

    def status(self, name: str) -> list[TierStatus]:
        """Return how much of each partition is in the table."""
        return [
            replace(
                status,
                cold=OffsetRange(
                    self.handle(name, status.partition).remote_start,
                    self._cold_end(name, status.partition),
                ),
            )
            for status in super().status(name)
        ]

    def table_start(self, name: str, partition: int) -> Offset | None:
        """Return where the table begins, if it has anything."""
        start = self.handle(name, partition).remote_start
        return start if self._cold_end(name, partition) else None

    def _cold_end(self, name: str, partition: int) -> Offset:
        return self._cold_ends.get((self.get(name).uuid, partition), Offset(0))

    def _free(self, name: str) -> None:
        """Forget local records that are in the table, and that no living lease holds."""
        held = [self._holds[one.lease_id] for one in self.live_leases(name)]
        for number in range(self.get(name).config.partitions):
            floor = min(
                [self._cold_end(name, number), *(hold.get(number, Offset(0)) for hold in held)]
            )
            handle = self.handle(name, number)
            handle.log_start = max(handle.log_start, floor)

    def table(self, name: str) -> DeltaStreamTable:
        """Return a stream's table."""
        return self.lake.table(self.get(name))

    def ship(self, name: str, partition: int, end: Offset, *, files: int = 1) -> None:
        """Move ``[log_start, end)`` into the table, in one commit of that many files."""
        handle = self.handle(name, partition)
        table = self.table(name)
        snapshot = table.create()
        start = snapshot.cold_end(partition)
        bounds = [start + (end - start) * piece // files for piece in range(files + 1)]
        written = [
            self._stored(table, name, handle, OffsetRange(Offset(low), Offset(high)))
            for low, high in itertools.pairwise(bounds)
        ]
        entries = [entry for _, entry in written]
        version = table.commit(
            snapshot,
            [file for file, _ in written],
            {partition: OffsetRange(start, end)},
            commit_id=uuid.uuid4().hex,
            ranges_json=encode_ranges(entries),
        )
        for entry in entries:
            Ledger(table.store).put(entry.at_version(version))
        self._cold_ends[self.get(name).uuid, partition] = end
        self._free(name)

    def expire(self, name: str, partition: int, end: Offset) -> None:
        """Let the first files of a partition expire, up to ``end``, which is the border of two."""
        handle, table = self.handle(name, partition), self.table(name)
        snapshot = table.snapshot()
        files = [one for one in snapshot.files if one.partition == partition]
        gone = [one for one in files if one.end_offset is not None and one.end_offset <= end]
        entry = ExpiryEntry(
            partition=partition,
            start=snapshot.range_of(partition).start,
            end=end,
            cold_end=snapshot.cold_end(partition),
            paths=tuple(one.path for one in gone),
            size_bytes=sum(one.size_bytes for one in gone),
            expired_us=self.clock.now_us(),
            lineage_id=first_lineage_id(self.get(name).uuid, partition),
            commit_id=uuid.uuid4().hex,
        )
        version = table.expire(snapshot, gone, entry)
        Expiries(table.store).put(entry.at_version(version))
        handle.remote_start = end
        self._free(name)

    def compact_keys(
        self, name: str, partition: int, end: Offset, *, key_snapshot_end: Offset | None = None
    ) -> None:
        """Let superseded records leave a partition's table, of what is below ``end`` at most.

        Tombstones of earlier compactions go, too, as far as the key snapshot covers them.
        """
        handle, table = self.handle(name, partition), self.table(name)
        stream = self.get(name)
        config = replace(
            stream.config, history="compact", tombstone_delay_ms=0, compact_dirty_percent=1
        )
        standing = RetentionStanding(
            config=config,
            cold_end=self._cold_end(name, partition),
            remote_start=handle.remote_start,
            limit=end,
        )
        source = SimpleNamespace(
            partition_id=handle.partition_id,
            stream=stream,
            cold_end=self._cold_end(name, partition),
            lineage=(),
        )
        upkeep = TableUpkeep(
            source=cast("Any", source),
            table=table,
            starts=cast("Any", SimpleNamespace(standing=lambda _: standing)),
            clock=self.clock,
            config=TieringConfig(object_bytes_max=200),
            observer=lambda _event, _facts: None,
            loaded=lambda _: None,
        )
        compactor = PartitionKeyCompactor(upkeep, key_snapshot_end=lambda: key_snapshot_end)
        if compactor.begin_if_due(table.find()):
            while compactor.take_turn():
                pass
        assert compactor.counters.failures_total == 0, "a key compaction failed"

    def take(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """Take a cut: lease, table version, high watermarks."""
        lease: Lease = self.take_lease(name, owner=owner, ttl_ms=ttl_ms)
        stream = self.get(name)
        least = {
            number: int(self._cold_end(name, number)) for number in range(stream.config.partitions)
        }
        snapshot = self.table(name).find(cold_end_min=least)
        partitions = []
        for number in range(stream.config.partitions):
            handle = self.handle(name, number)
            cold = OffsetRange(Offset(0), Offset(0))
            partitions.append(
                PartitionCut(
                    partition=number,
                    start=(snapshot.range_of(number) if snapshot else cold).start,
                    cold_end=(snapshot.range_of(number) if snapshot else cold).end,
                    hot_end=handle.high_watermark,
                    leader_epoch=handle.leader_epoch,
                    lineage_id=first_lineage_id(stream.uuid, number),
                )
            )
        return Cut(
            cluster=self.cluster,
            stream=name,
            stream_uuid=stream.uuid,
            subject=stream.config.subject,
            table_uri=self.lake.table_uri(stream),
            table_version=None if snapshot is None else snapshot.version,
            partitions=tuple(partitions),
            taken_us=self.clock.now_us(),
            lease=lease,
            keys_from=stream.keys_from,
            table_digest=None
            if snapshot is None
            else commit_digest(self.table(name).store, snapshot.version),
        )

    def rotate_key(self, name: str, version: int) -> Stream:
        """Give a stream with an encrypted table another data key."""
        self._streams[name] = rotated(self.get(name), self.keys, version)
        return self._streams[name]

    def read(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> ColdRows:
        """Return rows from the table's newest version."""
        table, wanted = self.table(name), OffsetRange(start, end)
        snapshot = table.snapshot()
        rows = read_rows(snapshot, table.store, partition, wanted, schema, sparse=True)
        return ColdRows(rows, snapshot.whole_start(partition))

    def offset_at(
        self, name: str, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """Ask the table's newest version, by its statistics."""
        table = self.table(name)
        wanted = OffsetRange(start, end)
        return first_reaching(table.snapshot(), table.store, partition, wanted, timestamp_us)

    def _stored(
        self, table: DeltaStreamTable, name: str, handle: MemoryPartition, wanted: OffsetRange
    ) -> tuple[NewFile, LedgerEntry]:
        stream = self.get(name)
        number = handle.partition_id.number
        path = f"partition={number}/{wanted.start:020}-{uuid.uuid4().hex}.parquet"
        place = SegmentPlace(
            cluster=self.cluster,
            partition=PartitionId(stream.uuid, PartitionNumber(number)),
            subject=handle.subject,
            path=path,
            encryption=encryption_of(stream, table.store.config),
        )
        segment = write_segment(
            handle.read(wanted.start, wanted.end, bytes_max=1 << 62), wanted, place
        )
        table.store.put_if_absent(path, segment.body, crc32c=segment.entry.crc32c)
        file = NewFile(
            path=path,
            size_bytes=segment.entry.size_bytes,
            partition=number,
            modified_us=self.clock.now_us(),
            stats_json=segment.stats_json,
        )
        return file, segment.entry


@dataclass(frozen=True)
class Served:
    """A broker and the address that it serves."""

    broker: LakeBroker
    server: str


@contextmanager
def serving(location: StoreConfig | str) -> Iterator[Served]:
    """Serve a LakeBroker on a free port of the loopback while the block runs."""
    broker = LakeBroker(location)
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0))
    service.start()
    try:
        yield Served(broker, f"grpc://127.0.0.1:{service.port}")
    finally:
        service.close()
        broker.close()
