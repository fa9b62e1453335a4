"""What a purge did to a partition, and what a reader hears of purged records."""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import PurgedError
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """The records ``[start, end)`` of a partition were deleted on purpose; equal: there were none.

    ``purged_end`` is the first offset that is not purged now. A purge that is repeated, because the
    answer to the first one was lost, deletes nothing, and tells so how far the first one came.
    With ``in_table`` only the copies on the brokers' disks were: readers get the records from the
    stream's table, as before.
    """

    partition: int
    start: Offset
    end: Offset
    in_table: bool
    purged_end: Offset

    @property
    def records_count(self) -> int:
        """Number of offsets that were purged."""
        return max(0, self.end - self.start)


def purged_error(partition: str, offset: Offset, *, start: Offset, end: Offset) -> PurgedError:
    """Return the error of a read below ``start``; ``end`` is the high watermark."""
    return PurgedError(
        f"the records of {partition} below {start} were purged on purpose, and offset {offset} was "
        f"asked for: read from {start} on",
        offset=offset,
        start=start,
        end=end,
    )
