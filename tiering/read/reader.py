"""Reads the cold rows of one partition in offset order, however the files were rewritten.

Files and row groups outside the wanted range are never fetched. Our own files are read from start
to end. After a foreign OPTIMIZE, row groups may hold ranges in any order, or interleaved. Row
groups that overlap are read window by window and sorted, so memory stays bounded. Each row has the
offset after the previous row's: a reader gets the whole range or a typed error. Where key
compaction has removed records, offsets rise and the rows are counted; only a reader that asks for
it gets such a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

import numpy as np
import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    CompactedRangeError,
    ObjectCorruptError,
    OffsetOutOfRangeError,
    TableMismatchError,
)
from broker.model.offsets import OffsetRange
from tiering.proof.coverage import gap, overlap, require_rising
from tiering.read.parquet_source import Offsets, ParquetObject, RowGroup
from tiering.store.object_store import ObjectStore
from tiering.table.table import DataFile, TableSnapshot

BATCH_ROWS_MAX: Final = 64 * 1024
_WINDOW_BYTES: Final = 64 * 1024 * 1024  # decoded rows that a merge holds, plus one row group
_WINDOW_ROWS_MIN: Final = 1024
_OPEN_FILES_MAX: Final = 64
_AHEAD_MAX: Final = 8  # files that are opened before their turn: of small ones, all bytes


def read_rows(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    wanted: OffsetRange,
    schema: pa.Schema = ROW_SCHEMA,
    *,
    sparse: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``wanted`` in offset order; ``schema`` is a subset of ROW_SCHEMA.

    ``store`` holds the table. Batches have at most 65,536 rows. With ``sparse`` a range of which
    key compaction has removed records gives the rows that are left. Blocks while it fetches.

    Raises:
        CompactedRangeError: records of the range went by key compaction, and not ``sparse``.
        OffsetOutOfRangeError: this version does not hold the whole range.
        GapError, OverlapError: offsets are missing, or occur twice.
        ObjectMissingError, ObjectCorruptError: a file is missing or damaged.
        RemoteTierUnavailableError: the store does not answer.
    """
    held = snapshot.ranges.get(partition)
    if held is None or not held.start <= wanted.start <= wanted.end <= held.end:
        raise OffsetOutOfRangeError(
            f"the table holds {held} of partition {partition}, but {wanted} was asked for",
            offset=int(wanted.start),
            start=0 if held is None else int(held.start),
            end=0 if held is None else int(held.end),
        )
    names = [name for name in schema.names if name not in ("offset", "partition")]
    if not sparse:
        require_whole(snapshot, partition, wanted)
    order = _Order(snapshot, partition, wanted)
    with _Files(store) as files:
        for group in _overlapping(_row_groups(snapshot, files, partition, wanted)):
            for rows in _ordered(group, files, wanted, ["offset", *names]):
                order.add(_offsets(rows))
                for batch in rows.to_batches(max_chunksize=BATCH_ROWS_MAX):
                    yield shaped(batch, schema, partition)
    order.end()


def require_whole(snapshot: TableSnapshot, partition: int, wanted: OffsetRange) -> None:
    """Refuse a range of which key compaction has removed records from the table.

    Raises:
        CompactedRangeError: names the first offset from which each record is there.
    """
    whole = snapshot.whole_start(partition)
    if wanted.start < min(whole, wanted.end):
        raise CompactedRangeError(
            f"key compaction has removed records of [{snapshot.range_of(partition).start}, {whole})"
            f" of partition {partition} from {snapshot.uri}, and this reader needs each record: "
            f"begin at {whole}, read a cut from before the compaction, or read what is left with "
            "`headwater read`",
            partition=partition,
            start=int(wanted.start),
            end=int(whole),
        )


class _Files:
    """A bounded cache of opened files, so that each footer is fetched once.

    Files of a remote store that come next are opened meanwhile, on threads of their own.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._open: dict[str, ParquetObject] = {}
        self._coming: dict[str, Future[ParquetObject]] = {}
        self._threads = ThreadPoolExecutor(_AHEAD_MAX, "headwater-files")  # started when needed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __getitem__(self, file: DataFile) -> ParquetObject:
        found = self._open.get(file.path)
        if found is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                self._open.pop(next(iter(self._open)))
            coming = self._coming.pop(file.path, None)
            found = ParquetObject(self._store, file) if coming is None else coming.result()
            self._open[file.path] = found
        return found

    def expect(self, files: Iterable[DataFile]) -> None:
        """Begin to open these files; an error comes when the file is asked for."""
        if self._store.config.kind == "local":
            return
        for file in files:
            if file.path not in self._open and file.path not in self._coming:
                self._coming[file.path] = self._threads.submit(ParquetObject, self._store, file)


def _row_groups(
    snapshot: TableSnapshot, files: _Files, partition: int, wanted: OffsetRange
) -> Iterator[RowGroup]:
    """Yield the row groups that may hold wanted rows, sorted by first offset.

    Files are sorted by first offset, and each is asked for as late as possible: a row group is
    yielded as soon as every file that was not asked for begins at or above it. Files without
    statistics come first.
    """
    relevant = [
        file
        for file in snapshot.files
        if file.partition == partition
        and file.records_count != 0
        and wanted
        and file.may_have(wanted)
    ]
    pending: list[RowGroup] = []
    relevant.sort(key=lambda file: file.min_offset or 0)
    for at, file in enumerate(relevant):
        files.expect(relevant[at : at + 1 + _AHEAD_MAX])
        pending.sort(key=lambda group: group.min_offset)
        while pending and pending[0].min_offset < (file.min_offset or 0):
            yield pending.pop(0)
        opened = files[file]
        thinned = (file.min_offset or 0) < snapshot.sparse_range(partition).end
        if thinned and file.records_count not in (None, opened.rows_count):
            raise ObjectCorruptError(
                f"{file.path} has {opened.rows_count} rows, but the table's log says "
                f"{file.records_count}",
                key=file.path,
                expected=file.records_count,
                found=opened.rows_count,
            )
        pending.extend(
            group
            for group in opened.row_groups()
            if group.min_offset < wanted.end and group.max_offset >= wanted.start
        )
    yield from sorted(pending, key=lambda group: group.min_offset)


def _overlapping(groups: Iterator[RowGroup]) -> Iterator[list[RowGroup]]:
    """Collect row groups whose ranges overlap; ``groups`` is sorted by first offset."""
    together: list[RowGroup] = []
    end = -1
    for group in groups:
        if together and group.min_offset >= end:
            yield together
            together = []
        together.append(group)
        end = max(end, group.max_offset + 1)
    if together:
        yield together


def _ordered(
    groups: Sequence[RowGroup], files: _Files, wanted: OffsetRange, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the wanted rows of overlapping row groups in offset order, in bounded pieces."""
    least = max(int(wanted.start), min(group.min_offset for group in groups))
    end = min(int(wanted.end), max(group.max_offset for group in groups) + 1)
    step = max(end - least, 1)
    if len(groups) > 1:
        rows = sum(group.rows_count for group in groups)
        size = max(1, sum(group.size_bytes for group in groups) // rows)
        step = max(_WINDOW_ROWS_MIN, _WINDOW_BYTES // size)
    for low in range(least, end, step):
        high = min(low + step, end)
        parts = [
            _within(files[group.file].read(group.index, names), low, high)
            for group in groups
            if group.min_offset < high and group.max_offset >= low
        ]
        yield _sorted(pa.concat_tables(parts))


def _within(rows: pa.Table, low: int, high: int) -> pa.Table:
    """Return the rows with offsets in ``[low, high)``; without a copy if they are neighbours."""
    offsets = _offsets(rows)
    inside = (offsets >= low) & (offsets < high)
    if inside.all():
        return rows
    if len(offsets) and bool((np.diff(offsets) > 0).all()):
        first, last = np.searchsorted(offsets, (low, high))
        return rows.slice(int(first), int(last - first))
    return rows.filter(pa.array(inside))


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = _offsets(rows)
    if len(offsets) < 2 or bool((np.diff(offsets) >= 0).all()):
        return rows
    return rows.sort_by("offset")


class _Order:
    """Checks the rows of one read: in a sparse range they rise, above it each offset is there."""

    def __init__(self, snapshot: TableSnapshot, partition: int, wanted: OffsetRange) -> None:
        self._snapshot, self._partition, self._wanted = snapshot, partition, wanted
        self._thinned = snapshot.sparse_range(partition)
        self._whole = min(max(wanted.start, self._thinned.end), wanted.end)  # of what is wanted
        self._at = int(wanted.start)
        self._left = 0  # rows of the sparse range so far

    def add(self, offsets: Offsets) -> None:
        """Check the offsets of the next rows."""
        below = int(np.searchsorted(offsets, self._whole)) if self._at < self._whole else 0
        if below:
            if int(offsets[0]) < self._at:
                raise overlap(self._partition, int(offsets[0]), self._at)
            require_rising(offsets[:below], partition=self._partition)
            self._left += below
            self._at = int(offsets[below - 1]) + 1
        if below < len(offsets):
            self._at = _require_next(offsets[below:], max(self._at, self._whole), self._partition)

    def end(self) -> None:
        """Check that nothing is missing at the end, nor in the sparse range."""
        at, end = max(self._at, self._whole), int(self._wanted.end)
        if at != end:
            raise gap(self._partition, at, end)
        thinned, stated = self._thinned, self._snapshot.left_count(self._partition)
        entire = self._wanted.start <= thinned.start and thinned.end <= end
        if thinned and entire and self._left != stated:
            raise TableMismatchError(
                f"{self._left} rows of {thinned} of partition {self._partition} were read, and "
                f"key compaction left {stated}",
                partition=self._partition,
                expected=stated,
                found=self._left,
            )


def _require_next(offsets: Offsets, expected: int, partition: int) -> int:
    """Check that the rows go on at ``expected`` without gap or repeat; return their end."""
    first = int(offsets[0])
    if first > expected:
        raise gap(partition, expected, first)
    if first < expected:
        raise overlap(partition, first, expected)
    wrong = np.flatnonzero(np.diff(offsets) != 1)
    if len(wrong):
        before, after = int(offsets[wrong[0]]), int(offsets[wrong[0] + 1])
        raise (
            gap(partition, before + 1, after)
            if after > before
            else overlap(partition, after, before + 1)
        )
    return int(offsets[-1]) + 1


def _offsets(rows: pa.Table) -> Offsets:
    column = rows.column("offset").combine_chunks()
    values: Offsets = np.asarray(column)
    return values


def shaped(batch: pa.RecordBatch, schema: pa.Schema, partition: int) -> pa.RecordBatch:
    """Return rows of a partition's file with the columns of ``schema``, in its order."""
    arrays = [
        pa.array(np.full(batch.num_rows, partition, dtype=np.int32))
        if name == "partition"
        else batch.column(name)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
