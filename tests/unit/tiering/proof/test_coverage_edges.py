"""What statistics prove about a table version, at the edges: one row more, less, or twice.

`make plant` moves these edges, and each test here is the one that notices.
"""

from __future__ import annotations

import numpy as np
import pytest

from broker.errors import GapError, OverlapError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from tiering.proof.coverage import overlapping, require_contiguous, unproven_groups
from tiering.table.table import DataFile

COLD = OffsetRange(Offset(10), Offset(30))


def _file(first: int, last: int, *, rows: int | None = None) -> DataFile:
    return DataFile(
        path=f"partition=0/{first}.parquet",
        size_bytes=1,
        partition=0,
        records_count=last - first + 1 if rows is None else rows,
        min_offset=Offset(first),
        max_offset=Offset(last),
        min_timestamp_us=None,
        max_timestamp_us=None,
    )


def test_files_that_hold_the_range_exactly_are_proved() -> None:
    """The files may come in any order, and no row has to be read."""
    assert unproven_groups([_file(20, 29), _file(10, 19)], COLD, partition=0) == []


@pytest.mark.parametrize(("first", "last"), [(9, 29), (10, 30)])
def test_rows_that_were_never_committed_are_named(first: int, last: int) -> None:
    """One below the start, one at the cold end."""
    with pytest.raises(TableMismatchError, match="never"):
        unproven_groups([_file(first, last)], COLD, partition=0)


@pytest.mark.parametrize(
    ("files", "start", "end"),
    [
        ([_file(11, 29)], 10, 11),
        ([_file(10, 18), _file(20, 29)], 19, 20),
        ([_file(10, 28)], 29, 30),
        ([], 10, 30),
    ],
)
def test_missing_offsets_are_named(files: list[DataFile], start: int, end: int) -> None:
    """Offsets are missing at the beginning, between two files, or at the end."""
    with pytest.raises(GapError) as caught:
        unproven_groups(files, COLD, partition=0)
    assert (caught.value.facts["start"], caught.value.facts["end"]) == (start, end)


def test_what_bounds_do_not_prove_is_read() -> None:
    """Files that share an offset, and a file with fewer rows than its bounds span."""
    shared = [_file(10, 20), _file(20, 29)]
    assert overlapping(shared) == [shared]
    assert unproven_groups(shared, COLD, partition=0) == [shared]
    few = [_file(10, 29, rows=19)]
    assert unproven_groups(few, COLD, partition=0) == [few]


def test_offsets_that_were_read_are_there_once() -> None:
    """The offsets may come in any order."""
    require_contiguous(np.array([3, 1, 2], dtype=np.int64), partition=0)
    with pytest.raises(OverlapError) as twice:
        require_contiguous(np.array([1, 2, 2, 3], dtype=np.int64), partition=0)
    assert (twice.value.facts["start"], twice.value.facts["end"]) == (2, 3)
    with pytest.raises(GapError) as gap:
        require_contiguous(np.array([1, 4], dtype=np.int64), partition=0)
    assert (gap.value.facts["start"], gap.value.facts["end"]) == (2, 4)
