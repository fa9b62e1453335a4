"""The replication machines one event at a time: what each asks its shell to do, and refuses.

The file is not split: the cases of leader and follower share the builders at its beginning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.codec.record_batch import BatchHeader
from broker.core.events import TickElapsed
from broker.core.replication.acks import AckQueue
from broker.core.replication.effects import (
    AdvanceHighWatermark,
    AppendStored,
    BeginLogAt,
    LogFacts,
    ProposeIsr,
    ProposeLeadership,
    RefuseLeadership,
    ReportLeader,
    ReportLostRecords,
    ResetLog,
    SendRecords,
    SendToReplica,
    StartLeading,
    StopLeading,
    TruncateLog,
)
from broker.core.replication.events import (
    IsrAnswered,
    LeaseGranted,
    LogAppended,
    LogSynced,
    LogTruncated,
    MessageCame,
    RequestCame,
    ViewChanged,
)
from broker.core.replication.follower import FollowerTiming, PartitionFollower
from broker.core.replication.isr import FollowerProgress, LagLimits
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.replica import PartitionReplica
from broker.core.replication.runs import append_runs, is_copying
from broker.errors import NotEnoughReplicasError, NotLeaderError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, EpochStart, LeaderEpoch, PartitionEpoch
from broker.model.ids import NO_PRODUCER, BrokerId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    LogPrefix,
    NewDataNotice,
)
from broker.ports.partition import StoredBatch
from simkit.brokers.driver_rig import view_of_three

A, B, C = (BrokerId(name) for name in "abc")
ONE = BrokerEpoch(1)


def _history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(
        tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in starts)
    )


def _leader(**changes: Any) -> PartitionLeader:
    facts: dict[str, Any] = {
        "view": view_of_three(),
        "epochs": _history((1, 0)),
        "limits": LagLimits(time_ms_max=1000),
        **changes,
    }
    return PartitionLeader(A, LeaderEpoch(3), Offset(10), **facts)


def _fetch(
    follower: BrokerId = B, at: int = 10, *, epoch: int = 3, last: int = 1, **changes: Any
) -> FetchRequest:
    request = FetchRequest(
        follower=follower,
        broker_epoch=ONE,
        leader_epoch=LeaderEpoch(epoch),
        request_id=7,
        fetch_from=Offset(at),
        last_epoch=LeaderEpoch(last),
        synced_end=Offset(at),
    )
    return replace(request, **changes)


def _kinds(effects: list[Any]) -> list[type]:
    return [type(one) for one in effects]


# ---------------------------------------------------------------------------- the leader


def test_a_new_leader_commits_nothing_before_the_whole_isr_has_spoken() -> None:
    """What a follower had synced is not known until it says so in this epoch."""
    leader = _leader()
    assert leader.newest_committed is None
    assert leader.step(LogSynced(Offset(12))) == []
    effects = leader.step(RequestCame(_fetch(), 1))
    assert effects[0] == AdvanceHighWatermark(Offset(10))
    assert leader.newest_committed == 10


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (_fetch(epoch=2), "fenced_epoch"),
        (_fetch(epoch=4), "unknown_epoch"),
        (_fetch(broker_epoch=BrokerEpoch(0)), "fenced_broker"),
        (_fetch(last=2), "diverged"),
        (_fetch(at=11), "diverged"),
        (_fetch(at=9, synced_end=Offset(10)), "diverged"),
    ],
)
def test_a_fetch_that_does_not_fit_is_refused_and_counts_for_nothing(
    request_: FetchRequest, refusal: str
) -> None:
    """Another epoch, an older process, a log that is no prefix: none of them acks anything."""
    leader = _leader()
    (send,) = leader.step(RequestCame(request_, 1))
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchAnswer)
    assert send.message.refusal == refusal
    assert leader.high_watermark == 0


def test_a_proposed_member_counts_until_the_controller_has_decided() -> None:
    """While a proposal is open the high watermark waits for both sets (KIP-497)."""
    leader = _leader()
    leader.step(RequestCame(_fetch(), 1))
    effects = leader.step(RequestCame(_fetch(C), 1))
    proposal = next(one for one in effects if isinstance(one, ProposeIsr))
    assert proposal.isr == {A: 1, B: 1, C: 1}
    leader.step(LogSynced(Offset(12), 2))
    assert leader.step(RequestCame(_fetch(B, 12, last=3), 2))[0] != AdvanceHighWatermark(Offset(12))
    assert leader.high_watermark == 10
    leader.step(IsrAnswered(5, accepted=False, now_ms=3))
    assert leader.high_watermark == 10, "an earlier attempt may still be taken"
    leader.step(ViewChanged(view_of_three(partition_epoch=PartitionEpoch(6)), 4))
    assert leader.high_watermark == 12


def test_a_follower_below_the_epoch_s_start_does_not_join() -> None:
    """The high watermark of a new leader may lie below what the old one committed (R4)."""
    leader = _leader(known_high_watermark=Offset(4))
    leader.step(RequestCame(_fetch(at=4, last=1), 1))
    effects = leader.step(RequestCame(_fetch(C, 6, last=1), 1))
    assert ProposeIsr not in _kinds(effects)


def test_below_min_isr_nothing_is_committed_and_all_is_refused() -> None:
    """LEADER publishes go on; ALL is refused at once because there are too few replicas (A11)."""
    leader = _leader(view=view_of_three(isr=frozenset((A,))))
    leader.step(LogSynced(Offset(12), 1))
    assert leader.high_watermark == 0
    assert isinstance(leader.refusal(AckPolicy.ALL, 1), NotEnoughReplicasError)
    assert leader.refusal(AckPolicy.LEADER, 1) is None


def test_a_lagging_follower_is_proposed_out_and_the_leader_s_own_pause_is_forgiven() -> None:
    """Lag counts from the last time it had every record; after a stall all counts begin anew."""
    leader = _leader()
    leader.step(RequestCame(_fetch(), 100))
    leader.step(LogAppended(Offset(12)))
    for now_ms in range(200, 1101, 100):
        assert ProposeIsr not in _kinds(leader.step(TickElapsed(now_ms)))
    (proposal,) = leader.step(TickElapsed(1200))
    assert isinstance(proposal, ProposeIsr)
    assert set(proposal.isr) == {A}
    paused = _leader()
    paused.step(RequestCame(_fetch(), 100))
    paused.step(TickElapsed(200))
    assert paused.step(TickElapsed(60_000)) == []


def test_a_follower_too_many_records_behind_leaves_and_stays_out() -> None:
    """The record limit of Fluvio, beside the time limit of Liftbridge."""
    limits = LagLimits(time_ms_max=10_000, records_max=3)
    leader = _leader(limits=limits)
    leader.step(RequestCame(_fetch(), 1))
    leader.step(LogSynced(Offset(14), 2))
    (proposal,) = leader.step(TickElapsed(3))
    assert isinstance(proposal, ProposeIsr)
    progress = FollowerProgress(ONE)
    progress.heard(Offset(10), Offset(14), 3)
    facts: dict[str, Any] = {"high_watermark": Offset(10), "epoch_start": Offset(10)}
    assert not progress.may_join(limits, log_end=Offset(14), now_ms=3, **facts)
    assert progress.may_join(limits, log_end=Offset(13), now_ms=3, **facts)
    assert not progress.may_join(limits, log_end=Offset(13), now_ms=10_004, **facts)


def test_an_isr_proposal_whose_answer_was_lost_blocks_nobody() -> None:
    """After a while the next one is made; whichever the controller takes first wins."""
    leader = _leader()
    leader.step(RequestCame(_fetch(C), 0))
    leader.step(RequestCame(_fetch(B), 400))
    assert ProposeIsr not in _kinds(leader.step(TickElapsed(500)))
    effects: list[Any] = []
    for now_ms in (900, 1100):
        leader.step(RequestCame(_fetch(B), now_ms))
        effects += leader.step(TickElapsed(now_ms))
    assert [one.isr.keys() for one in effects if isinstance(one, ProposeIsr)] == [{A, B}]


def test_a_lease_that_is_over_stops_commits_until_it_is_granted_again() -> None:
    """The clock is asked for every ack; a paused process finds out when it looks (A13)."""
    leader = _leader(lease_until_ms=100)
    leader.step(RequestCame(_fetch(), 50))
    assert not leader.is_fenced(99)
    assert leader.is_fenced(100)
    leader.step(LogSynced(Offset(12), 150))
    leader.step(RequestCame(_fetch(B, 12, last=3), 150))
    assert leader.high_watermark == 10
    assert isinstance(leader.refusal(AckPolicy.LEADER, 150), NotLeaderError)
    assert leader.step(LeaseGranted(400, 160)) == [AdvanceHighWatermark(Offset(12))]


def test_new_data_answers_parked_fetches_and_notifies_the_others() -> None:
    """Nobody polls: a parked request is answered, an answered one is followed by a notice."""
    leader = _leader()
    assert _kinds(leader.step(RequestCame(_fetch(B, wait_ms=500), 1))) == [AdvanceHighWatermark]
    assert SendRecords in _kinds(leader.step(RequestCame(_fetch(C), 1)))
    effects = leader.step(LogAppended(Offset(11)))
    assert [(type(one), one.to) for one in effects] == [(SendRecords, B), (SendToReplica, C)]  # type: ignore[union-attr]
    notice = effects[1]
    assert isinstance(notice, SendToReplica)
    assert isinstance(notice.message, NewDataNotice)
    assert leader.step(LogAppended(Offset(12))) == []
    leader.step(RequestCame(_fetch(B, 10, wait_ms=500), 2))
    idle = _leader()
    idle.step(RequestCame(_fetch(B, wait_ms=500), 1))
    assert SendRecords in _kinds(idle.step(TickElapsed(501)))


# ---------------------------------------------------------------------------- the follower


def _facts(end: int, *starts: tuple[int, int]) -> LogFacts:
    return LogFacts(
        log_start=Offset(0), log_end=Offset(end), synced_end=Offset(end), epochs=_history(*starts)
    )


def _follower(facts: LogFacts, *, high_watermark: int = 0, epoch: int = 5) -> PartitionFollower:
    return PartitionFollower(
        me=B,
        broker_epoch=ONE,
        leader=A,
        leader_epoch=LeaderEpoch(epoch),
        facts=lambda: facts,
        high_watermark=Offset(high_watermark),
        now_ms=0,
        timing=FollowerTiming(request_ms=100, idle_ms=200, leader_ms=400),
    )


def _truncated(follower: PartitionFollower, facts: LogFacts, now_ms: int) -> list[Any]:
    """Report that the log is cut, with its present ends."""
    follower._read_facts = lambda: facts
    return list(follower.step(LogTruncated(now_ms)))


def _synced(follower: PartitionFollower, facts: LogFacts, now_ms: int) -> list[Any]:
    """Report that the log is durable to its end, with its present ends."""
    follower._read_facts = lambda: facts
    return list(follower.step(LogSynced(facts.synced_end, now_ms)))


def _asked(effects: list[Any]) -> EpochEndRequest:
    (send,) = effects
    assert isinstance(send.message, EpochEndRequest)
    return send.message


def _told(request: EpochEndRequest, known: int, end: int) -> EpochEndAnswer:
    return EpochEndAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        epoch=request.epoch,
        known_epoch=LeaderEpoch(known),
        end=Offset(end),
    )


def test_alignment_walks_back_to_the_newest_common_epoch() -> None:
    """Two fast elections leave epochs that the leader never saw; each is cut whole (KIP-279)."""
    follower = _follower(_facts(30, (1, 0), (3, 10), (4, 20)), high_watermark=8)
    request = _asked(follower.start(0))
    assert request.epoch == 4
    assert follower.step(MessageCame(_told(request, 2, 12), 1)) == [TruncateLog(Offset(10))]
    request = _asked(_truncated(follower, _facts(10, (1, 0)), 2))
    assert request.epoch == 1
    assert follower.step(MessageCame(_told(request, 1, 9), 3)) == [TruncateLog(Offset(9))]
    (send,) = _truncated(follower, _facts(9, (1, 0)), 4)
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    assert (send.message.fetch_from, send.message.last_epoch) == (9, 1)


def test_an_epoch_without_records_is_cut_as_well() -> None:
    """Otherwise the log would refuse the older epoch of the next leader's records."""
    follower = _follower(_facts(10, (1, 0), (4, 10)))
    request = _asked(follower.start(0))
    assert follower.step(MessageCame(_told(request, 2, 12), 1)) == [TruncateLog(Offset(10))]


def test_answers_of_other_epochs_and_requests_are_dropped() -> None:
    """A delayed answer of an older leader would cut the wrong suffix (A3)."""
    follower = _follower(_facts(10, (1, 0)))
    request = _asked(follower.start(0))
    for odd in (
        replace(_told(request, 1, 2), leader_epoch=LeaderEpoch(4)),
        replace(_told(request, 1, 2), request_id=99),
    ):
        assert follower.step(MessageCame(odd, 1)) == []
    assert follower.dropped_count == 2


def _fetched(follower: PartitionFollower) -> FetchRequest:
    (send,) = follower.start(0)
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    return send.message


def test_a_follower_below_the_leaders_log_begins_where_that_begins() -> None:
    """Its missing records are in the table; their epochs come along (wiped or long paused)."""
    follower = _follower(_facts(0))
    request = _fetched(follower)
    prefix = LogPrefix(epochs=((LeaderEpoch(1), Offset(0)),), producers=b"{}")
    answer = FetchAnswer(
        leader_epoch=LeaderEpoch(5), request_id=request.request_id, start=Offset(40),
        high_watermark=Offset(50), log_end=Offset(60), refusal="below_start", prefix=prefix,
    )  # fmt: skip
    assert follower.step(MessageCame(answer, 1)) == [ResetLog(Offset(40), prefix)]
    assert follower.step(MessageCame(answer, 2)) == [], "once"
    facts = LogFacts(
        log_start=Offset(40), log_end=Offset(40), synced_end=Offset(40), epochs=_history((1, 0))
    )
    (send,) = _truncated(follower, facts, 3)
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    assert (send.message.fetch_from, send.message.last_epoch) == (40, 1)


def test_a_log_that_reaches_the_leaders_start_is_never_thrown_away() -> None:
    """Such an answer is old: it was sent before this log had grown."""
    follower = _follower(_facts(0))
    request = _fetched(follower)
    old = FetchAnswer(
        leader_epoch=LeaderEpoch(5), request_id=request.request_id, start=Offset(0),
        high_watermark=Offset(0), log_end=Offset(0), refusal="below_start",
        prefix=LogPrefix(epochs=(), producers=b""),
    )  # fmt: skip
    assert follower.step(MessageCame(old, 1)) == []


def _batch(base: int, epoch: int) -> StoredBatch:
    header = BatchHeader(
        base_offset=Offset(base), leader_epoch=LeaderEpoch(epoch), synced_end=Offset(base),
        first_timestamp_us=1, max_timestamp_us=1, producer_id=NO_PRODUCER, base_sequence=-1,
        records_count=1, offset_span=1, body_size=8, body_crc=0, columns=0, codec="none",
        sparse=False,
    )  # fmt: skip
    return StoredBatch(header, b"")


def _fetching() -> tuple[PartitionFollower, FetchRequest]:
    follower = _follower(_facts(0))
    (send,) = follower.start(0)
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    return follower, send.message


def _answer(request: FetchRequest, *batches: StoredBatch, end: int = 3) -> FetchAnswer:
    return FetchAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        start=request.fetch_from,
        high_watermark=Offset(2),
        log_end=Offset(end),
        batches=batches,
    )


@pytest.mark.parametrize(
    "batches", [(_batch(1, 5),), (_batch(0, 5), _batch(2, 5)), (_batch(0, 6),)]
)
def test_a_gap_an_overlap_or_an_epoch_of_the_future_is_never_written(
    batches: tuple[StoredBatch, ...],
) -> None:
    """The log is extended where it ends, or not at all (A26)."""
    follower, request = _fetching()
    assert follower.step(MessageCame(_answer(request, *batches), 1)) == []
    assert follower.dropped_count == 1


def test_fetched_records_are_reported_when_they_are_durable() -> None:
    """Append, sync, then the next fetch; the high watermark is learned up to the synced end."""
    follower, request = _fetching()
    batches = (_batch(0, 4), _batch(1, 5), _batch(2, 5))
    assert follower.step(MessageCame(_answer(request, *batches), 1)) == [AppendStored(batches)]
    advance, send = _synced(follower, _facts(3, (4, 0), (5, 1)), 2)
    assert advance == AdvanceHighWatermark(Offset(2))
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    assert (send.message.fetch_from, send.message.synced_end) == (3, 3)


def test_an_idle_follower_shows_life_and_wakes_up_for_a_notice() -> None:
    """Caught up, it asks again after a while, or at once when there is something."""
    follower, request = _fetching()
    assert follower.step(MessageCame(_answer(request, end=0), 10)) == []
    assert follower.step(TickElapsed(150)) == []
    assert _kinds(follower.step(TickElapsed(210))) == [SendToReplica]
    follower, request = _fetching()
    follower.step(MessageCame(_answer(request, end=0), 10))
    assert _kinds(follower.step(MessageCame(NewDataNotice(leader_epoch=LeaderEpoch(5)), 11))) == [
        SendToReplica
    ]


def test_a_silent_or_refusing_leader_is_reported_again_and_again() -> None:
    """A refusal is no sign of life; the controller adds the reports up."""
    follower, request = _fetching()
    refused = replace(_answer(request), refusal="not_leader")
    assert follower.step(MessageCame(refused, 50)) == []
    assert _kinds(follower.step(TickElapsed(105))) == [SendToReplica], (
        "a refused request is repeated soon"
    )
    assert ReportLeader in _kinds(follower.step(TickElapsed(400)))
    assert ReportLeader not in _kinds(follower.step(TickElapsed(500)))
    assert ReportLeader in _kinds(follower.step(TickElapsed(800)))


def test_losing_committed_records_is_said_aloud() -> None:
    """Only an unclean election cuts below the high watermark; readers must get an error (A10)."""
    follower = _follower(_facts(10, (1, 0)), high_watermark=8)
    request = _asked(follower.start(0))
    effects = follower.step(MessageCame(_told(request, 1, 5), 1))
    assert effects == [ReportLostRecords(Offset(5), Offset(8)), TruncateLog(Offset(5))]
    assert follower.high_watermark == 5


def test_a_follower_syncs_before_a_batch_that_says_the_leader_had() -> None:
    """Otherwise recovery could take its own torn tail for rot (docs/decisions/0002, proof b)."""
    headers = [_batch(base, 5).header for base in range(3)]
    assert [list(run) for run in append_runs(headers, Offset(0))] == [[one] for one in headers]
    one_group = [replace(header, synced_end=Offset(0)) for header in headers]
    assert list(append_runs(one_group, Offset(0))) == [one_group]
    assert list(append_runs([], Offset(0))) == []


def test_a_follower_that_is_far_behind_copies_whole_fetches() -> None:
    """It begins with a fetch of many runs, and ends when it has nearly everything."""
    for before, small, large in ((False, (0, 1, 7), (8, 9000)), (True, (0, 1, 2), (3, 9000))):
        assert not any(is_copying(runs, before=before) for runs in small)
        assert all(is_copying(runs, before=before) for runs in large)


# ---------------------------------------------------------------------------- roles and acks


def _replica(facts: LogFacts) -> PartitionReplica:
    return PartitionReplica(me=A, broker_epoch=ONE, facts=lambda: facts, lease_until_ms=1_000_000)


def test_leaders_that_are_never_heard_get_more_time_each() -> None:
    """Taking over may take longer than a report; heard followers count as before."""

    def report_ms(replica: PartitionReplica, epoch: int, *, heard: bool = False) -> int:
        """Follow B in an epoch; return when it is reported."""
        epochs = {"leader_epoch": LeaderEpoch(epoch), "partition_epoch": PartitionEpoch(epoch)}
        replica.step(ViewChanged(view_of_three(leader=B, **epochs), 0))
        if heard:
            replica.step(MessageCame(NewDataNotice(leader_epoch=LeaderEpoch(epoch)), 0))
        return next(
            now_ms
            for now_ms in range(0, 60_000, 50)
            if ReportLeader in _kinds(replica.step(TickElapsed(now_ms)))
        )

    replica = _replica(_facts(0))
    usual = FollowerTiming().leader_ms
    times = [report_ms(replica, epoch) for epoch in (10, 12, 14, 16, 18)]
    assert times == [usual, 2 * usual, 4 * usual, 8 * usual, 8 * usual]
    assert report_ms(replica, 20, heard=True) == usual
    assert report_ms(replica, 22) == usual
    new = _replica(_facts(0))
    assert report_ms(new, 1) == 4 * usual, "everybody opens the new stream's logs first"


def test_roles_follow_the_metadata_and_old_views_are_ignored() -> None:
    """Candidate, leader, follower; a view from before this process registered says nothing."""
    replica = _replica(_facts(10, (1, 0)))
    former = view_of_three(broker_epochs={A: BrokerEpoch(0), B: ONE, C: ONE})
    assert replica.step(ViewChanged(former, 0)) == []
    named = view_of_three(status="candidate_found", leader=None, candidate=A)
    assert replica.step(ViewChanged(named, 1)) == [ProposeLeadership(LeaderEpoch(3))]
    assert replica.step(TickElapsed(2)) == []
    assert replica.step(TickElapsed(400)) == [ProposeLeadership(LeaderEpoch(3))]
    led = view_of_three(partition_epoch=PartitionEpoch(6))
    assert replica.step(ViewChanged(led, 401))[0] == StartLeading(LeaderEpoch(3))
    assert replica.step(ViewChanged(named, 402)) == []
    lost = view_of_three(leader=B, leader_epoch=LeaderEpoch(4), partition_epoch=PartitionEpoch(7))
    effects = replica.step(ViewChanged(lost, 403))
    assert effects[0] == StopLeading(LeaderEpoch(3))
    assert replica.follower is not None
    replaced = replace(lost, broker_epochs={A: BrokerEpoch(2), B: ONE, C: ONE})
    assert replica.step(ViewChanged(replaced, 404)) == []
    assert replica.role == "none"


def test_a_late_answer_to_the_former_process_is_not_taken_for_one_to_this_process() -> None:
    """It has the same leader epoch, but describes a log that a crash may have cut."""

    def asked(broker_epoch: int) -> tuple[PartitionReplica, EpochEndRequest]:
        replica = PartitionReplica(
            me=A,
            broker_epoch=BrokerEpoch(broker_epoch),
            facts=lambda: _facts(10, (1, 0)),
            lease_until_ms=1_000_000,
        )
        epochs = {A: BrokerEpoch(broker_epoch), B: ONE, C: ONE}
        return replica, _asked(
            replica.step(ViewChanged(view_of_three(leader=B, broker_epochs=epochs), 0))
        )

    _, former = asked(1)
    present, request = asked(2)
    assert present.step(MessageCame(_told(former, 1, 2), 1)) == []
    assert present.step(MessageCame(_told(request, 1, 2), 2)) == [TruncateLog(Offset(2))]


@pytest.mark.parametrize("floor", [{"cold_end": Offset(200)}, {"purged_end": Offset(200)}])
def test_a_candidate_below_the_cold_end_begins_there_or_does_not_lead(floor: Any) -> None:
    """Offsets that the table holds, or that were purged, are given to no other records."""
    named = view_of_three(status="candidate_found", leader=None, candidate=A, **floor)
    replica = _replica(_facts(10, (1, 0)))
    assert replica.step(ViewChanged(named, 1)) == [RefuseLeadership(Offset(10), Offset(200))]
    unclean = replace(named, isr=frozenset(), partition_epoch=PartitionEpoch(9))
    facts = [_facts(10, (1, 0))]
    replica = PartitionReplica(
        me=A, broker_epoch=ONE, facts=lambda: facts[-1], lease_until_ms=1_000_000
    )
    assert replica.step(ViewChanged(unclean, 1)) == [BeginLogAt(Offset(200), Offset(10))]
    assert replica.high_watermark == 0, "the old log is there, with other records"
    facts.append(replace(_facts(200), log_start=Offset(200)))
    effects = replica.step(LogTruncated(2))
    assert effects == [AdvanceHighWatermark(Offset(200)), ProposeLeadership(LeaderEpoch(3))]
    assert replica.high_watermark == 200, "what is in the table was committed"
    at_the_end = _replica(_facts(200, (1, 0)))
    assert at_the_end.step(ViewChanged(named, 1)) == [ProposeLeadership(LeaderEpoch(3))]


def test_requests_to_somebody_who_does_not_lead_are_refused_in_their_own_epoch() -> None:
    """The refusal names the request, so the follower knows which one was refused."""
    replica = _replica(_facts(10, (1, 0)))
    for request in (
        _fetch(),
        EpochEndRequest(
            follower=B, broker_epoch=ONE, leader_epoch=LeaderEpoch(3), request_id=4,
            epoch=LeaderEpoch(1),
        ),
    ):  # fmt: skip
        (send,) = replica.step(MessageCame(request, 1))
        assert isinstance(send, SendToReplica)
        assert isinstance(send.message, FetchAnswer | EpochEndAnswer)
        assert (send.message.refusal, send.message.leader_epoch) == ("not_leader", 3)


def test_each_policy_waits_for_what_it_means() -> None:
    """NONE is never answered, LEADER by the leader's disk, ALL by the high watermark."""
    acks: AckQueue[str] = AckQueue()
    acks.add(AckPolicy.NONE, Offset(1), "none")
    acks.add(AckPolicy.LEADER, Offset(2), "leader")
    acks.add(AckPolicy.ALL, Offset(3), "all")
    acks.add(AckPolicy.ALL, Offset(1), "a retry")
    assert acks.settled(synced_end=Offset(2), high_watermark=Offset(1)) == ["leader", "a retry"]
    assert len(acks) == 1
    assert acks.abandon() == ["all"]
    assert acks.settled(synced_end=Offset(9), high_watermark=Offset(9)) == []
