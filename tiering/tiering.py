"""Tiering as the broker sees it: implements the RemoteLog port over one lake.

The daemon creates one ``Tiering``, starts it after the logs are open and stops it before the logs
close. Everything here may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    ForeignHistoryError,
    OffsetOutOfRangeError,
    RemoteTierUnavailableError,
    TableMismatchError,
)
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.purge import expired_error
from broker.model.stream import Stream
from broker.model.tiering import TableState, TierStatus
from broker.ports.pumps import Drive
from broker.ports.system import Clock
from broker.ports.tiering import ColdRows, TierCatalog, TierSource
from tiering.config import Observer, TieringConfig
from tiering.keys.snapshot import latest_table
from tiering.proof.history import ProvedEnds, newest_range, require_ours
from tiering.proof.proofs import prove
from tiering.purge.owner import TableOwner, reserve
from tiering.read.certify import prove_partition, require_sound
from tiering.read.lake import Lake
from tiering.read.reader import read_rows
from tiering.read.times import first_reaching
from tiering.ship.claimant import Claimant
from tiering.ship.shipper import PartitionShipper
from tiering.ship.uploader import Uploader
from tiering.store.table_keys import keys_at
from tiering.table.delta_log import commit_digest
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.table import TableSnapshot, recreated_table_name, table_path


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """Counters of one partition since the process began."""

    stream: str
    partition: int
    shipped_segments_total: int
    shipped_bytes_total: int
    failures_total: int
    conflicts_total: int
    expired_records_total: int
    expired_bytes_total: int
    deleted_objects_total: int
    key_compactions_total: int
    key_compaction_failures_total: int
    superseded_records_total: int  # that key compaction removed
    superseded_bytes_total: int
    last_shipped_us: int  # 0: nothing shipped yet
    last_key_compaction_us: int  # 0: none yet


def ignore_events(event: str, facts: Mapping[str, object]) -> None:
    """Ignore an event; the daemon passes an observer that logs it."""


def known_to_fence() -> None:
    """Do nothing: the maker of the lake has already probed its store."""


class Tiering:
    """Implements ``broker.ports.tiering.RemoteLog``."""

    def __init__(
        self,
        lake: Lake,
        catalog: TierCatalog,
        clock: Clock,
        config: TieringConfig | None = None,
        *,
        observer: Observer = ignore_events,
        drive: Drive | None = None,
        fence: Callable[[], None] = known_to_fence,
    ) -> None:
        """Connect the lake with the broker; makes no request. ``observer`` gets every event.

        Without a ``drive`` the work is done by threads of its own. ``fence`` is called before
        anything is written, and raises while it is not known that the store fences its writers.
        """
        self._fence = fence
        self._observer = observer
        self._config = config if config is not None else TieringConfig()
        self._lake = lake.with_deadline(self._config.upload_timeout_ms / 1000)
        self._catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[str, DeltaStreamTable] = {}
        self._proved_by_log = ProvedEnds()  # shippers compared these ends with the local log
        self._proved_by_lineage = ProvedEnds()  # readers compared these with the metadata's lineage
        self._claimant = Claimant(
            self._table_to_claim,
            cluster=lake.cluster,
            clock=clock,
            config=self._config,
            observer=observer,
            source_of=catalog.source,
            is_replaced=self._is_replaced,
            drive=drive,
        )
        catalog.on_leading(self._claimant.begin)
        self._uploader = Uploader(
            catalog,
            self._shipper,
            clock=clock,
            config=self._config,
            observer=observer,
            on_scan=self._claimant.ensure,
            drive=drive,
        )

    def start(self) -> None:
        """Start the threads that ship."""
        self._uploader.start()

    def stop(self) -> None:
        """Stop shipping; blocks until the workers are done, or ``stop_timeout_ms`` is over.

        The next start continues the interrupted work, or does it again.
        """
        self._uploader.stop()
        self._claimant.stop()
        with self._lock:
            self._tables.clear()

    def await_claims(self, timeout_ms: int) -> None:
        """Wait until each partition that this broker leads is claimed, or its claim lost. Blocks.

        Waits ``timeout_ms`` at most.
        """
        self._claimant.wait_settled(timeout_ms)

    def unreachable(self) -> RemoteTierUnavailableError | None:
        """Return the error if the store did not answer the last work on some partition."""
        return self._uploader.unreachable()

    def stats(self) -> list[TierStats]:
        """Return the counters of every partition tiered here."""
        return [
            TierStats(
                stream=stream.name,
                partition=int(shipper.source.partition_id.number),
                shipped_segments_total=shipper.counters.segments_total,
                shipped_bytes_total=shipper.counters.bytes_total,
                failures_total=shipper.counters.failures_total,
                conflicts_total=shipper.counters.conflicts_total,
                expired_records_total=shipper.expired.records_total,
                expired_bytes_total=shipper.expired.bytes_total,
                deleted_objects_total=shipper.expired.deleted_total,
                key_compactions_total=shipper.compacted.passes_total,
                key_compaction_failures_total=shipper.compacted.failures_total,
                superseded_records_total=shipper.compacted.records_total,
                superseded_bytes_total=shipper.compacted.bytes_total,
                last_shipped_us=shipper.counters.last_shipped_us,
                last_key_compaction_us=shipper.compacted.last_us,
            )
            for stream, shipper in self._uploader.shippers()
        ]

    # ------------------------------------------------------------------------------ RemoteLog

    def table_state(self, stream: Stream) -> TableState:
        """Load the newest table version; see the port."""
        table = self._table(stream)
        least = {
            int(source.partition_id.number): int(source.cold_end)
            for source in self._catalog.sources(stream)
        }
        snapshot = table.find(cold_end_min=least)
        if snapshot is not None:
            self._require_ours(stream, table, snapshot, snapshot.ranges)
            prove(snapshot, table.store)
        else:
            empty = OffsetRange(Offset(0), Offset(0))
            return TableState(
                table_uri=table.uri,
                version=None,
                ranges=dict.fromkeys(range(stream.config.partitions), empty),
                files_count=0,
                files_bytes=0,
            )
        return TableState(
            table_uri=snapshot.uri,
            version=snapshot.version,
            ranges=snapshot.ranges,
            files_count=len(snapshot.files),
            files_bytes=snapshot.files_bytes,
            digest=commit_digest(table.store, snapshot.version),
        )

    def read(
        self,
        stream: Stream,
        partition: int,
        start: Offset,
        end: Offset,
        schema: pa.Schema = ROW_SCHEMA,
    ) -> ColdRows:
        """Return rows in offset order from the newest table version; see the port."""
        table, snapshot, wanted = self._proved_range(stream, partition, start, end)
        rows = read_rows(snapshot, table.store, partition, wanted, schema, sparse=True)
        return ColdRows(rows, snapshot.whole_start(partition))

    def offset_at(
        self, stream: Stream, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """Return the first offset of a range that reaches a time; see the port.

        Files are skipped by their statistics, so these are proved to cover the partition.
        """
        table, snapshot, wanted = self._proved_range(stream, partition, start, end)
        prove_partition(snapshot, partition, table.store)
        return first_reaching(snapshot, table.store, partition, wanted, timestamp_us)

    def _proved_range(
        self, stream: Stream, partition: int, start: Offset, end: Offset
    ) -> tuple[DeltaStreamTable, TableSnapshot, OffsetRange]:
        """Return the newest version, whose commits, and objects of the range, are proved."""
        table = self._table(stream)
        snapshot = table.find()
        if snapshot is None:
            raise OffsetOutOfRangeError(
                f"stream {stream.name!r} has no records in its table yet",
                offset=int(start),
                start=0,
                end=0,
            )
        if partition in snapshot.ranges:
            self._require_ours(stream, table, snapshot, [partition])
            held = snapshot.ranges[partition]
            if start < held.start:
                name = f"{stream.name}/{partition}"
                raise expired_error(name, start, start=held.start, end=held.end)
        wanted = OffsetRange(start, end)
        require_sound(snapshot, table.store, partition, wanted)
        return table, snapshot, wanted

    def flush(
        self, stream: Stream, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[TierStatus]:
        """Ship every committed record and wait until it is in the table; see the port."""
        self._uploader.flush(stream, timeout_ms=timeout_ms, is_wanted=is_wanted)
        return self.status(stream)

    def status(self, stream: Stream) -> list[TierStatus]:
        """Return how far each partition is shipped; answers from memory."""
        return [self._status(source) for source in self._catalog.sources(stream)]

    def table_name_for(self, name: str, uuid: str, namespace: str) -> str:
        """Reserve the table folder of a new stream; see the port."""
        lake = self._lake
        owner = TableOwner(stream_uuid=StreamUuid(uuid), stream=name)
        folders = (name, recreated_table_name(name, uuid))
        for folder in folders:
            if reserve(lake.store.under(table_path(namespace, folder)), owner):
                return folder
        raise TableMismatchError(
            f"the folders {' and '.join(folders)} in {lake.uri}/{namespace} are of other streams: "
            f"create {name!r} again, or under another name",
            uri=lake.uri,
        )

    def is_shipping(self, stream_uuid: StreamUuid) -> bool:
        """Tell whether this broker may be writing to a stream's table; see the port."""
        return self._uploader.is_shipping(stream_uuid) or self._claimant.is_claiming(stream_uuid)

    # ------------------------------------------------------------------------------ inside

    def _require_ours(
        self,
        stream: Stream,
        table: DeltaStreamTable,
        snapshot: TableSnapshot,
        partitions: Iterable[int],
    ) -> None:
        """Refuse a table of another history; a cold end that was proved before costs nothing.

        Ranges that this broker did not ship itself are compared with the metadata's lineage. The
        local lineage may be old: a new leader's first commit may be visible before this broker
        knows of its leadership. So a failed comparison is tried once more with a fresh lineage.
        """
        for number in partitions:
            partition = PartitionId(stream.uuid, PartitionNumber(number))
            cold_end = snapshot.cold_end(number)
            proofs = (self._proved_by_lineage, self._proved_by_log)
            if any(one.covers(partition, cold_end) for one in proofs):
                continue
            newest = newest_range(table, snapshot, number)
            lineage, recorded = self._catalog.history(partition, refreshed=False)
            try:
                require_ours(snapshot, number, newest, lineage=lineage, recorded=recorded)
            except ForeignHistoryError:
                lineage, recorded = self._catalog.history(partition, refreshed=True)
                require_ours(snapshot, number, newest, lineage=lineage, recorded=recorded)
            self._proved_by_lineage.prove(partition, cold_end)

    def _status(self, source: TierSource) -> TierStatus:
        found = self._uploader.task_of(source.partition_id)
        cold_end, number = source.cold_end, source.partition_id.number
        start, error, last_us, table_bytes, gone = Offset(0), None, None, None, None
        if found is not None:
            shipper, failure = found
            snapshot = shipper.snapshot
            if snapshot is not None:
                start = min(snapshot.range_of(number).start, cold_end)
                start = max(start, source.reads.remote_start)
                table_bytes = sum(
                    file.size_bytes for file in snapshot.files if file.partition == number
                )
                gone = snapshot.gone_count(number)
            failure = self._claimant.error_of(source.partition_id) or failure
            error = None if failure is None else f"{type(failure).__name__}: {failure}"
            last_us = shipper.counters.last_shipped_us or None
        return TierStatus(
            partition=int(number),
            cold=OffsetRange(start, cold_end),
            local_start=source.reads.log_start,
            high_watermark=source.reads.high_watermark,
            unshipped_bytes=sum(
                segment.size_bytes for segment in source.segments() if segment.end_offset > cold_end
            ),
            last_error=error,
            last_shipped_us=last_us,
            table_bytes=table_bytes if cold_end else 0,
            gone_count=gone if cold_end else 0,
        )

    def _is_replaced(self, partition: PartitionId, lineage_id: str) -> bool:
        """Ask for fresh metadata; tell whether it has a later leadership than this one."""
        lineage, _ = self._catalog.history(partition, refreshed=True)
        return any(one.lineage_id == lineage_id for one in lineage[:-1])

    def _shipper(self, stream: Stream, source: TierSource) -> PartitionShipper:
        return PartitionShipper(
            cluster=self._lake.cluster,
            source=source,
            table=self._table(stream),
            clock=self._clock,
            config=self._config,
            proved=self._proved_by_log,
            claimant=self._claimant,
            fence=self._fence,
            starts=self._catalog.remote_starts,
            key_snapshot_end=lambda: self._key_snapshot_end(stream, source),
            observer=self._observer,
        )

    def _key_snapshot_end(self, stream: Stream, source: TierSource) -> Offset | None:
        found = latest_table(self._lake, stream).find()
        return None if found is None else found.cold_end(source.partition_id.number)

    def _table_to_claim(self, stream: Stream) -> DeltaStreamTable:
        self._fence()
        return self._table(stream)

    def _table(self, stream: Stream) -> DeltaStreamTable:
        keys = keys_at(self._lake.config)
        if keys is not None:
            # They may be wrapped anew since the files were written.
            keys.learn(stream.uuid, stream.data_keys)
        with self._lock:
            table = self._tables.get(stream.uuid)
            if table is None:
                recorded = partial(self._catalog.cold_ends, stream.uuid)
                table = self._tables[stream.uuid] = self._lake.table(stream, recorded=recorded)
            return table
