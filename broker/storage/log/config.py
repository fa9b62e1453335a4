"""How a log is cut into segments and how much of it a restart has to scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log is cut into segments and how much of it a restart has to scan."""

    segment_bytes_max: int = 128 * _MIB
    segment_age_ms_max: int = 600_000  # counted from the first batch of the segment
    index_interval_bytes: int = 64 * 1024
    preallocate_bytes: int = 8 * _MIB  # disk is reserved in steps of this, or a segment if smaller
    checkpoint_bytes: int = 32 * _MIB  # a restart scans, and writes again, about this much at most
    checkpoint_ms: int = 10_000  # and soon after the last write everything is vouched for

    def __post_init__(self) -> None:
        assert self.segment_bytes_max > SEGMENT_HEADER_SIZE, "a segment holds more than its header"
        assert self.segment_age_ms_max > 0, "a segment lives for a while"
        assert self.index_interval_bytes > 0, "an interval is positive"
        assert self.preallocate_bytes > 0, "disk is reserved in positive steps"
        assert self.checkpoint_bytes > 0, "checkpoints lie apart"
        assert self.checkpoint_ms > 0, "checkpoints lie apart"

    def fitting(self, size_bytes: int, sizes: Sequence[int]) -> int:
        """Return how many of the batches a segment of this size takes; at least one."""
        room = self.segment_bytes_max - max(size_bytes, SEGMENT_HEADER_SIZE)
        count = 0
        for size in sizes:
            room -= size
            if count and room < 0:
                break
            count += 1
        return count

    def is_aged(self, created_us: int, now_us: int) -> bool:
        """Tell whether a segment whose first batch is of ``created_us`` is to be sealed."""
        return now_us - created_us >= self.segment_age_ms_max * 1000
