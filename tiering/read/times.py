"""Finds the first cold offset whose record has at least a given time.

Times within a partition need not be in order. So the answer is defined as the smallest offset whose
timestamp is at or after the given time. Files whose statistics end before that time are skipped.
Of the other files only the columns offset and timestamp are read, until the answer is certain.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from broker.model.offsets import Offset, OffsetRange
from tiering.read.parquet_source import ParquetObject, RowGroup
from tiering.store.object_store import ObjectStore
from tiering.table.table import DataFile, TableSnapshot


def first_reaching(
    snapshot: TableSnapshot,
    store: ObjectStore,
    partition: int,
    wanted: OffsetRange,
    timestamp_us: int,
) -> Offset | None:
    """Return the first offset of ``wanted`` with a timestamp at or after the time, or None.

    The version holds all of ``wanted``; ``store`` holds the table. Blocks.

    Raises:
        ObjectMissingError, ObjectCorruptError: a file is missing or damaged.
        RemoteTierUnavailableError: the store does not answer.
    """
    best: int | None = None
    for file in _candidates(snapshot, partition, wanted, timestamp_us):
        if best is not None and (file.min_offset or 0) > best:
            break
        source = ParquetObject(store, file)
        for group in sorted(source.row_groups(), key=lambda one: one.min_offset):
            if group.min_offset >= wanted.end or group.max_offset < wanted.start:
                continue
            if best is not None and group.min_offset > best:
                break
            found = _first_in(source, group, wanted, timestamp_us)
            if found is not None and (best is None or found < best):
                best = found
    return None if best is None else Offset(best)


def _candidates(
    snapshot: TableSnapshot, partition: int, wanted: OffsetRange, timestamp_us: int
) -> list[DataFile]:
    """Return the files that may hold the answer, by first offset; unknown bounds come first."""
    return sorted(
        (
            file
            for file in snapshot.files
            if file.partition == partition
            and file.records_count != 0
            and file.may_have(wanted)
            and (file.max_timestamp_us is None or file.max_timestamp_us >= timestamp_us)
        ),
        key=lambda file: file.min_offset or 0,
    )


def _first_in(
    source: ParquetObject, group: RowGroup, wanted: OffsetRange, timestamp_us: int
) -> int | None:
    rows = source.read(group.index, ["offset", "timestamp"])
    offsets = np.asarray(rows.column("offset").combine_chunks())
    stamps = np.asarray(rows.column("timestamp").combine_chunks().view(pa.int64()))
    hits = offsets[(stamps >= timestamp_us) & (offsets >= wanted.start) & (offsets < wanted.end)]
    return int(hits.min()) if hits.size else None
