"""Reads a stream's whole history without Spark, through Arrow: the table, then the broker's tail.

    rows of a cut = Delta table at version v, [start, C)  ∪  log [C, H)

The counts and bounds in the table's log are checked before the first row is returned. In both
tiers, rows are checked to be contiguous while they are read. A read that cannot be exact raises an
error; a read never ends early without an error. Records that key compaction has removed are absent,
and the certificate counts them. The caller must renew the lease of the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import SchemaMismatchError, UnknownLeaseError
from broker.model.certificate import Certificate, Hole, PartitionCertificate
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import Offset, OffsetRange
from headwater.client import Client
from headwater.client.reader import reader_of
from headwater.reads.table_access import table_location
from headwater.reads.tail import joined_holes, served_batches
from tiering.read.certify import certify_counts, compacted_hole
from tiering.read.lake import kept_table, table_in
from tiering.read.reader import read_rows
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.table.table import Table, TableSnapshot

_RENEWED_MS: Final = 1_000  # the shortest; a renewal never makes a lease shorter


class RowsBelow(Protocol):
    """What a caller takes for the first rows of each partition, in place of all of them."""

    def end(self, partition: int) -> Offset:
        """Return the first offset that is read as ever; not below the cut's start."""

    def batches(self, part: PartitionCut, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield what stands for the rows of a partition below :meth:`end`."""


class History:
    """One exact read of one cut. Single use, single thread; blocks on the network.

    The constructor checks counts and bounds of the cold part. ``store`` is that of the cut's table,
    if the caller has opened it (tiering.table.log_copy); ``reader`` is the principal that reads, if
    the broker has told it.

    Raises:
        CorruptDataError: the table differs from the cut, or is damaged; a subclass says how.
        RemoteTierUnavailableError: the lake does not answer.
    """

    def __init__(
        self,
        client: Client,
        cut: Cut,
        *,
        store: ObjectStore | None = None,
        reader: str | None = None,
    ) -> None:
        self._client = client
        self.cut = cut
        self._reader = reader_of(client) if reader is None else reader
        self._table, self._snapshot = _open_table(client, cut, store)
        self._cold: list[PartitionCertificate] = []
        self._files_count = self._files_bytes = 0
        if self._table is not None:
            self._cold, self._files_count, self._files_bytes = certify_counts(
                self._snapshot, cut, self._table.store, sparse=True
            )
        self._cold_counts = dict.fromkeys(range(len(cut.partitions)), 0)  # rows that were read
        self._hot_counts = dict.fromkeys(range(len(cut.partitions)), 0)
        self._holes: dict[int, list[Hole]] = {}  # that key compaction left, of each partition
        self.complete = False  # True after the last row was returned

    def batches(
        self, columns: Sequence[str] | None = None, *, below: RowsBelow | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows, partition by partition, in offset order.

        Args:
            columns: Names of ROW_SCHEMA in the order of the result; None means all.
            below: Stands for the first rows of each partition; these are then not read.

        Raises:
            SchemaMismatchError: a column is not one of ROW_SCHEMA, or occurs twice.
            GapError, OverlapError: offsets are missing, or occur twice.
            HeadwaterError: the errors of either tier.
        """
        schema = _projection(columns)
        for part in self.cut.partitions:
            start = part.start
            if below is not None:
                start = below.end(part.partition)
                yield from below.batches(part, schema.names)
            yield from self._cold_batches(part, start, schema)
            yield from self._hot_batches(part, start, schema)
        self.complete = True

    def again(self) -> History:
        """Return another read of the same cut; the table is checked again."""
        return History(self._client, self.cut, reader=self._reader)

    @property
    def is_thinned(self) -> bool:
        """Whether key compaction had removed records of those that were read from the log."""
        return any(self._holes.values())

    def location(self) -> StoreConfig:
        """Return where the cut's table is, with credentials to read it. May block."""
        return table_location(self._client, self.cut)

    def whole_start(self, partition: int) -> Offset:
        """Return the first offset from which the table has each record of a partition."""
        return Offset(0) if self._snapshot is None else self._snapshot.whole_start(partition)

    def lease_lives(self) -> bool:
        """Ask whether the cut's lease has not ended; then it has held since the cut was taken."""
        try:
            self._client.renew_lease(self.cut.lease.lease_id, ttl_ms=_RENEWED_MS)
        except UnknownLeaseError:
            return False
        return True

    def certificate(self) -> Certificate:
        """Return the certificate of this read; only after :meth:`batches` has ended."""
        assert self.complete, "nothing is proved before the last row"
        cold = {part.partition: part for part in self._cold}
        partitions = tuple(
            _certificate(
                part,
                self._cold_certificate(part, cold.get(part.partition)),
                self._hot_counts[part.partition],
                joined_holes(self._holes.get(part.partition, [])),
            )
            for part in self.cut.partitions
        )
        return Certificate(
            stream=self.cut.stream,
            stream_uuid=self.cut.stream_uuid,
            table_version=self.cut.table_version,
            form="counts",
            partitions=partitions,
            files_count=self._files_count,
            files_bytes=self._files_bytes,
            reader=self._reader,
        )

    def _cold_certificate(
        self, part: PartitionCut, proved: PartitionCertificate | None
    ) -> PartitionCertificate:
        """Return the proof of what the cut has of the table, narrowed as the cut is."""
        if proved is None or self._snapshot is None:
            return part.empty_proof
        whole, number = self._snapshot.whole_start(part.partition), part.partition
        if part.cold_stop >= whole:
            count = self._snapshot.records_count(number) - (part.cold_end - part.cold_stop)
            return replace(proved, cold_count=count)
        count = self._cold_counts[number]
        left = compacted_hole(self._snapshot, number, part.cold_stop, count)
        holes = part.holes if left is None else (*part.holes, left)
        return replace(proved, cold_count=count, holes=holes)

    def _cold_batches(
        self, part: PartitionCut, start: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        if part.cold_stop <= start:
            return
        assert self._table is not None, "a cold range has a table"
        assert self._snapshot is not None, "a table was opened at the cut's version"
        wanted = OffsetRange(start, part.cold_stop)
        if self._snapshot.is_encrypted and not self._table.store.config.key_provider:
            # This process lacks the keys of the encrypted table, so the broker serves the rows.
            names = schema.names
            yield from served_batches(self._client, self.cut, part.partition, wanted, names)
            return
        for batch in read_rows(
            self._snapshot, self._table.store, part.partition, wanted, schema, sparse=True
        ):
            self._cold_counts[part.partition] += batch.num_rows
            yield batch

    def _hot_batches(
        self, part: PartitionCut, start: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        wanted = OffsetRange(max(part.cold_end, start), part.hot_stop)
        # The records below `start` were counted by who made the rows that stand for them.
        self._hot_counts[part.partition] = wanted.start - part.cold_end
        holes = self._holes[part.partition] = []
        for batch in served_batches(
            self._client, self.cut, part.partition, wanted, schema.names, holes.append
        ):
            self._hot_counts[part.partition] += batch.num_rows
            yield batch


def _open_table(
    client: Client, cut: Cut, store: ObjectStore | None
) -> tuple[Table | None, TableSnapshot | None]:
    if cut.table_version is None:
        return None, None
    table = kept_table(table_location(client, cut)) if store is None else table_in(store)
    return table, table.snapshot(cut.table_version)


def _projection(columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return ROW_SCHEMA
    wrong = _wrong_columns(columns)
    if wrong is not None:
        raise SchemaMismatchError(
            f"columns must be some of {', '.join(ROW_SCHEMA.names)}, each once; {wrong}",
            columns=ROW_SCHEMA.names,
        )
    return pa.schema([ROW_SCHEMA.field(name) for name in columns])


def _wrong_columns(columns: Sequence[str]) -> str | None:
    """Return what is wrong with the names, if anything is."""
    if not columns:
        return "no column was named"
    unknown = [name for name in columns if name not in ROW_SCHEMA.names]
    if unknown:
        return f"not {', '.join(map(str, unknown))}"
    twice = [name for name in columns if columns.count(name) > 1]
    return f"{twice[0]} is named twice" if twice else None


def _certificate(
    part: PartitionCut,
    cold: PartitionCertificate,
    hot_count: int,
    holes: tuple[Hole, ...],
) -> PartitionCertificate:
    return replace(cold, end=part.end, hot_count=hot_count, holes=(*cold.holes, *holes))
