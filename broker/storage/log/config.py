"""Sizes and ages of a log's segments, and how much of the log a restart must scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes and ages of a log's segments, and how much of the log a restart must scan."""

    segment_bytes_max: int = 128 * _MIB
    segment_age_ms_max: int = 600_000  # counted from the first batch of the segment
    index_interval_bytes: int = 64 * 1024
    preallocate_bytes: int = 8 * _MIB  # disk is reserved in such steps, or by segment if smaller
    checkpoint_bytes: int = 32 * _MIB  # a restart scans and rewrites about this much at most
    checkpoint_ms: int = 10_000  # an idle log has a checkpoint this long after its last write

    def __post_init__(self) -> None:
        assert self.segment_bytes_max > SEGMENT_HEADER_SIZE, "a segment is larger than its header"
        assert self.segment_age_ms_max > 0, "segment_age_ms_max must be positive"
        assert self.index_interval_bytes > 0, "index_interval_bytes must be positive"
        assert self.preallocate_bytes > 0, "preallocate_bytes must be positive"
        assert self.checkpoint_bytes > 0, "checkpoint_bytes must be positive"
        assert self.checkpoint_ms > 0, "checkpoint_ms must be positive"

    def fitting(self, size_bytes: int, sizes: Sequence[int]) -> int:
        """Return how many of the batches fit into a segment of this size; at least one."""
        room = self.segment_bytes_max - max(size_bytes, SEGMENT_HEADER_SIZE)
        count = 0
        for size in sizes:
            room -= size
            if count and room < 0:
                break
            count += 1
        return count

    def is_aged(self, created_us: int, now_us: int) -> bool:
        """Tell whether a segment whose first batch was written at ``created_us`` is too old.

        One that is as far in the future is, too: the clock was put back, and its age is not known.
        """
        return abs(now_us - created_us) >= self.segment_age_ms_max * 1000
