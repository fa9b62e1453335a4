"""A partition's view of its table: the cold end only grows, and limits what is freed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from broker.errors import OverloadedError
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo
from broker.runtime.partition.tier_view import TierView

PARTITION = PartitionId(StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(0))


def _view(cold_end: int) -> TierView:
    config = StreamConfig(subject="s", local_retention_bytes=0)
    return TierView(PARTITION, config, Offset(cold_end), lambda _number, _end: None)


def test_old_news_do_not_move_the_cold_end_back() -> None:
    """Metadata that was read later may be older than the table; the known cold end stays."""
    view = _view(10)
    assert not view.learn(Offset(10))
    assert not view.learn(Offset(4))
    assert view.cold_end == 10
    assert view.learn(Offset(12))
    assert view.cold_end == 12
    view.record(Offset(11))
    assert view.cold_end == 12


def test_nothing_above_the_cold_end_or_a_lease_is_freed() -> None:
    """The lower of the two is the limit."""
    view = _view(20)
    segments = [
        SegmentInfo(Offset(at), Offset(at + 10), 100, max_timestamp_us=0, sealed=True)
        for at in (0, 10, 20)
    ]

    def freed(floor: int) -> list[int]:
        return [one.base_offset for one in view.plan_frees(lambda: segments, lambda: floor, 1)]  # type: ignore[arg-type, return-value]

    assert freed(OFFSET_MAX) == [0, 10]
    assert freed(15) == [0]
    assert freed(0) == []


def test_a_bound_that_comes_later_counts_the_writes_that_wait() -> None:
    """Writes accepted before the bound are counted when they settle, so the count stays right."""
    view = _view(0)
    write = _Write(size_bytes=100)
    view.accept(100)
    bounded = StreamConfig(subject="s", segment_bytes_max=4096, unshipped_bytes_max=8192)
    view.configure(bounded)
    with pytest.raises(OverloadedError):
        view.accept(8000)
    view.settle([write])
    view.accept(8000)
    with pytest.raises(OverloadedError):
        view.accept(100)
    view.configure(StreamConfig(subject="s"))
    view.accept(100)


@dataclass(frozen=True)
class _Write:
    size_bytes: int
