"""The state of a cut: the newest record of each key, without Spark (spark_jobs/read has it, too).

    state = newest per (partition, key) of (key snapshot at E  ∪  records [E, end)), no tombstones

If no key snapshot can serve the cut, all records from the start are read; the rows are the same.
Each partition has its own keys. If keys have moved into partitions that were added to the stream
(`Stream.keys_from`), a key is one key in all partitions: its newest record is in the highest
partition that has one.

Of a table, key compaction removes records that a later one in the same version supersedes. A cut
of that version has the newest record of each key, unless it is narrowed to an end below.
Of a stream without a table key compaction removes superseded records, but none that a lease holds.
So while the lease of a cut lives, each record that went had a newer one within the cut. Of an
earlier moment, or after the lease, the newer one may be above the end, and the key would be
missing: such a read is refused.

There are two passes. The first notes the offset of each key's newest record, and keeps the keys and
these offsets in memory. The second returns the rows at these offsets. A key whose newest record is
a tombstone has no row. Records without a key are ignored.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from broker.errors import CompactedRangeError
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import Offset
from headwater.reads.history import History
from tiering.keys.of_cut import SnapshotRows, usable_snapshot
from tiering.keys.sorting import rows_at
from tiering.read.parquet_source import Offsets

_FIRST_PASS = ("partition", "offset", "key", "value")
_DELETED = -1  # in the place of an offset


def newest_of_each_key(
    history: History, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the newest row of each key, without tombstones, by partition and offset.

    ``history`` is complete afterwards: its certificate covers every record of the cut, also those
    that the key snapshot stands for.

    Args:
        history: A new read, of which no batch was taken.
        columns: Names of ROW_SCHEMA in the order of the result; None means all.

    Raises:
        CompactedRangeError: key compaction may have removed the newest record of a key.
        HeadwaterError: the errors of :meth:`History.batches`, and those of a damaged key snapshot.
    """
    for _, batch in state_by_partition(history, columns):
        yield batch


def state_by_partition(
    history: History, columns: Sequence[str] | None = None
) -> Generator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of :func:`newest_of_each_key`, each batch with its partition."""
    location = None if history.cut.table_version is None else history.location()
    found = usable_snapshot(history.cut, location, whole_start=history.whole_start)
    rows = None if found is None else SnapshotRows(history.cut, found, location)
    _require_compacted_below(history)
    first = history.again()
    newest = _newest_offsets(first, rows)
    _require_newest(first)
    wanted = None if columns is None else list(dict.fromkeys([*columns, "partition", "offset"]))
    below = None if rows is None else _NewestBelow(rows, newest)
    for batch in history.batches(wanted, below=below):
        if batch.num_rows == 0:
            continue
        partition = batch.column("partition")[0].as_py()
        chosen = rows_at(batch, newest[partition])
        if chosen.num_rows:
            yield partition, chosen if columns is None else chosen.select(list(columns))
    _require_newest(history)


def require_newest(cut: Cut, *, lease_lives: bool) -> None:
    """Refuse the state of a cut that key compaction has thinned out, if a key may be missing.

    Raises:
        CompactedRangeError: the cut is narrowed to an earlier moment, or its lease has ended.
    """
    narrowed = [part for part in cut.partitions if part.end < part.hot_end]
    if lease_lives and not narrowed:
        return
    part = next(iter(narrowed), cut.partitions[0])
    why = "it is an earlier moment" if narrowed else "its lease has ended"
    raise CompactedRangeError(
        f"the newest record of each key of {cut.stream} at this cut is not known any more: {why}, "
        "key compaction has removed records, and no table has them. Read the newest records as of "
        "now; the certificate of a read of all records says what is left of the cut",
        stream=cut.stream,
        partition=part.partition,
        start=part.start,
        end=part.end,
    )


def _require_compacted_below(history: History) -> None:
    """Refuse a cut that ends where key compaction has removed records from the table.

    Each record that went had a newer one below the sparse range's end. A cut that ends at or above
    that end has this newer record; another cut may lack it.
    """
    for part in history.cut.partitions:
        whole = history.whole_start(part.partition)
        if part.start < part.end < whole:
            raise CompactedRangeError(
                f"the newest record of each key of {history.cut.stream} at offset {part.end} of "
                f"partition {part.partition} is not known any more: key compaction has removed "
                f"records below {whole} that a later one superseded. Read the newest records as of "
                "now, or as of a saved cut from before the compaction",
                stream=history.cut.stream,
                partition=part.partition,
                start=part.start,
                end=int(whole),
            )


def _require_newest(history: History) -> None:
    if history.is_thinned:
        require_newest(history.cut, lease_lives=history.lease_lives())


class _KeysBelow:
    """For the first pass: each row of a key snapshot, with the columns that the pass needs."""

    def __init__(self, rows: SnapshotRows, *, moved: bool) -> None:
        self._rows = rows
        # Tombstones are in key snapshots of streams whose keys have moved, and in no others.
        self._columns = _FIRST_PASS if moved else _FIRST_PASS[:-1]

    def end(self, partition: int) -> Offset:
        return self._rows.end(partition)

    def batches(self, part: PartitionCut, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        del columns
        return self._rows.batches(part, self._columns)


class _NewestBelow:
    """For the second pass: the rows of a key snapshot that are the newest, in offset order."""

    def __init__(self, rows: SnapshotRows, newest: Mapping[int, Offsets]) -> None:
        self._rows = rows
        self._newest = newest

    def end(self, partition: int) -> Offset:
        return self._rows.end(partition)

    def batches(self, part: PartitionCut, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        newest = self._newest[part.partition]
        below = newest[: np.searchsorted(newest, int(self.end(part.partition)))]
        return self._rows.chosen(part, columns, below)


def _newest_offsets(history: History, rows: SnapshotRows | None) -> dict[int, Offsets]:
    """Return, per partition, the sorted offsets of the rows that are the newest of their keys."""
    moved = history.cut.keys_from is not None
    below = None if rows is None else _KeysBelow(rows, moved=moved)
    found: dict[int, dict[bytes | None, int]] = {
        part.partition: {} for part in history.cut.partitions
    }
    for batch in history.batches(_FIRST_PASS, below=below):
        if batch.num_rows == 0:
            continue
        keys = found[batch.column("partition")[0].as_py()]
        offsets = np.array(batch.column("offset"))
        if "value" in batch.schema.names:
            offsets[np.asarray(batch.column("value").is_null(), dtype=bool)] = _DELETED
        keys.update(zip(batch.column("key").to_pylist(), offsets.tolist(), strict=True))
    if moved:
        _drop_superseded(found)
    for keys in found.values():
        keys.pop(None, None)  # records without a key
    return {
        number: np.array(sorted(n for n in keys.values() if n != _DELETED), np.int64)
        for number, keys in found.items()
    }


def _drop_superseded(found: Mapping[int, dict[bytes | None, int]]) -> None:
    """Drop each key from the partitions below the highest one that has it."""
    above: set[bytes | None] = set()
    for number in sorted(found, reverse=True):
        keys = found[number]
        for key in above & keys.keys():
            del keys[key]
        above |= keys.keys()
