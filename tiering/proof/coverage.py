"""Checks whether a table version holds exactly ``[start, cold end)``, as far as statistics tell.

Pure. Statistics prove a file if their bounds span as many offsets as the file has rows, and if no
other file overlaps it (the offsets in one file of ours are distinct). OPTIMIZE may leave files with
interleaved ranges. Such groups of files are returned to the caller, which has to read the offsets.

Where key compaction has removed records, a range of offsets proves nothing. There the number of
rows is compared with the number that the version's transactions state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from broker.errors import GapError, OverlapError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from tiering.read.parquet_source import Offsets
from tiering.table.table import DataFile, SparsePrefix


def unproven_groups(
    files: Sequence[DataFile], cold: OffsetRange, *, partition: int
) -> list[list[DataFile]]:
    """Check one partition's files against its range; return the groups that have to be read.

    ``files`` are the partition's files, all with statistics. The span ``[min, max]`` of each group
    is contiguous with the neighbouring spans; :func:`require_contiguous` checks the offsets inside.

    Raises:
        TableMismatchError: a file has rows outside the range: the broker never committed them.
        GapError: offsets of the range are in no file.
    """
    expected = int(cold.start)
    unproven = []
    for group in overlapping(files):
        least = min(_bounds(file)[0] for file in group)
        end = max(_bounds(file)[1] for file in group) + 1
        for file in group:
            if _bounds(file)[0] < cold.start or _bounds(file)[1] >= cold.end:
                raise _outside(file, cold, partition)
        if least > expected:
            raise gap(partition, expected, least)
        if len(group) > 1 or group[0].records_count != end - least:
            unproven.append(group)
        expected = end
    if expected < cold.end:
        raise gap(partition, expected, int(cold.end))
    return unproven


def require_left(
    files: Sequence[DataFile],
    held: OffsetRange,
    left: SparsePrefix,
    *,
    partition: int,
    offsets_of: Callable[[Sequence[DataFile]], Offsets],
) -> tuple[list[DataFile], OffsetRange]:
    """Prove a sparse prefix; return the files above it and the range that these have to hold.

    ``files`` are the partition's files, all with statistics; ``held`` is the partition's range, in
    which the prefix ends. A foreign OPTIMIZE may have joined files across the end of the prefix, or
    interleaved them: their offsets are read by ``offsets_of``, and rows above the end are checked
    here, too.

    Raises:
        TableMismatchError: rows below the range, or another number of rows than is stated.
        OverlapError, GapError: an offset occurs twice; one above the prefix is missing.
    """
    count, at = 0, left.end
    above: list[DataFile] = []
    for group in overlapping(files):
        least, greatest = _bounds(group[0])[0], max(_bounds(file)[1] for file in group)
        if least >= left.end:
            above += group
        elif least < held.start:
            raise _outside(group[0], held, partition)
        elif len(group) == 1 and greatest < left.end:
            count += group[0].records_count or 0
        else:
            offsets = np.sort(offsets_of(group))
            require_rising(offsets, partition=partition)
            below = int(np.searchsorted(offsets, left.end))
            count += below
            if below < len(offsets):  # rows above the prefix: these are contiguous from its end on
                if offsets[below] != left.end:
                    raise gap(partition, int(left.end), int(offsets[below]))
                require_contiguous(offsets[below:], partition=partition)
                at = Offset(int(offsets[-1]) + 1)
    if count != left.records_count:
        raise TableMismatchError(
            f"the files of partition {partition} have {count} rows below {left.end}, and key "
            f"compaction left {left.records_count}: rows were added or removed",
            partition=partition,
            expected=left.records_count,
            found=count,
        )
    return above, OffsetRange(at, max(at, held.end))


def require_rising(offsets: Offsets, *, partition: int) -> None:
    """Check that ordered offsets are distinct; raises OverlapError."""
    same = np.flatnonzero(np.diff(offsets) == 0)
    if len(same):
        twice = int(offsets[same[0]])
        raise overlap(partition, twice, twice + 1)


def require_contiguous(offsets: Offsets, *, partition: int) -> None:
    """Check that these offsets, in any order, contain each number between their bounds once.

    Raises:
        OverlapError: an offset occurs twice.
        GapError: an offset between the bounds is missing.
    """
    ordered = np.sort(offsets)
    steps = np.diff(ordered)
    wrong = np.flatnonzero(steps != 1)
    if len(wrong) == 0:
        return
    at = int(wrong[0])
    if steps[at] == 0:
        raise overlap(partition, int(ordered[at]), _repeat_end(ordered, steps, at))
    raise gap(partition, int(ordered[at]) + 1, int(ordered[at + 1]))


def gap(partition: int, start: int, end: int) -> GapError:
    """Return the error for missing offsets ``[start, end)``."""
    return GapError(
        f"offsets [{start}, {end}) of partition {partition} are missing from the table",
        partition=partition,
        start=start,
        end=end,
    )


def overlap(partition: int, start: int, end: int) -> OverlapError:
    """Return the error for offsets ``[start, end)`` that occur more than once."""
    return OverlapError(
        f"offsets [{start}, {end}) of partition {partition} occur more than once in the table",
        partition=partition,
        start=start,
        end=end,
    )


def _outside(file: DataFile, cold: OffsetRange, partition: int) -> TableMismatchError:
    return TableMismatchError(
        f"{file.path} has offsets {_bounds(file)[0]} to {_bounds(file)[1]}, but the transactions "
        f"of partition {partition} cover {cold}: the broker never committed these rows",
        path=file.path,
        partition=partition,
    )


def _repeat_end(ordered: Offsets, steps: Offsets, at: int) -> int:
    """Return the end of the first run of repeated offsets."""
    repeated = ordered[:-1][steps == 0]
    run = repeated[repeated >= ordered[at]]
    breaks = np.flatnonzero(np.diff(np.unique(run)) != 1)
    unique = np.unique(run)
    return int(unique[breaks[0]] if len(breaks) else unique[-1]) + 1


def overlapping(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group files whose offset ranges overlap, in order of offset."""
    groups: list[list[DataFile]] = []
    end = -1
    for file in sorted(files, key=_bounds):
        least, greatest = _bounds(file)
        if groups and least < end:
            groups[-1].append(file)
        else:
            groups.append([file])
        end = max(end, greatest + 1)
    return groups


def _bounds(file: DataFile) -> tuple[int, int]:
    assert file.min_offset is not None, f"{file.path} has no statistics"
    assert file.max_offset is not None, f"{file.path} has no statistics"
    return file.min_offset, file.max_offset
