"""What is committed follows from synced ends alone, and never goes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from broker.core.events import TickElapsed
from broker.core.replication.effects import AdvanceHighWatermark, ProposeIsr
from broker.core.replication.events import LogAppended, LogSynced, RequestCame, ViewChanged
from broker.core.replication.isr import LagLimits, high_watermark
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.view import PartitionView
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchRequest

A, B, C = (BrokerId(name) for name in "abc")
ONE, TWO = BrokerEpoch(1), BrokerEpoch(2)


def _view(*restarted: BrokerId, partition_epoch: int = 1) -> PartitionView:
    epochs = {one: TWO if one in restarted else ONE for one in (A, B, C)}
    return PartitionView(
        status="online",
        leader=A,
        candidate=None,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(partition_epoch),
        replicas=(A, B, C),
        isr=frozenset((A, B, C)),
        min_isr=2,
        broker_epochs=epochs,
        joinable=frozenset((A, B, C)),
        restarted=frozenset(restarted),
    )


def _fetch(end: int, broker_epoch: BrokerEpoch, *, follower: BrokerId = B) -> RequestCame:
    request = FetchRequest(
        follower=follower,
        broker_epoch=broker_epoch,
        leader_epoch=LeaderEpoch(1),
        request_id=1,
        fetch_from=Offset(end),
        last_epoch=LeaderEpoch(1 if end else 0),
        synced_end=Offset(end),
    )
    return RequestCame(request, 1)


def _proposed(effects: Sequence[object]) -> list[ProposeIsr]:
    return [one for one in effects if isinstance(one, ProposeIsr)]


def _leading() -> PartitionLeader:
    """Return a leader that has committed 10 records on three, in its first epoch."""
    leader = PartitionLeader(A, LeaderEpoch(1), Offset(0), view=_view())
    leader.step(LogSynced(Offset(10)))
    for follower in (B, C):
        leader.step(_fetch(10, ONE, follower=follower))
    assert leader.high_watermark == 10
    return leader


def test_a_follower_whose_replica_was_moved_away_is_shown_no_more() -> None:
    """Its time of silence would grow for ever, though nothing is wrong."""
    leader = _leading()
    assert set(leader.progress()) == {B, C}
    moved = dataclasses.replace(_view(partition_epoch=2), replicas=(A, B), isr=frozenset((A, B)))
    leader.step(ViewChanged(moved, 1))
    leader.step(_fetch(10, ONE, follower=C))  # a late one
    assert set(leader.progress()) == {B}


def test_a_follower_that_restarted_is_proved_once_it_has_everything() -> None:
    """One proposal, of the same ISR, with its present process; and none on ordinary fetches."""
    leader = _leading()
    leader.step(ViewChanged(_view(B, partition_epoch=2), 1))
    (proof,) = _proposed(list(leader.step(_fetch(10, TWO))))
    assert (proof.isr, proof.forgotten) == ({A: ONE, B: TWO, C: ONE}, ())
    leader.step(ViewChanged(_view(partition_epoch=3), 1))
    assert _proposed(list(leader.step(_fetch(10, TWO)))) == []


def test_a_follower_that_forgot_what_was_counted_is_proposed_out() -> None:
    """The proposal is made at once and repeated at ticks until the follower has all records."""
    leader = _leading()
    leader.step(ViewChanged(_view(B, partition_epoch=2), 1))
    (out,) = _proposed(list(leader.step(_fetch(4, TWO))))
    assert (out.isr, out.forgotten) == ({A: ONE, C: ONE}, (B,))
    assert leader.high_watermark == 10
    (again,) = _proposed(list(leader.step(TickElapsed(2_000))))
    assert again.forgotten == (B,)
    (proof,) = _proposed([*leader.step(TickElapsed(2_001)), *leader.step(TickElapsed(2_002)),
                          *_caught_up(leader)])  # fmt: skip
    assert (proof.isr, proof.forgotten) == ({A: ONE, B: TWO, C: ONE}, ())
    assert _proposed(list(leader.step(_fetch(4, TWO)))) == [], "a late view was shown once more"


def _caught_up(leader: PartitionLeader) -> list[object]:
    leader.step(ViewChanged(_view(B, partition_epoch=3), 2_003))  # the proposal was lost
    return list(leader.step(_fetch(10, TWO)))


def test_a_follower_that_is_behind_without_a_former_process_has_forgotten_nothing() -> None:
    """A leader that never heard the one before cannot tell; the mark is enough."""
    leader = PartitionLeader(A, LeaderEpoch(1), Offset(10), view=_view(B))
    assert _proposed(list(leader.step(_fetch(0, TWO)))) == []
    assert leader.high_watermark == 0


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


def test_a_leader_that_was_stopped_holds_it_against_nobody() -> None:
    """Nobody could fetch meanwhile, so every follower's lag begins at the next tick."""
    limits = LagLimits(time_ms_max=1_000)
    leader = PartitionLeader(A, LeaderEpoch(1), Offset(0), view=_view(), limits=limits)
    leader.step(LogSynced(Offset(10)))
    for follower in (B, C):
        leader.step(_fetch(10, ONE, follower=follower))
    leader.step(LogAppended(Offset(11)))
    leader.step(TickElapsed(100))
    assert not _proposed(leader.step(TickElapsed(100_000)))
    late = [_proposed(leader.step(TickElapsed(100_000 + ms))) for ms in (400, 800, 1_200)]
    assert [set(one.isr) for found in late for one in found] == [{A}], "then the followers are late"
