"""A replica at the edges of its promises: one record, one epoch, one request more or less.

`make plant` moves these edges, and each test here is the one that notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from broker.codec.record_batch import BatchHeader
from broker.core.events import TickElapsed
from broker.core.metadata.commands import StopBroker
from broker.core.replication.effects import (
    AppendStored,
    LogFacts,
    ProposeLeadership,
    RefuseLeadership,
    ReportLeader,
    SendToReplica,
    TruncateLog,
)
from broker.core.replication.events import AppendRefused, LogSynced, MessageCame, ViewChanged
from broker.core.replication.follower import FollowerTiming, PartitionFollower
from broker.core.replication.replica import PartitionReplica, first_request_id
from broker.core.replication.view import view_of
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, EpochStart, LeaderEpoch, PartitionEpoch
from broker.model.ids import NO_PRODUCER, BrokerId, PartitionId, PartitionNumber
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    NewDataNotice,
)
from broker.ports.partition import StoredBatch
from simkit.brokers.driver_rig import view_of_three
from simkit.brokers.metadata_rig import UUID, MetadataRig

A, B, C = (BrokerId(name) for name in "abc")
ONE = BrokerEpoch(1)
TIMING = FollowerTiming(request_ms=100, idle_ms=200, leader_ms=400)


def _facts(end: int, *, synced: int | None = None) -> LogFacts:
    starts = (EpochStart(LeaderEpoch(1), Offset(0)),) if end else ()
    return LogFacts(
        log_start=Offset(0),
        log_end=Offset(end),
        synced_end=Offset(end if synced is None else synced),
        epochs=EpochHistory(starts),
    )


def _follower(facts: LogFacts) -> PartitionFollower:
    return PartitionFollower(
        me=B,
        broker_epoch=ONE,
        leader=A,
        leader_epoch=LeaderEpoch(5),
        facts=lambda: facts,
        high_watermark=Offset(0),
        now_ms=0,
        timing=TIMING,
    )


def _refused_append(follower: PartitionFollower, facts: LogFacts, now_ms: int) -> list[Any]:
    """Report that a full disk refused the batches, with the log's present ends."""
    follower._read_facts = lambda: facts
    return list(follower.step(AppendRefused(now_ms)))


def _synced(follower: PartitionFollower, facts: LogFacts, now_ms: int) -> list[Any]:
    """Report that the log is durable to its end, with its present ends."""
    follower._read_facts = lambda: facts
    return list(follower.step(LogSynced(facts.synced_end, now_ms)))


def _batch(base: int, epoch: int) -> StoredBatch:
    header = BatchHeader(
        base_offset=Offset(base), leader_epoch=LeaderEpoch(epoch), synced_end=Offset(base),
        first_timestamp_us=1, max_timestamp_us=1, producer_id=NO_PRODUCER, base_sequence=-1,
        records_count=1, offset_span=1, body_size=8, body_crc=0, columns=0, codec="none",
        sparse=False,
    )  # fmt: skip
    return StoredBatch(header, b"")


def _fetch_of(effects: list[Any]) -> FetchRequest:
    (request,) = (
        one.message
        for one in effects
        if isinstance(one, SendToReplica) and isinstance(one.message, FetchRequest)
    )
    return request


def _answer(request: FetchRequest, *batches: StoredBatch, start: int = 0) -> FetchAnswer:
    return FetchAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        start=Offset(start),
        high_watermark=Offset(0),
        log_end=Offset(9),
        batches=batches,
    )


# ---------------------------------------------------------------------------- the follower


def test_epochs_never_fall_within_an_answer() -> None:
    """A batch of an older epoch after a newer one comes from another log."""
    follower = _follower(_facts(0))
    request = _fetch_of(follower.start(0))
    assert follower.step(MessageCame(_answer(request, _batch(0, 5), _batch(1, 4)), 1)) == []
    assert follower.dropped_count == 1


def test_an_answer_for_another_place_says_nothing() -> None:
    """It is not taken as an answer that there is nothing new either."""
    follower = _follower(_facts(0))
    request = _fetch_of(follower.start(0))
    assert follower.step(MessageCame(_answer(request, start=4), 1)) == []
    assert (follower.phase, follower.dropped_count) == ("fetching", 1)


def test_a_follower_tells_what_is_durable() -> None:
    """Written records count for nothing before their sync."""
    follower = _follower(_facts(0))
    request = _fetch_of(follower.start(0))
    follower.step(MessageCame(_answer(request, _batch(0, 5)), 1))
    request = _fetch_of(_synced(follower, _facts(3, synced=1), 2))
    assert (request.fetch_from, request.synced_end) == (3, 1)


def test_a_leader_that_refuses_again_and_again_is_reported_in_time() -> None:
    """However often it answers: a refusal is no sign of life."""
    follower = _follower(_facts(0))
    request = _fetch_of(follower.start(0))
    reported = []
    for now_ms in range(5, 500, 5):
        effects = follower.step(TickElapsed(now_ms))
        reported += [now_ms for one in effects if isinstance(one, ReportLeader)]
        for effect in effects:
            if isinstance(effect, SendToReplica):
                request = _fetch_of([effect])
        follower.step(MessageCame(replace(_answer(request), refusal="not_leader"), now_ms))
    assert reported == [400]


def test_a_leader_that_calls_a_log_diverged_again_is_not_asked_without_end() -> None:
    """It is asked for epochs once more, and then no sooner than any other leader that refuses."""
    follower = _follower(_facts(4))
    asked = fetched = 0
    sent = _requests(follower.start(0))
    for now_ms in range(1, 400):
        if not sent:
            sent = _requests(follower.step(TickElapsed(now_ms)))
            continue
        (request,) = sent
        answer: FetchAnswer | EpochEndAnswer
        if isinstance(request, EpochEndRequest):
            asked += 1
            answer = EpochEndAnswer(
                leader_epoch=LeaderEpoch(5), request_id=request.request_id, epoch=request.epoch,
                known_epoch=LeaderEpoch(1), end=Offset(9),
            )  # fmt: skip
        else:
            fetched += 1
            answer = replace(_answer(request, start=4), refusal="diverged")
        sent = _requests(follower.step(MessageCame(answer, now_ms)))
    assert asked == 2, "before the first fetch, and after the first refusal"
    assert 2 < fetched <= 2 + 400 / TIMING.retry_ms


def _requests(effects: Sequence[Any]) -> list[FetchRequest | EpochEndRequest]:
    return [
        one.message
        for one in effects
        if isinstance(one, SendToReplica)
        and isinstance(one.message, FetchRequest | EpochEndRequest)
    ]


def test_a_leader_is_missed_from_its_report_until_its_next_word() -> None:
    """The member repeats a report as long as the follower misses its leader."""
    follower = _follower(_facts(0))
    follower.start(0)
    missed = [follower.misses_leader]
    effects = follower.step(TickElapsed(400))
    assert any(isinstance(one, ReportLeader) for one in effects)
    missed.append(follower.misses_leader)
    for epoch in (4, 5):
        follower.step(MessageCame(NewDataNotice(leader_epoch=LeaderEpoch(epoch)), 410))
        missed.append(follower.misses_leader)
    assert missed == [False, True, True, False]


def test_a_leader_that_answers_later_than_fetches_are_repeated_is_followed() -> None:
    """A loaded leader, or a slow link: the first answer to any copy of the request counts."""
    follower = _follower(_facts(0))
    first, batch = _fetch_of(follower.start(0)), _batch(0, 5)
    again = _fetch_of(follower.step(TickElapsed(100)))
    assert again.request_id > first.request_id
    assert follower.step(MessageCame(_answer(first, batch), 150)) == [AppendStored((batch,))]
    assert follower.step(MessageCame(_answer(again, batch), 160)) == [], "once"
    later = _fetch_of(_synced(follower, _facts(0), 170))
    for copy in (first, again):
        assert follower.step(MessageCame(_answer(copy, batch), 180)) == [], "an earlier request"
    assert follower.step(MessageCame(_answer(later, batch), 190)) == [AppendStored((batch,))]


def test_a_copy_that_waits_at_the_leader_stays_open() -> None:
    """An earlier copy was answered without records; the later one brings the next record."""
    follower = _follower(_facts(0))
    first, batch = _fetch_of(follower.start(0)), _batch(0, 5)
    again = _fetch_of(follower.step(TickElapsed(100)))
    assert follower.step(MessageCame(_answer(first), 150)) == []
    assert follower.step(MessageCame(_answer(again, batch), 160)) == [AppendStored((batch,))]


def test_a_leader_that_answers_later_than_questions_are_repeated_is_aligned_with() -> None:
    """Each copy asks for the end of the same epoch."""
    follower = _follower(_facts(10))
    (first,) = follower.start(0)
    (again,) = follower.step(TickElapsed(100))
    assert isinstance(first, SendToReplica)
    assert isinstance(first.message, EpochEndRequest)
    assert isinstance(again, SendToReplica)
    answer = EpochEndAnswer(
        leader_epoch=LeaderEpoch(5),
        request_id=first.message.request_id,
        epoch=first.message.epoch,
        known_epoch=LeaderEpoch(1),
        end=Offset(5),
    )
    assert follower.step(MessageCame(answer, 150)) == [TruncateLog(Offset(5))]


def test_after_a_full_disk_the_follower_pauses() -> None:
    """There will hardly be room at once; the pause is that of an idle follower."""
    follower = _follower(_facts(0))
    request = _fetch_of(follower.start(0))
    follower.step(MessageCame(_answer(request, _batch(0, 5)), 1))
    assert _refused_append(follower, _facts(0), 10) == []
    assert follower.step(TickElapsed(209)) == []
    assert _fetch_of(follower.step(TickElapsed(210))).fetch_from == 0


# ---------------------------------------------------------------------------- the replica


def _replica(end: int, *, process: int = 1, known: int = 0) -> PartitionReplica:
    return PartitionReplica(
        me=A,
        broker_epoch=BrokerEpoch(process),
        facts=lambda: _facts(end),
        lease_until_ms=1_000_000,
        known_high_watermark=Offset(known),
    )


def test_a_candidate_that_lacks_one_record_of_the_table_does_not_lead() -> None:
    """Offset 199 is in the table, and the candidate would give it to another record."""
    named = view_of_three(status="candidate_found", leader=None, candidate=A, cold_end=Offset(200))
    assert _replica(199).step(ViewChanged(named, 1)) == [RefuseLeadership(Offset(199), Offset(200))]
    assert _replica(200).step(ViewChanged(named, 1)) == [ProposeLeadership(LeaderEpoch(3))]


def test_request_ids_are_used_once_by_a_process_and_by_no_other() -> None:
    """A late answer to an earlier request must not be taken for one to a later request."""
    ids = []
    for process in (1, 2):
        replica = _replica(0, process=process)
        for epoch in (3, 4):
            view = view_of_three(
                leader=B,
                leader_epoch=LeaderEpoch(epoch),
                partition_epoch=PartitionEpoch(epoch + 2),
                broker_epochs={A: BrokerEpoch(process), B: ONE, C: ONE},
            )
            ids.append(_fetch_of(replica.step(ViewChanged(view, 0))).request_id)
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    assert first_request_id(BrokerEpoch(2)) - first_request_id(ONE) >= 1 << 32


def test_what_was_known_to_be_committed_outlives_the_role() -> None:
    """A follower that becomes leader does not show less than before."""
    replica = _replica(10, known=4)
    replica.step(ViewChanged(view_of_three(leader=B), 0))
    assert replica.follower is not None
    replica.follower.high_watermark = Offset(8)
    waiting = view_of_three(
        leader=None, status="election", leader_epoch=LeaderEpoch(4),
        partition_epoch=PartitionEpoch(6),
    )  # fmt: skip
    replica.step(ViewChanged(waiting, 1))
    assert replica.high_watermark == 8


# ---------------------------------------------------------------------------- the view


def test_the_view_names_who_may_join_and_when_an_election_was_unclean() -> None:
    """A stopping broker may not join. An election of an eligible replica is not unclean."""
    cluster = MetadataRig()
    cluster.do(StopBroker(broker=C, broker_epoch=cluster.epoch(C)))
    view = view_of(cluster.state, PartitionId(UUID, PartitionNumber(0)))
    assert view is not None
    assert view.joinable == {A, B}
    assert not replace(view, isr=frozenset(), eligible=frozenset((B,))).is_unclean
    assert replace(view, isr=frozenset()).is_unclean
