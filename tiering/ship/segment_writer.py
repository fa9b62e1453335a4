"""Writes a range of the log as one Parquet object: bytes, statistics, digest. Pure.

Rows keep their order. Row groups have a size that Spark splits well and a reader holds in memory
easily. Only offset and timestamp have statistics: those of keys and values would make footers and
log large. The footer names the rows' cluster, stream, partition and offsets, so that an object that
is found alone can be assigned again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from broker.codec.checksum import crc32c
from broker.codec.digest import RangeDigest
from broker.codec.record_batch import BatchHeader, check_body, decode_body, to_rows
from broker.codec.schema import FILE_SCHEMA
from broker.errors import GapError, ObjectCorruptError, SchemaMismatchError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import StoredBatch
from tiering.ship.compression import codecs
from tiering.store.table_keys import CIPHER, FOOTER_KEY, TableKeys
from tiering.table.ledger import LedgerEntry
from tiering.table.table import FORMAT_VERSION, stated_last_ms

ROW_GROUP_ROWS_MAX: Final = 128 * 1024
ROW_GROUP_BYTES_MAX: Final = 16 * 1024 * 1024  # packing holds several times as much
_RUN_BATCHES_MAX: Final = 4096
_RUN_BYTES_MAX: Final = 2 * 1024 * 1024
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_READ_ROWS_MAX: Final = 64 * 1024
_READ_BYTES_MAX: Final = 4 * 1024 * 1024  # a check holds copies of what it reads

_WRITER_OPTIONS: Final[dict[str, Any]] = {
    # These columns have few distinct values; of record values a dictionary would be useless work.
    "use_dictionary": ["key", "subject", "leader_epoch", "headers.list.element.key"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["offset", "timestamp"],
    "write_page_checksum": True,
    "version": "2.6",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSegment:
    """One object: its bytes until it is stored, its ledger entry and its Delta statistics."""

    body: Any  # bytes-like
    entry: LedgerEntry  # the table version is still unknown
    stats_json: str
    etag: str | None = None  # the store's, once it is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """Which partition's rows an object holds, and under which key it will be stored."""

    cluster: str
    partition: PartitionId
    subject: str  # for rows that carry no subject
    path: str  # key below the table
    encryption: Callable[[], Any] | None = None  # Parquet's properties of one file; None: plaintext


def write_segment(
    batches: Iterable[StoredBatch], wanted: OffsetRange, place: SegmentPlace
) -> WrittenSegment:
    """Write exactly the records of ``wanted`` as one Parquet object.

    CPU-bound; memory holds about one object. ``batches`` are in offset order and may reach beyond
    the range at both ends. Each body's CRC is checked here once more.

    Raises:
        BatchCorruptError: a body fails its checksum.
        GapError: the batches leave out offsets of the range.
    """
    return write_rows(log_rows(batches, wanted, place), wanted, place)


def write_rows(
    rows_in_order: Iterator[pa.RecordBatch], wanted: OffsetRange, place: SegmentPlace
) -> WrittenSegment:
    """Write rows as one Parquet object; they are exactly the rows of ``wanted``, in order."""
    assert len(wanted) > 0, "an object holds at least one record"
    bounds = {
        "headwater.start": str(wanted.start),
        "headwater.end": str(wanted.end),
        "headwater.records_count": str(len(wanted)),
    }
    return _write(rows_in_order, place, bounds, sparse=False)


def write_left(rows_in_order: Iterator[pa.RecordBatch], place: SegmentPlace) -> WrittenSegment:
    """Write rows that key compaction has left, at least one, as one Parquet object.

    The footer names no range, because a reader takes a range to have each of its offsets.
    """
    return _write(rows_in_order, place, {"headwater.key_compaction": "1"}, sparse=True)


def _write(
    rows_in_order: Iterator[pa.RecordBatch],
    place: SegmentPlace,
    bounds: dict[str, str],
    *,
    sparse: bool,
) -> WrittenSegment:
    sink = pa.BufferOutputStream()
    facts = RangeFacts()
    groups = _row_groups(rows_in_order)
    first = next(groups)  # never empty: missing rows raise an error before or in this call
    chosen = codecs(FILE_SCHEMA, ("value",), first)
    encryption = None if place.encryption is None else place.encryption()
    with pq.ParquetWriter(
        sink, FILE_SCHEMA, **_WRITER_OPTIONS, **chosen, encryption_properties=encryption
    ) as writer:
        for group in itertools.chain((first,), groups):
            for rows in group:
                facts.add(rows)
            writer.write_table(pa.Table.from_batches(group, FILE_SCHEMA), ROW_GROUP_ROWS_MAX)
        writer.add_key_value_metadata(_footer(place, bounds, facts))
    body = sink.getvalue()
    entry = facts.entry(
        place.partition.number,
        path=place.path,
        size_bytes=len(body),
        crc32c=crc32c(body),
        sparse=sparse,
    )
    return WrittenSegment(body=body, entry=entry, stats_json=stats_json(entry))


def check_segment(body: Any, entry: LedgerEntry, keys: TableKeys | None = None) -> None:
    """Prove that bytes read back from the store are the object that the entry describes.

    ``keys`` decrypt an object of an encrypted table.

    Raises:
        ObjectCorruptError: size, checksum, rows, bounds or digest differ; says which.
    """
    if len(body) != entry.size_bytes:
        raise _differs(entry, "size", entry.size_bytes, len(body))
    found_crc = crc32c(body)
    if found_crc != entry.crc32c:
        raise _differs(entry, "crc32c", entry.crc32c, found_crc)
    facts = RangeFacts()
    try:
        file = pq.ParquetFile(
            pa.BufferReader(body),
            page_checksum_verification=True,
            decryption_properties=None if keys is None else keys.for_reading(),
        )
        for batch in file.iter_batches(batch_size=_read_rows(file.metadata)):
            facts.add(batch.select(FILE_SCHEMA.names))
    except (pa.ArrowException, OSError, KeyError, SchemaMismatchError) as cause:
        raise ObjectCorruptError(
            f"{entry.path} is not readable Parquet: {cause}", key=entry.path
        ) from cause
    if facts.records_count != entry.records_count:
        raise _differs(entry, "rows", entry.records_count, facts.records_count)
    found, wanted = (facts.first_offset, facts.last_offset + 1), (entry.start, entry.end)
    if found != wanted:
        raise _differs(entry, "offsets", wanted, found)
    if facts.digest != entry.digest:
        raise _differs(entry, "digest", entry.digest, facts.digest)


def stats_json(entry: LedgerEntry) -> str:
    """Return the Delta statistics of the entry's file."""
    return statistics_json(
        entry.records_count,
        offsets=(entry.start, entry.end - 1),
        timestamps_us=(entry.min_timestamp_us, entry.max_timestamp_us),
    )


def statistics_json(
    records_count: int, *, offsets: tuple[int, int], timestamps_us: tuple[int, int]
) -> str:
    """Return a file's Delta statistics: count, and (least, greatest) of offset and timestamp.

    Delta keeps timestamps in milliseconds. The upper bound is rounded up, so that a reader that
    skips files by it never loses a row.
    """
    (low, high), (first_us, last_us) = offsets, timestamps_us
    return json.dumps(
        {
            "numRecords": records_count,
            "minValues": {"offset": low, "timestamp": _iso_ms(first_us // 1000)},
            "maxValues": {"offset": high, "timestamp": _iso_ms(stated_last_ms(last_us))},
            "nullCount": {"offset": 0, "timestamp": 0},
        }
    )


class RangeFacts:
    """Collects digest, bounds and epochs of rows that are added in offset order."""

    def __init__(self) -> None:
        self._digest = RangeDigest()
        self.first_offset = self.last_offset = -1
        self.first_epoch = self.last_epoch = 0
        self.min_us = self.max_us = 0

    @property
    def records_count(self) -> int:
        """Number of rows added."""
        return self._digest.records_count

    @property
    def digest(self) -> str:
        """Digest of the rows added."""
        return self._digest.hexdigest()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows, with FILE_SCHEMA's columns."""
        if rows.num_rows == 0:
            return
        self._digest.update(rows)
        stamps = np.asarray(rows.column("timestamp").view(pa.int64()))
        least, greatest = int(stamps.min()), int(stamps.max())
        if self.first_offset < 0:
            self.first_offset = rows.column("offset")[0].as_py()
            self.first_epoch = rows.column("leader_epoch")[0].as_py()
            self.min_us, self.max_us = least, greatest
        self.last_offset = rows.column("offset")[-1].as_py()
        self.last_epoch = rows.column("leader_epoch")[-1].as_py()
        self.min_us, self.max_us = min(self.min_us, least), max(self.max_us, greatest)

    def entry(
        self,
        partition: int,
        *,
        path: str = "",
        size_bytes: int = 0,
        crc32c: int = 0,
        sparse: bool = False,
    ) -> LedgerEntry:
        """Return the ledger entry of the rows added, which have no gaps unless ``sparse``."""
        return LedgerEntry(
            partition=partition,
            start=Offset(self.first_offset),
            end=Offset(self.last_offset + 1),
            records_count=self.records_count,
            digest=self.digest,
            first_leader_epoch=self.first_epoch,
            last_leader_epoch=self.last_epoch,
            min_timestamp_us=self.min_us,
            max_timestamp_us=self.max_us,
            path=path,
            size_bytes=size_bytes,
            crc32c=crc32c,
            sparse=sparse,
        )


def log_rows(
    batches: Iterable[StoredBatch], wanted: OffsetRange, place: SegmentPlace
) -> Iterator[pa.RecordBatch]:
    """Yield exactly the wanted rows, in the table's columns; errors as for :func:`write_segment`.

    Neighbouring batches of one shape are decoded together, because a log with little traffic has
    thousands of small batches.
    """
    expected = wanted.start
    for header, body in _runs(batches):
        if header.base_offset > expected or header.sparse:
            break
        rows = to_rows(
            header, body, partition=place.partition.number, subject=place.subject,
            schema=FILE_SCHEMA,
        )  # fmt: skip
        end = min(header.end_offset, wanted.end)
        if end > expected:
            yield rows.slice(expected - header.base_offset, end - expected)
            expected = Offset(end)
        if expected == wanted.end:
            return
    raise GapError(
        f"the local log gave only [{wanted.start}, {expected}) of {wanted} of {place.partition}",
        partition=place.partition.number,
        start=int(expected),
        end=int(wanted.end),
    )


def _runs(batches: Iterable[StoredBatch]) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    """Join neighbouring batches of one shape into one batch."""
    run: list[pa.RecordBatch] = []
    first: BatchHeader | None = None
    count = size = 0
    for batch in batches:
        header = batch.header
        check_body(header, batch.body)
        body = decode_body(header, batch.body)
        continues = (
            first is not None
            and len(run) < _RUN_BATCHES_MAX
            and size < _RUN_BYTES_MAX
            and not header.sparse
            and not first.sparse
            and first.base_offset + count == header.base_offset
            and first.columns == header.columns
            and first.leader_epoch == header.leader_epoch
            and count + header.records_count <= ROW_GROUP_ROWS_MAX
        )
        if first is not None and not continues:
            yield _joined(first, count), pa.concat_batches(run)
            first = None
        if first is None:
            first, run, count, size = header, [], 0, 0
        run.append(body)
        count += header.records_count
        size += header.size
    if first is not None:
        yield _joined(first, count), pa.concat_batches(run)


def _joined(first: BatchHeader, count: int) -> BatchHeader:
    """Return the header of a run of dense batches; a sparse batch is never joined."""
    if first.sparse:
        return first
    return replace(first, records_count=count, offset_span=count)


def _row_groups(rows: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Collect rows into groups below both limits (a single row may exceed the limit of bytes)."""
    group: list[pa.RecordBatch] = []
    count = size = 0
    for batch in rows:
        width = max(1, batch.nbytes // batch.num_rows)
        at = 0
        while at < batch.num_rows:
            room = min(ROW_GROUP_ROWS_MAX - count, (ROW_GROUP_BYTES_MAX - size) // width)
            if room <= 0 and group:
                yield group
                group, count, size = [], 0, 0
                continue
            piece = batch.slice(at, max(1, room))
            group.append(piece)
            at += piece.num_rows
            count += piece.num_rows
            size += piece.num_rows * width
    if group:
        yield group


def _footer(place: SegmentPlace, bounds: dict[str, str], facts: RangeFacts) -> dict[str, str]:
    cipher = {} if place.encryption is None else {FOOTER_KEY: CIPHER}
    return {
        **cipher,
        "headwater.format_version": str(FORMAT_VERSION),
        "headwater.cluster": place.cluster,
        "headwater.stream_uuid": place.partition.stream_uuid,
        "headwater.partition": str(place.partition.number),
        **bounds,
        "headwater.digest": facts.digest,
        "headwater.first_leader_epoch": str(facts.first_epoch),
        "headwater.last_leader_epoch": str(facts.last_epoch),
    }


def _read_rows(footer: pq.FileMetaData) -> int:
    """Return how many rows to read at once: narrow rows many, wide ones few."""
    groups = (footer.row_group(at) for at in range(footer.num_row_groups))
    size: int = sum(group.total_byte_size for group in groups)
    fitting: int = _READ_BYTES_MAX * footer.num_rows // max(1, size)
    return max(1, min(_READ_ROWS_MAX, fitting))


def _differs(entry: LedgerEntry, what: str, expected: object, found: object) -> ObjectCorruptError:
    return ObjectCorruptError(
        f"{entry.path}: {what} is {found}, but {expected} was expected",
        key=entry.path,
        what=what,
        expected=expected,
        found=found,
    )


def _iso_ms(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
