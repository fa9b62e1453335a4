"""What is committed follows from synced ends alone, and never goes back."""

from __future__ import annotations

import pytest

from broker.core.isr import high_watermark
from broker.core.leader import AdvanceHighWatermark, LogSynced, PartitionLeader
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset

A, B = BrokerId("a"), BrokerId("b")


def test_the_high_watermark_waits_for_the_slowest_in_sync_replica() -> None:
    """It is the smallest synced end of the ISR, whatever others have."""
    assert high_watermark({A: Offset(9), B: Offset(4)}, {A, B}) == 4
    assert high_watermark({A: Offset(9), B: Offset(4)}, {A}) == 9


def test_syncing_advances_once_and_only_forward() -> None:
    """The same synced end twice has no effect; a smaller one is a caller's bug."""
    leader = PartitionLeader(A, LeaderEpoch(1), Offset(5))
    assert leader.high_watermark == 5
    assert leader.step(LogSynced(Offset(8))) == [AdvanceHighWatermark(Offset(8))]
    assert leader.step(LogSynced(Offset(8))) == []
    with pytest.raises(AssertionError):
        leader.step(LogSynced(Offset(7)))
