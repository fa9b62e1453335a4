"""The local log and the table of a partition: cold end, unshipped bytes, segments to free.

This module only sees the list of the log's segments. It does not ship records: tiering does. It
does not free segments: the partition's turn does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.core.retention import LocalRetention, plan_local_frees
from broker.errors import OverloadedError, SegmentCorruptError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo

RecordColdEnd = Callable[[PartitionId, Offset], None]  # durably in the metadata; blocks


class Sized(Protocol):
    """A write that takes so many bytes in the log."""

    @property
    def size_bytes(self) -> int:
        """Bytes without the head of a segment."""


class TierView:
    """The facts of one partition's table. A number is replaced as a whole; any thread reads."""

    def __init__(
        self,
        partition_id: PartitionId,
        config: StreamConfig,
        cold_end: Offset,
        record: RecordColdEnd,
        *,
        purged_end: Offset = Offset(0),  # noqa: B008 - a plain number
        remote_start: Offset = Offset(0),  # noqa: B008 - a plain number
    ) -> None:
        """Begin with the metadata's ends; ``record`` writes a higher cold end to the metadata."""
        self.cold_end = cold_end
        self.purged_end = purged_end  # records below it were deleted on purpose
        self.remote_start = remote_start  # records below it expired, in both tiers
        self.unshipped_bytes = 0  # bytes on local disk that are not in the table
        self._partition_id = partition_id
        self._config = config
        self._record = record
        self._sealed_count = 0
        self._lock = threading.Lock()
        self._accepted_bytes = 0  # of writes that were accepted and are not in the log yet

    def configure(self, config: StreamConfig) -> None:
        """Take changed settings."""
        self._config = config

    def watch(self, segments: Sequence[SegmentInfo]) -> None:
        """Count again the bytes that are not in the table."""
        self.unshipped_bytes = sum(
            one.size_bytes for one in segments if one.end_offset > self.floor
        )

    def rolled(self, sealed_count: int) -> bool:
        """Tell whether segments were sealed since the last call.

        Only the owner may call it: a call of another thread would hide a roll from the owner.
        """
        before, self._sealed_count = self._sealed_count, sealed_count
        return sealed_count != before

    def record(self, cold_end: Offset) -> None:
        """Record a cold end in the metadata. Blocks until the metadata log has it."""
        self._record(self._partition_id, cold_end)
        self.cold_end = max(self.cold_end, cold_end)

    def learn(self, cold_end: Offset) -> bool:
        """Take a higher cold end from the metadata; return whether it was higher."""
        news = cold_end > self.cold_end
        if news:
            self.cold_end = cold_end
        return news

    def learn_purged(self, purged_end: Offset) -> bool:
        """Take a higher purged end from the metadata; return whether it was higher."""
        news = purged_end > self.purged_end
        if news:
            self.purged_end = purged_end
        return news

    def learn_expired(self, remote_start: Offset) -> bool:
        """Take a higher remote start from the metadata; return whether it was higher."""
        news = remote_start > self.remote_start
        if news:
            self.remote_start = remote_start
        return news

    @property
    def gone_end(self) -> Offset:
        """Records below this offset are not read from the log: they were purged, or expired."""
        return max(self.purged_end, self.remote_start)

    @property
    def floor(self) -> Offset:
        """No log may end below this offset: what was there is in the table, or was purged."""
        return max(self.cold_end, self.purged_end)

    @property
    def bounded(self) -> bool:
        """Whether the stream bounds the bytes that wait to be shipped."""
        return self._config.unshipped_bytes_max is not None

    def accept(self, size_bytes: int) -> None:
        """Count a write against the bound before it is queued; :meth:`settle` ends that.

        Writes that wait are counted, so a burst cannot pass the bound together.

        Raises:
            OverloadedError: with this write too many bytes would wait to be shipped.
        """
        size_bytes += SEGMENT_HEADER_SIZE  # the write may begin a segment
        with self._lock:  # counted without a bound, too: there may be one when the write settles
            limit = self._config.unshipped_bytes_max
            waiting = self.unshipped_bytes + self._accepted_bytes
            if limit is None or waiting + size_bytes <= limit:
                self._accepted_bytes += size_bytes
                return
        raise OverloadedError(
            f"{waiting} bytes of partition {self._partition_id} wait to be shipped to the table; "
            f"the stream allows {limit} (unshipped_bytes_max), and a write of {size_bytes} bytes "
            "would exceed that: try again later",
            unshipped_bytes=waiting,
            limit_bytes=limit,
        )

    def settle(self, writes: Sequence[Sized]) -> None:
        """Count accepted writes no more: they are in the log, or were refused."""
        with self._lock:
            for write in writes:
                self._accepted_bytes -= write.size_bytes + SEGMENT_HEADER_SIZE

    def replacement(self, log_end: Offset) -> SegmentCorruptError | None:
        """Return the error if the log ends below its floor, or None."""
        if log_end >= self.floor:
            return None
        return below_floor(str(self._partition_id), log_end, self.floor)

    def plan_frees(
        self,
        segments: Callable[[], Sequence[SegmentInfo]],
        lease_floor: Callable[[], Offset],
        now_us: int,
    ) -> Sequence[SegmentInfo]:
        """Return the segments that are gone, or that neither local retention nor a lease keeps.

        The ends are read before the leases. A lease that is taken in between starts at or above
        them, so it holds no segment of this plan.
        """
        cold_end, gone_end = self.cold_end, self.gone_end
        held = lease_floor()
        return plan_local_frees(
            segments(),
            floor=min(cold_end, held),
            purged=min(gone_end, held),
            now_us=now_us,
            retention=LocalRetention.of(self._config),
        )


def below_floor(partition: str, log_end: Offset, floor: Offset) -> SegmentCorruptError:
    """Return the error of a log that ends where its records are in the table, or were purged."""
    return SegmentCorruptError(
        f"the local log of partition {partition} ends at {log_end}, and its records below {floor} "
        "are in its table or were purged: local files were lost or replaced",
        offset=log_end,
        expected=floor,
    )
