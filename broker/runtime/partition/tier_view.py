"""Where a partition's local log meets its table: cold end, what waits to ship, what may be freed.

The driver asks and tells; the log is the driver's, only its list of segments comes here. It does
not ship, and it does not free: the first is tiering's, the second the owner's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.core.retention import LocalRetention, plan_local_frees
from broker.errors import OverloadedError, SegmentCorruptError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo


class TierView:
    """What one partition knows of its table. Numbers are replaced whole; any thread reads."""

    def __init__(
        self,
        partition_id: PartitionId,
        config: StreamConfig,
        cold_end: Offset,
        record: Callable[[int, Offset], None],
    ) -> None:
        """Begin with what the metadata says is in the table; ``record`` tells it more."""
        self.cold_end = cold_end
        self.unshipped_bytes = 0  # on local disk, not in the table
        self._partition_id = partition_id
        self._config = config
        self._record = record
        self._sealed_count = 0

    def watch(self, segments: Sequence[SegmentInfo]) -> None:
        """Count what is not in the table."""
        self.unshipped_bytes = sum(
            one.size_bytes for one in segments if one.end_offset > self.cold_end
        )

    def rolled(self, sealed_count: int) -> bool:
        """Tell whether segments were sealed since the last call. Owner only: another thread
        would hide a roll.
        """  # noqa: D205 - one thought
        before, self._sealed_count = self._sealed_count, sealed_count
        return sealed_count != before

    def record(self, cold_end: Offset) -> None:
        """Let the metadata log record a cold end. Blocks until it has it."""
        self._record(self._partition_id.number, cold_end)
        self.cold_end = max(self.cold_end, cold_end)

    def learn(self, cold_end: Offset) -> bool:
        """Take over what the metadata says, only ever forward; tell whether it is news."""
        news = cold_end > self.cold_end
        if news:
            self.cold_end = cold_end
        return news

    def overload(self) -> OverloadedError | None:
        """Return why no more may be written before something is shipped, if so."""
        limit = self._config.unshipped_bytes_max
        if limit is None or self.unshipped_bytes <= limit:
            return None
        return OverloadedError(
            f"{self.unshipped_bytes} bytes of {self._partition_id} wait to be tiered; the "
            f"stream allows {limit} (unshipped_bytes_max)",
            unshipped_bytes=self.unshipped_bytes,
            limit_bytes=limit,
        )

    def replacement(self, log_end: Offset) -> SegmentCorruptError | None:
        """Return the error of a log that ends below what is in its table, if it does."""
        if log_end >= self.cold_end:
            return None
        return below_table(str(self._partition_id), log_end, self.cold_end)

    def plan_frees(
        self,
        segments: Callable[[], Sequence[SegmentInfo]],
        lease_floor: Callable[[], Offset],
        now_us: int,
    ) -> Sequence[SegmentInfo]:
        """Return what local retention gives up and no lease needs.

        The cold end is looked at before the leases: a lease taken in between starts at or above
        that cold end, so it holds nothing of what is freed here.
        """
        cold_end = self.cold_end
        floor = min(cold_end, lease_floor())
        return plan_local_frees(
            segments(), floor=floor, now_us=now_us, retention=LocalRetention.of(self._config)
        )


def below_table(partition: str, log_end: Offset, cold_end: Offset) -> SegmentCorruptError:
    """Return the error of a log that ends below what its table holds."""
    return SegmentCorruptError(
        f"the local log of {partition} ends at {log_end}, below the {cold_end} already in its "
        "table: local files were lost or replaced",
        offset=log_end,
        expected=cold_end,
    )
