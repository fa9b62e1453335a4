"""What a leader promises, at the very edge: one record, one instant, one epoch more or less.

`make plant` moves these edges by one, and each test here is the one that notices.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.events import TickElapsed
from broker.core.replication.effects import ProposeIsr, SendToReplica
from broker.core.replication.events import (
    IsrAnswered,
    LeaseGranted,
    LogAppended,
    LogSynced,
    RequestCame,
    ViewChanged,
)
from broker.core.replication.isr import FollowerProgress, LagLimits
from broker.core.replication.leader import PartitionLeader
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, EpochStart, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer, FetchRequest
from simkit.brokers.driver_rig import view_of_three

A, B, C = (BrokerId(name) for name in "abc")
ONE, TWO = BrokerEpoch(1), BrokerEpoch(2)


def _leader(*, lease_until_ms: int | None = None, **changes: Any) -> PartitionLeader:
    """Lead epoch 3 with ten records: five of epoch 1 and five of epoch 2."""
    starts = (EpochStart(LeaderEpoch(1), Offset(0)), EpochStart(LeaderEpoch(2), Offset(5)))
    return PartitionLeader(
        A,
        LeaderEpoch(3),
        Offset(10),
        view=view_of_three(**changes),
        epochs=EpochHistory(starts),
        limits=LagLimits(time_ms_max=1_000),
        lease_until_ms=lease_until_ms,
    )


def _fetch(
    follower: BrokerId = B, at: int = 10, *, last: int = 2, process: BrokerEpoch = ONE, now: int = 1
) -> RequestCame:
    request = FetchRequest(
        follower=follower,
        broker_epoch=process,
        leader_epoch=LeaderEpoch(3),
        request_id=7,
        fetch_from=Offset(at),
        last_epoch=LeaderEpoch(last),
        synced_end=Offset(at),
    )
    return RequestCame(request, now)


def _proposed(effects: list[Any]) -> list[ProposeIsr]:
    return [one for one in effects if isinstance(one, ProposeIsr)]


def test_the_leader_s_own_records_count_once_they_are_synced() -> None:
    """A follower may be quicker: records that only it has synced are not committed."""
    leader = _leader()
    leader.step(_fetch())
    leader.step(LogAppended(Offset(12)))
    leader.step(_fetch(at=12, last=3))
    assert leader.high_watermark == 10
    leader.step(LogSynced(Offset(12), 2))
    assert leader.high_watermark == 12


@pytest.mark.parametrize(("at", "last"), [(11, 3), (10, 1), (5, 2)])
def test_a_log_that_is_longer_or_of_another_epoch_has_diverged(at: int, last: int) -> None:
    """One record more is enough, and so is another epoch at the record before."""
    (send,) = _leader().step(_fetch(at=at, last=last))
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchAnswer)
    assert send.message.refusal == "diverged"


@pytest.mark.parametrize("at", [3, 5])
def test_a_follower_at_or_below_the_first_known_epoch_has_not_diverged(at: int) -> None:
    """The epochs of freed records may be forgotten: they were read from the segments alone.

    Such a follower has aligned by an epoch that both know, and is sent what this log has.
    """
    leader = PartitionLeader(
        A,
        LeaderEpoch(3),
        Offset(10),
        view=view_of_three(),
        epochs=EpochHistory((EpochStart(LeaderEpoch(2), Offset(5)),)),
        limits=LagLimits(time_ms_max=1_000),
    )
    refused = [
        one.message.refusal
        for one in leader.step(_fetch(at=at, last=1))
        if isinstance(one, SendToReplica) and isinstance(one.message, FetchAnswer)
    ]
    assert [one for one in refused if one == "diverged"] == []
    (send,) = leader.step(_fetch(at=6, last=1))
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchAnswer)
    assert send.message.refusal == "diverged"


def test_a_lease_that_lapsed_leaves_a_doubt_until_a_later_record_is_committed() -> None:
    """Another broker may have been elected, so LEADER is acked for committed records only."""
    leader = _leader(lease_until_ms=100)
    leader.step(_fetch())
    leader.step(LogSynced(Offset(12), 50))
    assert (leader.leader_ack_end, leader.high_watermark) == (12, 10)
    leader.step(LeaseGranted(300, 100))
    assert leader.leader_ack_end == 10, "what was written before the lapse is in doubt"
    leader.step(_fetch(at=12, last=3, now=110))
    leader.step(LogSynced(Offset(13), 120))
    assert (leader.high_watermark, leader.leader_ack_end) == (12, 12), "and nothing after it yet"
    leader.step(_fetch(at=13, last=3, now=130))
    leader.step(LogSynced(Offset(14), 140))
    assert (leader.high_watermark, leader.leader_ack_end) == (13, 14)


def test_a_lease_in_time_leaves_no_doubt_and_a_late_answer_shortens_none() -> None:
    """Answers of heartbeats may overtake each other."""
    leader = _leader(lease_until_ms=100)
    leader.step(_fetch())
    leader.step(LogSynced(Offset(12), 50))
    leader.step(LeaseGranted(300, 99))
    assert leader.leader_ack_end == 12
    leader.step(LeaseGranted(200, 110))
    assert not leader.is_fenced(299)


def test_a_refused_proposal_still_counts() -> None:
    """Another try of the same proposal may be under way, and be accepted."""
    leader = _leader()
    leader.step(_fetch())
    assert _proposed(leader.step(_fetch(C)))
    leader.step(IsrAnswered(5, accepted=False, now_ms=2))
    leader.step(LogSynced(Offset(12), 3))
    leader.step(_fetch(at=12, last=3))
    assert leader.high_watermark == 10, "C may be in the ISR by now, and lacks two records"


def test_a_view_that_comes_late_changes_nothing() -> None:
    """The partition epoch orders views: C left after it had been in the ISR."""
    leader = _leader(isr=frozenset((A, B)), partition_epoch=PartitionEpoch(7))
    leader.step(ViewChanged(view_of_three(isr=frozenset((A, C))), 1))
    assert leader.isr == {A, B}
    leader.step(_fetch(now=1))
    leader.step(LogSynced(Offset(12), 2))
    leader.step(_fetch(at=12, last=3))
    assert leader.high_watermark == 12


def test_only_a_registered_process_that_is_not_fenced_joins() -> None:
    """A replaced process had records that its successor's disk may lack."""
    former = _leader(broker_epochs={A: ONE, B: ONE, C: TWO})
    assert not _proposed(former.step(_fetch(C, process=BrokerEpoch(3)))), "not registered yet"
    fenced = _leader(joinable=frozenset((A, B)))
    assert not _proposed(fenced.step(_fetch(C)))
    assert _proposed(_leader().step(_fetch(C)))


def test_a_follower_that_lacks_one_record_does_not_join() -> None:
    """The record before the start of the epoch may be committed."""
    leader = _leader()
    assert not _proposed(leader.step(_fetch(C, 9)))
    assert _proposed(leader.step(_fetch(C)))


def test_a_debt_outlives_a_second_restart() -> None:
    """A disk that lost records once has lost them for the process after the next, too."""
    progress = FollowerProgress(ONE)
    progress.heard(Offset(10), Offset(10), 1)
    second = progress.succeeded_by(TWO)
    second.heard(Offset(4), Offset(10), 2)
    third = second.succeeded_by(BrokerEpoch(3))
    third.heard(Offset(4), Offset(10), 3)
    assert third.has_forgotten(high_watermark=Offset(10), epoch_start=Offset(0))
    third.heard(Offset(10), Offset(10), 4)
    assert not third.has_forgotten(high_watermark=Offset(10), epoch_start=Offset(0))


def test_a_follower_that_keeps_pace_is_not_lagging() -> None:
    """Under load it never has the newest record, but always those of its last fetch."""
    leader = _leader()
    leader.step(_fetch(now=0))
    for number in range(1, 31):
        leader.step(LogAppended(Offset(10 + number)))
        assert not _proposed(leader.step(TickElapsed(number * 100)))
        leader.step(_fetch(at=9 + number, last=3 if number > 1 else 2, now=number * 100))
    assert leader.isr == {A, B}
