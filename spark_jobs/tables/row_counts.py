"""Compares the rows that a table lists with the counts in the claims of appenders. Pure.

A RESTORE, a DELETE or a cut log removes rows, but does not undo a transaction. An appender that
used only its watermark would then append after missing rows. So every append stores its count of
rows in the commit, and the count is compared with the statistics of the same version. Rows that a
foreign writer added under our offsets are found as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.errors import TableMismatchError
from spark_jobs.tables.plan import AppendClaims


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """One file: the number of its rows with an offset, and their bounds; None: not known."""

    path: str
    rows_count: int
    partition: int | None  # None: several partitions, or not known
    min_offset: int | None
    max_offset: int | None


def check_rows(files: Sequence[FileRows], claims: AppendClaims, *, uri: str) -> None:
    """Compare the counted rows with the claimed ones, per partition if the files allow it.

    Raises:
        TableMismatchError: they differ, or a row lies outside every claim. Facts: uri, expected,
            found.
    """
    expected = sum(claim.rows_count for claim in claims.of.values())
    found = sum(file.rows_count for file in files)
    if found != expected:
        raise _differs(uri, "the table", expected, found)
    streams = {uuid for _, uuid, _ in claims.of}
    holding = [file for file in files if file.rows_count]
    if len(streams) != 1 or any(file.partition is None for file in holding):
        return  # files mix streams or partitions, so only the sum can be compared
    for partition in sorted(
        {file.partition or 0 for file in holding} | {p for _, _, p in claims.of}
    ):
        ours = [claim for (_, _, number), claim in claims.of.items() if number == partition]
        theirs = [file for file in holding if file.partition == partition]
        expected = sum(claim.rows_count for claim in ours)
        found = sum(file.rows_count for file in theirs)
        if found != expected:
            raise _differs(uri, f"partition {partition}", expected, found)
        low = min((int(claim.start) for claim in ours), default=0)
        high = max((int(claim.end) for claim in ours), default=0)
        for file in theirs:
            if file.min_offset is None or file.max_offset is None:
                continue
            if not low <= file.min_offset <= file.max_offset < high:
                raise TableMismatchError(
                    f"{uri}: {file.path} holds offsets {file.min_offset} to {file.max_offset} of "
                    f"partition {partition}, but the transactions claim only [{low}, {high})",
                    uri=uri,
                    path=file.path,
                )


def _differs(uri: str, where: str, expected: int, found: int) -> TableMismatchError:
    what = "are missing" if found < expected else "were added by another writer"
    return TableMismatchError(
        f"{uri}: {where} should hold {expected} appended rows, but holds {found}: "
        f"{abs(expected - found)} {what} (by a RESTORE, a DELETE or a foreign write?)",
        uri=uri,
        expected=expected,
        found=found,
    )
