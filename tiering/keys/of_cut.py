"""What a key snapshot has of the state of one cut: the newest records below its end.

A key snapshot of ``[s, E)`` serves a cut ``[start, end)`` if ``s <= start`` and ``E <= end``. Of
each key it has the newest record of ``[s, E)``. If that record is at ``start`` or above, it is the
key's newest of ``[start, E)``; if not, the key has no record there. So the rows at ``start`` and
above are exactly the state of ``[start, E)``, also when retention has moved the start since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.schema import ROW_SCHEMA
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import Offset, OffsetRange
from tiering.keys.snapshot import LatestTable, open_latest
from tiering.keys.sorting import in_offset_order, rows_at
from tiering.read.lake import Lake
from tiering.read.parquet_source import Offsets, ParquetObject
from tiering.read.reader import shaped
from tiering.store.location import StoreConfig

_log = logging.getLogger("headwater.read")


def usable_snapshot(
    cut: Cut,
    location: StoreConfig | None = None,
    *,
    whole_start: Callable[[int], Offset] | None = None,
) -> LatestTable | None:
    """Return the key snapshot that a read of this cut can use, or None. Blocks.

    ``location`` is that of the cut's table; its settings come from the environment otherwise.
    ``whole_start`` tells below which offset of a partition key compaction has removed records of
    the cut's table; None: it is read without one.
    Its ``ends`` are never below the cut's starts: from there on the history has to be read.

    Raises:
        TableMismatchError: a foreign writer changed it.
        CorruptDataError, UnavailableError: it is damaged, or cannot be reached.
    """
    found = _open_latest(cut, location)
    if found is None:
        return None
    if found.distrusted:
        _log.info(
            "key_snapshot_passed_over stream=%s partitions=%s rewritten_by=others",
            cut.stream,
            sorted(found.distrusted),
        )
        return None
    ends = {}
    for part in cut.partitions:
        covered = _covered(found, part.partition)
        if (
            covered.end <= part.start
        ):  # nothing of it is in the cut, or the partition was added since
            ends[part.partition] = part.start
        elif whole_start is not None and covered.end < whole_start(part.partition):
            # An older copy: the tombstones of its keys may be gone from the table.
            _log.info(
                "key_snapshot_passed_over stream=%s partition=%d covers=%s whole_from=%d",
                cut.stream,
                part.partition,
                covered,
                whole_start(part.partition),
            )
            return None
        elif covered.start <= part.start and covered.end <= part.end:
            ends[part.partition] = covered.end
        else:
            _log.info(
                "key_snapshot_passed_over stream=%s partition=%d covers=%s cut=[%d, %d)",
                cut.stream,
                part.partition,
                covered,
                part.start,
                part.end,
            )
            return None
    # Partitions that were added after the cut have records of later moments only.
    return replace(
        found,
        ends=ends,
        starts={number: start for number, start in found.starts.items() if number in ends},
        files=tuple(file for file in found.files if file.partition in ends),
    )


class SnapshotRows:
    """The rows of a usable key snapshot that belong to one cut. Blocks; one thread at a time."""

    def __init__(self, cut: Cut, found: LatestTable, location: StoreConfig | None = None) -> None:
        """Open the key snapshot with the settings of ``location``, or of the environment."""
        self._found = found
        at = found.uri if location is None else location.at(found.uri)
        self._store = Lake.open(at, cluster=cut.cluster).store

    def end(self, partition: int) -> Offset:
        """Return the first offset of a partition that the key snapshot does not cover."""
        return self._found.ends[partition]

    def batches(self, part: PartitionCut, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition from the cut's start on, by key.

        ``columns`` are names of ROW_SCHEMA, with ``offset``.

        Raises:
            ObjectMissingError, ObjectCorruptError: a file is missing or damaged.
            RemoteTierUnavailableError: the store does not answer.
        """
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        names = [name for name in columns if name != "partition"]
        for file in self._found.files:
            if file.partition != part.partition:
                continue
            opened = ParquetObject(self._store, file)
            for index in range(opened.row_groups_count):
                for batch in opened.read(index, names).to_batches():
                    kept = batch.filter(pc.greater_equal(batch.column("offset"), int(part.start)))
                    yield shaped(kept, schema, part.partition)

    def chosen(
        self, part: PartitionCut, columns: Sequence[str], offsets: Offsets
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition at these offsets, in offset order.

        ``offsets`` is sorted. Errors as for :meth:`batches`.
        """
        rows = self.batches(part, columns)
        yield from in_offset_order((rows_at(one, offsets) for one in rows), offsets)


def _covered(found: LatestTable, partition: int) -> OffsetRange:
    nothing = Offset(0)
    return OffsetRange(found.starts.get(partition, nothing), found.ends.get(partition, nothing))


def _open_latest(cut: Cut, location: StoreConfig | None) -> LatestTable | None:
    if cut.table_version is None:
        return None
    root, namespace, table_name = cut.table_uri.rsplit("/", 2)
    return open_latest(
        Lake.open(root if location is None else location.at(root), cluster=cut.cluster),
        cut.stream,
        stream_uuid=cut.stream_uuid,
        table_name=table_name,
        namespace=namespace,
    )
