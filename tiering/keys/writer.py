"""The files of a key snapshot: sorted rows in, the newest row of each key out, as Parquet.

Rows arrive sorted by partition, bucket, key and descending offset, so the first row of a key is its
newest, whatever the timestamps say. Memory holds one file's compressed bytes and one row group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.codec.checksum import crc32c
from broker.codec.digest import RangeDigest
from broker.codec.schema import FILE_SCHEMA
from broker.errors import ObjectCorruptError, RemoteTierUnavailableError
from tiering.keys.plan import bucket_path
from tiering.ship.segment_writer import ROW_GROUP_BYTES_MAX, ROW_GROUP_ROWS_MAX, statistics_json
from tiering.store.object_store import ObjectStore
from tiering.table.table import NewFile

SORTED_COLUMNS: Final = ("partition", "bucket", *FILE_SCHEMA.names)
_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["subject", "leader_epoch", "headers.list.element.key"],
    # Sorted by key: statistics let a reader of one key skip row groups.
    "write_statistics": ["key", "offset", "timestamp"],
    "write_page_checksum": True,
    "version": "2.6",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFile:
    """A file that is written and not yet committed to the table."""

    path: str
    partition: int
    bucket: int
    size_bytes: int
    records_count: int
    stats_json: str
    crc32c: int
    digest: str  # of the rows, in the file's order: by key
    etag: str | None = None  # the store's answer to its PUT

    def new_file(self, *, modified_us: int) -> NewFile:
        """Return the file's description for the commit."""
        return NewFile(
            path=self.path,
            size_bytes=self.size_bytes,
            partition=self.partition,
            modified_us=modified_us,
            stats_json=self.stats_json,
            crc32c=self.crc32c,
            digest=self.digest,
            etag=self.etag,
        )


def write_buckets(
    rows: Iterable[pa.RecordBatch],
    store: ObjectStore,
    *,
    buckets: Mapping[int, int],
    ends: Mapping[int, int],
    keys_from: int | None = None,
) -> Iterator[BucketFile]:
    """Write one file per bucket that has rows left; yield the description of each file.

    Args:
        rows: batches with the columns of SORTED_COLUMNS, sorted as the module docstring says.
        store: the object store of the key snapshot's folder.
        buckets: how many buckets each partition has.
        ends: per partition, the end of the cut; used in file names only.
        keys_from: see ``Stream.keys_from``; from this partition on, tombstones are kept.

    Raises:
        ObjectCorruptError: a file that was read back has other bytes than were written.
        RemoteTierUnavailableError: the store does not answer.
    """
    file: _OpenBucket | None = None
    for partition, bucket, part in newest_rows(rows, keys_from):
        if file is not None and (file.partition, file.bucket) != (partition, bucket):
            yield file.stored(store, buckets[file.partition], ends[file.partition])
            file = None
        file = file or _OpenBucket(partition, bucket)
        file.add(part)
    if file is not None:
        yield file.stored(store, buckets[file.partition], ends[file.partition])


def newest_rows(
    rows: Iterable[pa.RecordBatch], keys_from: int | None = None
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Yield each key's newest row, unless that is a tombstone, by (partition, bucket), in order.

    From partition ``keys_from`` on, a tombstone is a row, too: it hides rows of lower partitions.
    """
    previous: tuple[int, int, bytes] | None = None
    for batch in rows:
        if batch.num_rows == 0:
            continue
        partitions = np.asarray(batch.column("partition"))
        buckets = np.asarray(batch.column("bucket"))
        keys = batch.column("key")
        first = np.ones(batch.num_rows, dtype=np.bool_)
        other_key = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        moved = (np.diff(partitions) != 0) | (np.diff(buckets) != 0)
        first[1:] = moved | other_key
        head = (int(partitions[0]), int(buckets[0]), keys[0].as_py())
        first[0] = head != previous
        previous = (int(partitions[-1]), int(buckets[-1]), keys[-1].as_py())
        alive = pc.is_valid(batch.column("value")).to_numpy(zero_copy_only=False)
        if keys_from is not None:
            alive = alive | (partitions >= keys_from)
        borders = [0, *(np.flatnonzero(moved) + 1).tolist(), batch.num_rows]
        kept = pa.array(first & alive)
        file_rows = _file_rows(batch)
        for low, high in itertools.pairwise(borders):
            part = file_rows.slice(low, high - low).filter(kept.slice(low, high - low))
            if part.num_rows:
                yield int(partitions[low]), int(buckets[low]), part


class _OpenBucket:
    """A bucket's file that still receives rows."""

    def __init__(self, partition: int, bucket: int) -> None:
        self.partition = partition
        self.bucket = bucket
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMA, **_WRITER_OPTIONS)
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = self._rows = 0
        self._offsets: tuple[int, int] | None = None
        self._stamps: tuple[int, int] | None = None
        self._digest = RangeDigest()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows."""
        for low in range(0, rows.num_rows, ROW_GROUP_ROWS_MAX):
            piece = rows.slice(low, ROW_GROUP_ROWS_MAX)
            if (
                self._group_rows + piece.num_rows > ROW_GROUP_ROWS_MAX
                or self._group_bytes + piece.nbytes > ROW_GROUP_BYTES_MAX
            ):
                self._flush()
            self._group.append(piece)
            self._group_rows += piece.num_rows
            self._group_bytes += piece.nbytes
        self._digest.update(rows)
        self._rows += rows.num_rows
        self._offsets = _widened(self._offsets, np.asarray(rows.column("offset")))
        stamps = np.asarray(rows.column("timestamp").view(pa.int64()))
        self._stamps = _widened(self._stamps, stamps)

    def stored(self, store: ObjectStore, buckets_count: int, end: int) -> BucketFile:
        """Finish the file, store it, read it back and return its description."""
        assert self._offsets is not None, "a file has rows"
        assert self._stamps is not None, "a file has rows"
        self._flush()
        self._writer.close()
        body = self._sink.getvalue()
        path = bucket_path(self.partition, self.bucket, buckets_count, end)
        checksum = crc32c(body)
        stored = store.put_if_absent(path, body, crc32c=checksum)
        if stored is None:
            raise RemoteTierUnavailableError(f"{path} exists already as another object", key=path)
        if crc32c(store.get(path)) != checksum:
            raise ObjectCorruptError(
                f"{path}: the object that was read back is not the one that was written", key=path
            )
        return BucketFile(
            path=path,
            partition=self.partition,
            bucket=self.bucket,
            size_bytes=len(body),
            records_count=self._rows,
            stats_json=statistics_json(
                self._rows, offsets=self._offsets, timestamps_us=self._stamps
            ),
            crc32c=checksum,
            digest=self._digest.hexdigest(),
            etag=stored.etag,
        )

    def _flush(self) -> None:
        if self._group:
            rows = pa.Table.from_batches(self._group, FILE_SCHEMA)
            self._writer.write_table(rows, ROW_GROUP_ROWS_MAX)
        self._group, self._group_rows, self._group_bytes = [], 0, 0


def _file_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of the file, cast to the types of FILE_SCHEMA."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for field in FILE_SCHEMA
        for column in (batch.column(field.name),)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)


def _widened(bounds: tuple[int, int] | None, values: Any) -> tuple[int, int]:
    least, greatest = int(values.min()), int(values.max())
    if bounds is None:
        return least, greatest
    return min(bounds[0], least), max(bounds[1], greatest)
