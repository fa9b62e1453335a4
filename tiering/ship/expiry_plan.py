"""What remote retention lets expire: whole files, the oldest first, without gaps. Pure.

The newest records that a bound asks for are always kept: a file goes only if what remains still has
``keep_bytes`` bytes and ``keep_records`` records, or if all its records are older than ``keep_us``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from tiering.proof.coverage import overlapping
from tiering.table.expiries import FILES_MAX
from tiering.table.table import DataFile

_NOTHING: Final = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRetention:
    """How much of a partition's history its table keeps; None: that bound does not matter."""

    keep_us: int | None = None
    keep_bytes: int | None = None
    keep_records: int | None = None

    @classmethod
    def of(cls, config: StreamConfig) -> RemoteRetention:
        """Return the retention of a stream's configuration."""
        keep_ms = config.remote_retention_ms
        return cls(
            keep_us=None if keep_ms is None else keep_ms * 1000,
            keep_bytes=config.remote_retention_bytes,
            keep_records=config.remote_retention_records,
        )

    @property
    def keeps_all(self) -> bool:
        """Whether nothing ever expires."""
        return self.keep_us is None and self.keep_bytes is None and self.keep_records is None


def plan_expiry(
    files: Sequence[DataFile],
    held: OffsetRange,
    *,
    retention: RemoteRetention,
    limit: Offset,
    now_us: int,
    whole: Offset = _NOTHING,
) -> Offset:
    """Return the first offset of a partition that retention keeps; ``held.start``: it keeps all.

    ``files`` are the partition's files, which hold ``held``; below ``whole`` key compaction has
    removed records. No record at or above ``limit`` expires: readers hold these. Files without
    statistics, and what follows a gap, are kept.
    """
    groups = leading_groups(files, held, whole)
    left_records = sum(file.records_count or 0 for file in files)
    left_bytes = sum(file.size_bytes for file in files)
    start = held.start
    for group in groups:
        end = end_of(group)
        left_bytes -= sum(file.size_bytes for file in group)
        left_records -= sum(file.records_count or 0 for file in group)
        if end > limit or not _is_due(
            group, retention, left_bytes=left_bytes, left_records=left_records, now_us=now_us
        ):
            break
        start = end
    return start


def plan_removal(
    files: Sequence[DataFile], held: OffsetRange, *, upto: Offset, whole: Offset = _NOTHING
) -> tuple[Offset, list[DataFile]]:
    """Return the files that one commit removes, so that nothing above ``upto`` goes.

    Returns the partition's new start, and the files. Empty: a file that another process wrote has
    records on both sides of ``upto``, so the table keeps it for now. At most FILES_MAX files.
    """
    start, removed = held.start, list[DataFile]()
    for group in leading_groups(files, held, whole):
        if end_of(group) > upto or len(removed) + len(group) > FILES_MAX:
            break
        removed += group
        start = end_of(group)
    return start, removed


def leading_groups(
    files: Sequence[DataFile], held: OffsetRange, whole: Offset
) -> list[list[DataFile]]:
    """Return the groups of overlapping files from the start on, up to the first gap.

    Where a group begins at or below ``whole``, the offsets before it are gone by key compaction.
    """
    if any(file.min_offset is None or file.end_offset is None for file in files):
        return []
    found: list[list[DataFile]] = []
    expected = held.start
    for group in overlapping(files):
        least = min(file.min_offset or 0 for file in group)
        follows = least == expected or expected < least <= whole
        if not follows or end_of(group) > held.end:
            break
        found.append(group)
        expected = end_of(group)
    return found


def _is_due(
    group: Sequence[DataFile],
    retention: RemoteRetention,
    *,
    left_bytes: int,
    left_records: int,
    now_us: int,
) -> bool:
    if retention.keep_bytes is not None and left_bytes >= retention.keep_bytes:
        return True
    if retention.keep_records is not None and left_records >= retention.keep_records:
        return True
    newest = [file.max_timestamp_us for file in group]
    return retention.keep_us is not None and all(
        one is not None and now_us - one >= retention.keep_us for one in newest
    )


def end_of(group: Sequence[DataFile]) -> Offset:
    """Return the first offset above all rows of files that have statistics."""
    return Offset(max(file.end_offset or 0 for file in group))
