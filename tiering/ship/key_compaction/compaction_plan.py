"""Which files of a partition's table key compaction takes, and when. Pure.

It takes the first files of the partition up to a *line*: what was compacted before, and what came
since. The line is where a file ends, at or below what readers hold, and never above the newest
file. It is worth the work when enough of the bytes below the line are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from tiering.ship.expiry_plan import end_of, leading_groups
from tiering.table.table import DataFile, TableSnapshot

NEW_FILES_MAX: Final = 1_000  # that one pass takes; the next pass takes the others
ROWS_MAX: Final = 100_000_000  # of one pass, which holds a byte for each


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionPlan:
    """The files of one pass: all of a partition's rows in ``range``, which begins at its start."""

    partition: int
    range: OffsetRange
    files: tuple[DataFile, ...]

    @property
    def rows_count(self) -> int:
        """Number of rows that the files have."""
        return sum(file.records_count or 0 for file in self.files)


def is_wanted(config: StreamConfig) -> bool:
    """Tell whether superseded records leave the table of a stream with this configuration."""
    return config.history == "compact"


def plan_key_compaction(
    snapshot: TableSnapshot, partition: int, *, limit: Offset, dirty_percent: int
) -> KeyCompactionPlan | None:
    """Return the files of the next pass; None: there is not enough to do yet.

    No record at or above ``limit`` goes: readers hold these. A pass ends above the one before.
    """
    files = [file for file in snapshot.files if file.partition == partition]
    held, whole = snapshot.range_of(partition), snapshot.whole_start(partition)
    chosen: list[DataFile] = []
    end, rows, old_bytes, new_files, new_bytes = whole, 0, 0, 0, 0
    for group in leading_groups(files, held, whole)[:-1]:
        size = sum(file.size_bytes for file in group)
        rows += sum(file.records_count or 0 for file in group)
        is_new = end_of(group) > whole
        new_files += len(group) if is_new else 0
        if end_of(group) > limit or rows > ROWS_MAX or new_files > NEW_FILES_MAX:
            break
        chosen += group
        end = max(end, end_of(group))
        old_bytes, new_bytes = old_bytes + size * (not is_new), new_bytes + size * is_new
    if end <= whole or new_bytes * 100 < dirty_percent * (old_bytes + new_bytes):
        return None
    return KeyCompactionPlan(
        partition=partition, range=OffsetRange(held.start, end), files=tuple(chosen)
    )
