"""Proves that a commit removes the first files of a partition, all of them up to an offset. Pure.

Expiry and key compaction are the commits that do so; each compares the rest with its account.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiering.table.commit_files import NotOursError
from tiering.table.table import DataFile


def require_removed_below(
    files: Mapping[str, DataFile], partition: int, end: int, removed: set[str]
) -> int:
    """Check the paths that a commit removes; return how many rows these files had.

    ``files`` are those of the version before. Raises NotOursError with the reason.
    """
    due, rows = set(), 0
    for path, file in files.items():
        if file.partition != partition:
            continue
        if file.min_offset is None or file.end_offset is None or file.records_count is None:
            raise NotOursError(f"{path} has no statistics, so it is not known what it had")
        if file.end_offset <= end:
            due.add(path)
            rows += file.records_count
        elif file.min_offset < end:
            raise NotOursError(f"{path} has records on both sides of {end}")
    if removed != due:
        raise NotOursError(f"it removes other files than those below {end}")
    return rows
