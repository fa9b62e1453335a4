"""Segments are freed oldest first, without gaps, and only below the floor."""

from __future__ import annotations

from broker.core.retention import LocalRetention, plan_local_frees
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo


def _segments() -> list[SegmentInfo]:
    return [
        SegmentInfo(Offset(n * 10), Offset(n * 10 + 10), 100, max_timestamp_us=n, sealed=n < 4)
        for n in range(5)
    ]


def test_an_old_segment_waits_for_the_young_one_below_it() -> None:
    """Times that clients send are in no order; the log must stay without gaps."""
    young, old = (
        SegmentInfo(Offset(n), Offset(n + 10), 100, max_timestamp_us=stamp_us, sealed=True)
        for n, stamp_us in ((0, 10), (10, 0))
    )
    retention = LocalRetention(keep_bytes=10_000, keep_us=9)
    plan = plan_local_frees([young, old], floor=Offset(99), now_us=10, retention=retention)
    assert plan == []


def _bases(floor: int, keep_bytes: int, keep_us: int | None = None) -> list[int]:
    plan = plan_local_frees(
        _segments(),
        floor=Offset(floor),
        now_us=10,
        retention=LocalRetention(keep_bytes=keep_bytes, keep_us=keep_us),
    )
    return [one.base_offset for one in plan]


def test_size_keeps_the_newest_bytes() -> None:
    """With 500 bytes stored and 250 to keep, three of 100 must go."""
    assert _bases(floor=50, keep_bytes=250) == [0, 10, 20]


def test_nothing_above_the_floor_is_freed() -> None:
    """The floor is the cold end or a lease: a segment that crosses it stays."""
    assert _bases(floor=15, keep_bytes=0) == [0]
    assert _bases(floor=9, keep_bytes=0) == []


def test_the_active_segment_stays() -> None:
    """Even with nothing to keep, the segment being written is not freed."""
    assert _bases(floor=1000, keep_bytes=0) == [0, 10, 20, 30]


def test_age_frees_even_when_there_is_room() -> None:
    """Old segments go although the bytes would fit; the first young one stops the plan."""
    assert _bases(floor=50, keep_bytes=10_000, keep_us=9) == [0, 10]


def test_the_retention_of_a_stream_is_in_milliseconds() -> None:
    """Its configuration says milliseconds, segments say microseconds."""
    config = StreamConfig(subject="s", local_retention_bytes=7, local_retention_ms=20)
    assert LocalRetention.of(config) == LocalRetention(keep_bytes=7, keep_us=20_000)


def test_what_was_purged_is_freed_whatever_retention_keeps() -> None:
    """Whole segments only, sealed ones, oldest first; then retention decides as before."""

    def bases(purged: int, *, floor: int = 0, keep_bytes: int = 10_000) -> list[int]:
        plan = plan_local_frees(
            _segments(),
            floor=Offset(floor),
            purged=Offset(purged),
            now_us=10,
            retention=LocalRetention(keep_bytes=keep_bytes, keep_us=None),
        )
        return [one.base_offset for one in plan]

    assert bases(0) == []
    assert bases(25) == [0, 10]
    assert bases(99) == [0, 10, 20, 30], "the active segment stays"
    assert bases(10, floor=50, keep_bytes=350) == [0, 10], "what was purged counts as freed"
    assert bases(10, floor=50, keep_bytes=400) == [0]
