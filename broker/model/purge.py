"""The result of a purge of a partition, and the errors for readers of records that are gone."""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import ExpiredError, PurgedError
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """The result of a purge: the records ``[start, end)`` of a partition were deleted.

    Equal bounds: no record was deleted. ``purged_end`` is the first offset that is not purged now.
    A purge that is repeated, because the answer to the first one was lost, deletes nothing; its
    ``purged_end`` tells the end of the first one. With ``in_table`` only the copies on the brokers'
    disks were deleted: readers get the records from the stream's table, as before.
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


def expired_error(partition: str, offset: Offset, *, start: Offset, end: Offset) -> ExpiredError:
    """Return the error of a read below the remote start; ``end`` is the high watermark."""
    return ExpiredError(
        f"the records of {partition} below {start} have expired by the stream's remote retention, "
        f"and offset {offset} was asked for: read from {start} on",
        offset=offset,
        start=start,
        end=end,
    )
