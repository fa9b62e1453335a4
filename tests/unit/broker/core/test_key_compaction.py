"""Which segments key compaction takes, and when."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.core.key_compaction import (
    TICKETS_MAX,
    AskedPasses,
    CompactedSoFar,
    CompactionRule,
    PassReport,
    compaction_line,
    line_reason,
    plan_compaction,
    records_left,
)
from broker.errors import OverloadedError
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_state import PassState
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo
from cases import seeds

RULE = CompactionRule(tombstone_us=100, dirty_percent_min=50)


def segments(*sizes: int, sparse: int = 0) -> list[SegmentInfo]:
    """Return segments of ten offsets each, made at 1000, 1100, …; the last one is active."""
    return [
        SegmentInfo(
            Offset(10 * at), Offset(10 * at + 10), size, 5, at < len(sizes) - 1, at < sparse,
            1000 + 100 * at,
        )
        for at, size in enumerate(sizes)
    ]  # fmt: skip


def taken(
    found: list[SegmentInfo], *, line: int = 1 << 40, end: int = 0,
    tombstones: tuple[int, ...] = (), now_us: int = 0, forced: bool = False, percent: int = 50,
) -> list[tuple[int, bool]]:  # fmt: skip
    """Return base offset and ``drops_tombstones`` of the planned segments."""
    plan = plan_compaction(
        found,
        line=Offset(line),
        so_far=CompactedSoFar(end=Offset(end), tombstones=frozenset(map(Offset, tombstones))),
        rule=CompactionRule(tombstone_us=100, dirty_percent_min=percent),
        now_us=now_us,
        forced=forced,
    )
    return (
        [] if plan is None else [(one.base_offset, one.drops_tombstones) for one in plan.segments]
    )


@pytest.mark.parametrize(
    ("start", "end", "removed", "left"),
    [
        (0, 40, (3, 10), 27),
        (0, 35, (3, 10), 22),  # the end is in a dense segment
        (10, 40, (3, 10), 20),
        (20, 40, (3, 10), 20),
        (5, 40, (3, 10), None),  # purged up to the middle of a compacted segment
        (0, 15, (3, 10), None),
        (0, 40, (3, None), None),  # an older build wrote its index
        (20, 40, (3, None), 20),
    ],
)
def test_the_records_that_are_left_are_counted_where_it_is_known(
    start: int, end: int, removed: tuple[int | None, ...], left: int | None
) -> None:
    """Never guessed."""
    found = [
        replace(one, removed_count=count)
        for one, count in zip(segments(1, 1, 1, 1, sparse=2), (*removed, 0, 0), strict=True)
    ]
    assert records_left(found, Offset(start), Offset(end)) == left


@pytest.mark.parametrize(
    ("log_end", "ends", "reason"),
    [
        (9, {"high_watermark": 9, "cold_end": None, "lease_floor": 9}, None),
        (9, {"high_watermark": 7, "cold_end": None, "lease_floor": 9}, "not committed"),
        (9, {"high_watermark": 9, "cold_end": 7, "lease_floor": 9}, "tier flush"),
        (9, {"high_watermark": 9, "cold_end": 7, "lease_floor": 5}, "lease"),
        (9, {"high_watermark": 9, "cold_end": None, "lease_floor": 9, "copied_end": 4}, "copies"),
    ],
)
def test_the_reason_for_the_line_is_what_holds_most(
    log_end: int, ends: dict[str, Any], reason: str | None
) -> None:
    """There is none if nothing is held."""
    found = line_reason(log_end=Offset(log_end), **{"copied_end": OFFSET_MAX, **ends})
    assert found is None if reason is None else reason in str(found)


def test_tickets_are_bounded_and_remembered_for_a_while() -> None:
    """The oldest that is over is forgotten; too many that wait are refused."""
    asked = AskedPasses()
    report = PassReport(state=PassState.COMPACTED)
    for at in range(TICKETS_MAX):
        assert asked.state_of(f"t{at}") is None
    with pytest.raises(OverloadedError):
        asked.state_of("one more")
    assert asked.state_of("t0") is None, "a known ticket may be asked about"
    asked.end_all(report)
    assert asked.state_of("t0") == report
    assert asked.state_of("one more") is None
    asked.end_all(report)
    assert asked.state_of("t0") is None, "it was forgotten, and waits again"


def test_who_asks_during_a_pass_waits_for_the_next_one() -> None:
    """Its last record may have come after the pass had begun."""
    asked, report = AskedPasses(), PassReport(state=PassState.COMPACTED)
    assert asked.state_of("early") is None
    asked.begin()
    assert asked.state_of("late") is None
    asked.end(report)
    assert (asked.state_of("early"), asked.state_of("late")) == (report, None)
    asked.begin()
    asked.end(report)
    assert asked.state_of("late") == report


def test_the_line_is_the_lowest_of_what_holds_records() -> None:
    """High watermark, leases, followers' copies, and for a tiered stream the cold end."""

    def line(high_watermark: int, cold_end: int | None, lease_floor: int, copied_end: int) -> int:
        return compaction_line(
            high_watermark=Offset(high_watermark),
            cold_end=None if cold_end is None else Offset(cold_end),
            lease_floor=Offset(lease_floor),
            copied_end=Offset(copied_end),
        )

    assert line(9, None, 20, 20) == 9
    assert line(9, 7, 20, 20) == 7
    assert line(9, 12, 3, 20) == 3
    assert line(9, None, 20, 5) == 5


def test_the_active_segment_and_what_is_above_the_line_stay() -> None:
    """A segment that the line cuts is above it; the active one is never taken."""
    found = segments(1, 1, 1, 1)
    assert taken(found) == [(0, False), (10, False), (20, False)]
    assert taken(found, line=29) == [(0, False), (10, False)]
    assert taken(found, line=9) == []
    assert taken(found, line=9, forced=True) == []
    assert taken(segments(1)) == []


def test_a_pass_waits_for_enough_that_is_new() -> None:
    """So many percent of the bytes below the line; forced, it waits for nothing."""
    found = segments(60, 20, 20, 1)
    assert taken(found, end=10) == []
    assert taken(found, end=10, percent=40) != []
    assert taken(found, end=30, percent=1) == [], "nothing is new"
    assert len(taken(found, end=30, forced=True)) == 3


def test_tombstones_go_when_their_segment_was_sealed_long_enough_ago() -> None:
    """By the time at which the next segment began on this broker; an empty one has none."""
    found = segments(1, 1, 1, 1)
    assert taken(found, now_us=1299) == [(0, True), (10, False), (20, False)]
    assert taken(found, now_us=1300) == [(0, True), (10, True), (20, False)]
    fresh = [*found[:3], SegmentInfo(Offset(30), Offset(30), 0, 0, False)]
    assert taken(fresh, now_us=1 << 50)[-1] == (20, False)


def test_a_tombstone_that_may_go_is_a_reason_for_a_pass() -> None:
    """Only where one is known to be; after a restart, where a segment was compacted before."""
    found = segments(1, 1, 1, 1, sparse=2)
    assert taken(found, end=30, tombstones=(10,), now_us=1299) == []
    assert taken(found, end=30, tombstones=(10,), now_us=1300) != []
    so_far = CompactedSoFar.found_in(found)
    assert so_far.end == 20
    assert sorted(so_far.tombstones) == [0, 10]
    assert CompactedSoFar.found_in(segments(1, 1)) == CompactedSoFar()


@pytest.mark.parametrize("seed", seeds(30))
def test_a_plan_is_a_prefix_below_the_line(seed: int) -> None:
    """Whatever the numbers: the oldest segments, without a gap, sealed, below the line."""
    rng = random.Random(seed)
    found = segments(*(rng.randrange(100) for _ in range(rng.randrange(1, 9))))
    line = rng.randrange(100)
    plan = plan_compaction(
        found,
        line=Offset(line),
        so_far=CompactedSoFar(end=Offset(rng.choice((0, 10, 20)))),
        rule=CompactionRule.of(StreamConfig(subject="s", compact_dirty_percent=1)),
        now_us=rng.randrange(5000),
        forced=rng.random() < 0.5,
    )
    if plan is None:
        return
    assert [one.base_offset for one in plan.segments] == [
        10 * at for at in range(len(plan.segments))
    ]
    assert plan.end <= min(line, found[-1].base_offset)
    drops = [one.drops_tombstones for one in plan.segments]
    assert drops == sorted(drops, reverse=True), "the older segments may drop them first"


def test_tombstones_of_an_added_partition_stay_for_ever() -> None:
    """They hide what their keys have in lower partitions, where the keys were before."""
    config = StreamConfig(subject="s", compact=True, tombstone_delay_ms=0)
    assert _drops(CompactionRule.of(config)) == [True, True, True]
    assert _drops(CompactionRule.of(config, keeps_tombstones=True)) == [False, False, False]


def _drops(rule: CompactionRule) -> list[bool]:
    plan = plan_compaction(
        segments(1, 1, 1, 1), line=Offset(100), so_far=CompactedSoFar(), rule=rule,
        now_us=1 << 50, forced=True,
    )  # fmt: skip
    assert plan is not None
    return [one.drops_tombstones for one in plan.segments]
