"""Which local segments may be freed: only segments in the table that no lease needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRetention:
    """How many of the records that are in the table stay on local disk as well."""

    keep_bytes: int
    keep_us: int | None  # None: age does not matter
    keep_records: int | None = None  # None: the number does not matter

    @classmethod
    def of(cls, config: StreamConfig) -> LocalRetention:
        """Return the retention of a stream's configuration."""
        keep_ms = config.local_retention_ms
        return cls(
            keep_bytes=config.local_retention_bytes,
            keep_us=None if keep_ms is None else keep_ms * 1000,
            keep_records=config.local_retention_records,
        )


def plan_local_frees(
    segments: Sequence[SegmentInfo],
    *,
    floor: Offset,
    purged: Offset = Offset(0),  # noqa: B008 - a plain number
    now_us: int,
    retention: LocalRetention,
) -> list[SegmentInfo]:
    """Choose sealed segments to free, oldest first and without gaps; touches no file.

    ``floor`` is the lowest of the recorded cold end and the offsets that leases hold. A segment
    that ends above ``floor`` stays, even if retention would free it. One that ends at or below
    ``purged`` is freed, whatever retention says. A crash after any part of the plan is safe.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention.keep_bytes
    excess_records = 0
    if segments and retention.keep_records is not None:
        held = segments[-1].end_offset - segments[0].base_offset
        excess_records = held - retention.keep_records

    def freeable(segment: SegmentInfo) -> bool:
        nonlocal excess_bytes, excess_records
        if not segment.sealed or segment.end_offset > max(floor, purged):
            return False
        old = segment.end_offset <= purged or (
            retention.keep_us is not None and now_us - segment.max_timestamp_us >= retention.keep_us
        )
        if not old and excess_bytes <= 0 and excess_records <= 0:
            return False
        excess_bytes -= segment.size_bytes
        excess_records -= segment.end_offset - segment.base_offset
        return True

    return list(itertools.takewhile(freeable, segments))
