"""Which local segments may be freed: only what the table holds, nothing a lease needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRetention:
    """How much of what is already in the table stays on local disk as well."""

    keep_bytes: int
    keep_us: int | None  # None: size alone decides

    @classmethod
    def of(cls, config: StreamConfig) -> LocalRetention:
        """Return what a stream's configuration says."""
        keep_ms = config.local_retention_ms
        return cls(
            keep_bytes=config.local_retention_bytes,
            keep_us=None if keep_ms is None else keep_ms * 1000,
        )


def plan_local_frees(
    segments: Sequence[SegmentInfo],
    *,
    floor: Offset,
    now_us: int,
    retention: LocalRetention,
) -> list[SegmentInfo]:
    """Choose sealed segments to free, oldest first and without gaps; touches no file.

    ``floor`` is the smaller of the recorded cold end and every lease's hold: a segment that ends
    above it stays, whatever the retention says. The shell may crash after any prefix of the plan.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention.keep_bytes

    def freeable(segment: SegmentInfo) -> bool:
        nonlocal excess_bytes
        if not segment.sealed or segment.end_offset > floor:
            return False
        old = (
            retention.keep_us is not None and now_us - segment.max_timestamp_us >= retention.keep_us
        )
        if not old and excess_bytes <= 0:
            return False
        excess_bytes -= segment.size_bytes
        return True

    return list(itertools.takewhile(freeable, segments))
