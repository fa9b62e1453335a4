"""Which segments retention may free without forgetting a message id that may be sent again."""

from __future__ import annotations

from broker.core.message_ids import digest_of
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo
from broker.runtime.partition.retry_tables import RetryTables

CONFIG = StreamConfig(subject="s", dedup_window_ms=1000)
NOW_US = 10_000_000


def _segment(base: int, stamp_us: int) -> SegmentInfo:
    return SegmentInfo(Offset(base), Offset(base + 10), 100, stamp_us, sealed=True)


def test_who_follows_keeps_the_window_for_the_day_it_leads() -> None:
    """A follower keeps no ids; as a leader it reads them from its log (found by chaos, seed 41)."""
    tables = RetryTables(CONFIG)
    plan = [_segment(0, NOW_US - 3_000_000), _segment(10, NOW_US - 500_000)]
    assert tables.free_of_ids(plan, NOW_US, leads=False) == [0]
    assert tables.free_of_ids(plan, NOW_US, leads=True) == [0, 10], "no id is in the window"


def test_who_leads_keeps_the_segments_of_the_ids_it_remembers() -> None:
    """The boundary is exact to one record."""
    tables = RetryTables(CONFIG)
    tables.window.add(digest_of("an-id"), Offset(12), NOW_US)
    plan = [_segment(0, NOW_US), _segment(10, NOW_US)]
    assert tables.free_of_ids(plan, NOW_US, leads=True) == [0]
