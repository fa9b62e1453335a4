"""The rows that a table lists, counted against what appenders claim."""

from __future__ import annotations

import pytest

from broker.errors import TableMismatchError
from broker.model.offsets import Offset
from spark_jobs.tables.plan import AppendClaim, AppendClaims
from spark_jobs.tables.row_counts import FileRows, check_rows


def claims(*items: tuple[str, str, int, int, int, int]) -> AppendClaims:
    """Return claims from (app, uuid, partition, start, end, rows)."""
    return AppendClaims(
        of={
            (app, uuid, number): AppendClaim(start=Offset(start), end=Offset(end), rows_count=rows)
            for app, uuid, number, start, end, rows in items
        }
    )


def file(
    rows: int, partition: int | None = 0, low: int | None = None, high: int | None = None
) -> FileRows:
    """Return a file."""
    return FileRows(path="f", rows_count=rows, partition=partition, min_offset=low, max_offset=high)


BOTH = claims(("a", "u", 0, 0, 10, 10), ("a", "u", 1, 5, 9, 3))


@pytest.mark.parametrize(
    "files",
    [
        [file(10, 0, 0, 9), file(3, 1, 5, 8)],
        [file(4, 0, 0, 3), file(6, 0, 4, 9), file(3, 1, 6, 8), file(0, None)],
        [file(13, None, 0, 9)],  # OPTIMIZE put both partitions into one file
        [file(10, 0), file(3, 1)],
    ],
)
def test_what_agrees_is_accepted(files: list[FileRows]) -> None:
    """The rows may lie in any files; files without offsets have no rows of a stream."""
    check_rows(files, BOTH, uri="x")


@pytest.mark.parametrize(
    "files",
    [
        [],
        [file(10, 0, 0, 9)],
        [file(10, 0, 0, 9), file(4, 1, 5, 8)],
        [file(9, 0, 0, 8), file(4, 1, 5, 8)],  # the sum is right, the partitions are not
        [file(10, 0, 0, 10), file(3, 1, 5, 8)],  # an offset above the claim
        [file(10, 0, 0, 9), file(3, 1, 4, 8)],
        [file(10, 0, 0, 9), file(3, 2, 5, 8)],
    ],
)
def test_what_differs_is_refused(files: list[FileRows]) -> None:
    """Rows that are missing, too many, or lie elsewhere."""
    with pytest.raises(TableMismatchError):
        check_rows(files, BOTH, uri="x")


def test_two_streams_in_one_table_are_counted_together() -> None:
    """Their offsets look alike, so only the sum can tell."""
    two = claims(("a", "u", 0, 0, 10, 10), ("b", "w", 0, 0, 50, 5))
    check_rows([file(15, 0, 0, 49)], two, uri="x")
    with pytest.raises(TableMismatchError) as refused:
        check_rows([file(14, 0, 0, 49)], two, uri="x")
    assert (refused.value.expected, refused.value.found) == (15, 14)


def test_a_table_of_others_is_nobodys_claim() -> None:
    """Rows with offsets before any append of ours: another name for the columns is needed."""
    with pytest.raises(TableMismatchError):
        check_rows([file(1)], AppendClaims(), uri="x")
    check_rows([file(0)], AppendClaims(), uri="x")
