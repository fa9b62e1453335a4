"""Checks whether a table version holds exactly ``[start, cold end)``, as far as statistics tell.

Pure. Statistics prove a file if their bounds span as many offsets as the file has rows, and if no
other file overlaps it (the offsets in one file of ours are distinct). OPTIMIZE may leave files with
interleaved ranges. Such groups of files are returned to the caller, which has to read the offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.errors import GapError, OverlapError, TableMismatchError
from broker.model.offsets import OffsetRange
from tiering.read.parquet_source import Offsets
from tiering.table.table import DataFile


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
                raise TableMismatchError(
                    f"{file.path} has offsets {_bounds(file)[0]} to {_bounds(file)[1]}, but the "
                    f"transactions of partition {partition} cover {cold}: the broker never "
                    "committed these rows",
                    path=file.path,
                    partition=partition,
                )
        if least > expected:
            raise gap(partition, expected, least)
        if len(group) > 1 or group[0].records_count != end - least:
            unproven.append(group)
        expected = end
    if expected < cold.end:
        raise gap(partition, expected, int(cold.end))
    return unproven


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
