"""The core of a group's member: what it asks for, what it may give, and when it stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.errors import (
    NoAnswerError,
    NotCoordinatorError,
    StaleClaimError,
    StaleMemberError,
    UnknownStreamError,
)
from broker.model.groups import MemberView, PositionCommit, ToldClaim, ToldPosition
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from headwater.client.group.events import (
    Beaten,
    BeatRequest,
    Began,
    BeginReading,
    ClaimsLost,
    CloseAsked,
    CommitRequest,
    CommitWanted,
    Effect,
    Event,
    GivenUp,
    Joined,
    JoinRequest,
    LeaveRequest,
    Left,
    MembershipEnded,
    Polled,
    PositionsStored,
    Reported,
    ReportRequest,
    RequestFailed,
    Sought,
    StopReading,
    Ticked,
)
from headwater.client.group.held import MemberTerms
from headwater.client.group.member import MemberCore

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
SESSION_MS = 10_000
NO_ANSWER = NoAnswerError("no answer")


def claim(partition: int = 0, epoch: int = 5, offset: int | None = None, **facts: Any) -> ToldClaim:
    """Return a claim as the coordinator tells it."""
    position = None if offset is None else ToldPosition(offset=Offset(offset))
    return ToldClaim(
        stream="s", stream_uuid=UUID, partition=partition, epoch=epoch, position=position, **facts
    )


class Rig:
    """A member at a time that the test moves."""

    def __init__(self, commit_ms: int | None = 1_000) -> None:
        self.now_ms = 0
        terms = MemberTerms(session_ms=SESSION_MS, commit_ms=commit_ms, processing_ms_max=60_000)
        self.core = MemberCore(terms)
        assert self.step(Ticked()) == [JoinRequest()]

    def step(self, event: Event, after_ms: int = 0) -> list[Effect]:
        """Take an event."""
        self.now_ms += after_ms
        return self.core.step(event, self.now_ms)

    def told(self, *claims: ToldClaim, epoch: int = 5, settled: bool = True) -> list[Effect]:
        """Answer the heartbeat that is under way."""
        view = MemberView(epoch=epoch, coordinator="a", settled=settled, claims=claims)
        return self.step(Beaten(view, self.now_ms))

    def joined(self, *claims: ToldClaim) -> Rig:
        """Become a member with these claims."""
        assert self.step(Joined("a", 5)) == [BeatRequest("a", 0)]
        assert self.told(*claims) == ([BeginReading(claims)] if claims else [])
        return self

    def give(self, end: int, key: str | None = None) -> bool:
        """Give records up to ``end``."""
        return self.core.give(key or claim().key, 5, Offset(end), 1, self.now_ms)

    def writes(self, effects: list[Effect]) -> tuple[PositionCommit, ...]:
        """Return the writes of the only commit among effects."""
        (found,) = [one for one in effects if isinstance(one, CommitRequest)]
        return found.writes


def test_a_member_joins_beats_and_begins() -> None:
    """It asks for its claims at once, then beats five times a session, quicker if unsettled."""
    rig = Rig().joined(claim(offset=3))
    assert rig.step(Ticked(), 1_999) == []
    assert rig.step(Ticked(), 1) == [BeatRequest("a", 5)]
    assert rig.step(Ticked(), 5_000) == []
    assert rig.told(claim(offset=3), epoch=6, settled=False) == []
    assert rig.step(Ticked(), 100) == [BeatRequest("a", 6)]


def test_a_session_is_believed_for_three_quarters_from_when_the_heartbeat_was_sent() -> None:
    """Then nothing is given, until another one is answered; the claims are kept meanwhile."""
    rig = Rig().joined(claim(offset=0))
    rig.now_ms = SESSION_MS * 3 // 4 - 1
    assert rig.give(1)
    rig.now_ms += 1
    assert not rig.give(2)
    sent_ms = rig.now_ms - 7_000
    rig.step(Ticked())
    view = MemberView(epoch=5, coordinator="a", settled=True)
    assert rig.step(Beaten(view, sent_ms)) == []
    assert rig.give(2)
    rig.now_ms = sent_ms + SESSION_MS * 3 // 4
    assert not rig.give(3)


def test_processed_records_are_committed_at_their_interval() -> None:
    """A record is processed when the next one is asked for; numbers grow."""
    rig = Rig().joined(claim(offset=0))
    rig.give(1)
    rig.give(2)
    (write,) = rig.writes(rig.step(Ticked(), 1_000))
    assert (write.offset, write.epoch, write.number, write.release) == (1, 5, 1, False)
    assert rig.step(PositionsStored()) == []
    assert rig.step(Polled(), 500) == []
    (write,) = rig.writes(rig.step(Ticked(), 500))
    assert (write.offset, write.number, write.leader_epoch) == (2, 2, 1)
    assert not rig.core.is_clean
    rig.step(PositionsStored())
    assert rig.core.is_clean


def test_only_the_application_commits_if_it_says_so() -> None:
    """All that it was given, the newest record included."""
    rig = Rig(commit_ms=None).joined(claim(offset=0))
    rig.give(1)
    assert rig.step(Polled(), 1_500) == []
    rig.give(2)
    (write,) = rig.writes(rig.step(CommitWanted()))
    assert write.offset == 2


def test_a_commit_without_an_answer_is_sent_again_with_a_higher_number() -> None:
    """What was processed meanwhile goes with it."""
    rig = Rig().joined(claim(offset=0))
    rig.give(1)
    effects = rig.step(CommitWanted())
    (first,) = rig.writes(effects)
    rig.give(2)
    assert rig.step(CommitWanted()) == []
    assert rig.step(RequestFailed(effects[0], NO_ANSWER)) == []  # type: ignore[arg-type]
    (again,) = rig.writes(rig.step(Ticked(), 250))
    assert (again.offset, again.number) == (2, first.number + 1)


def test_a_partition_is_released_after_the_application_has_stopped() -> None:
    """Told, stopped, committed and released in one command; others are not touched."""
    rig = Rig().joined(claim(0, offset=0), claim(1, offset=0))
    rig.give(4)
    rig.step(Ticked(), 2_000)
    rig.step(PositionsStored())
    wanted = claim(0, offset=0, wanted=True)
    assert rig.told(wanted, claim(1, offset=0), epoch=6, settled=False) == [StopReading((wanted,))]
    assert not rig.give(5)
    assert rig.core.may_give(claim(1).key, 5, rig.now_ms)
    (write,) = rig.writes(rig.step(GivenUp((wanted.key,))))
    assert (write.partition, write.offset, write.release) == (0, 4, True)
    assert rig.step(PositionsStored()) == [BeatRequest("a", 6)]
    assert rig.told(claim(1, offset=0), epoch=7) == []
    assert rig.core.held.keys() == {claim(1).key}


def test_a_partition_that_nobody_waits_for_any_more_is_read_on() -> None:
    """Before the application has stopped, and after: from where it was."""
    rig = Rig().joined(claim(offset=0))
    rig.give(4)
    rig.step(Ticked(), 2_000)
    rig.step(PositionsStored())
    wanted = claim(offset=0, wanted=True)
    rig.told(wanted, epoch=6)
    rig.step(Ticked(), 2_000)
    assert rig.told(claim(offset=0), epoch=7) == []
    begin = rig.step(GivenUp((wanted.key,)))[0]
    assert isinstance(begin, BeginReading)
    assert begin.claims[0].position is not None
    assert begin.claims[0].position.offset == 4
    rig.step(Ticked(), 2_000)
    rig.told(wanted, epoch=8)
    rig.step(GivenUp((wanted.key,)))
    rig.step(PositionsStored())
    begin = rig.told(claim(offset=4), epoch=9)[0]
    assert isinstance(begin, BeginReading)
    assert rig.give(5)


def test_a_second_stop_of_a_partition_that_is_given_up_begins_no_read() -> None:
    """It was wanted, not wanted and wanted again before the application came to the first stop."""
    rig = Rig().joined(claim(offset=0))
    wanted = claim(offset=0, wanted=True)
    for epoch, told in ((6, wanted), (7, claim(offset=0)), (8, wanted)):
        rig.step(Ticked(), SESSION_MS // 5)
        stops = rig.told(told, epoch=epoch)
        assert stops == ([StopReading((told,))] if told.wanted else [])
    (write,) = rig.writes(rig.step(GivenUp((wanted.key,))))
    assert write.release
    assert rig.step(GivenUp((wanted.key,))) == []
    assert not rig.core.may_give(wanted.key, 5, rig.now_ms)


def test_a_claim_that_was_never_begun_is_given_up_at_once() -> None:
    """Without a position, and without telling the application."""
    rig = Rig()
    rig.step(Joined("a", 5))
    (write,) = rig.writes(rig.told(claim(wanted=True)))
    assert (write.offset, write.release) == (None, True)


def test_a_claim_under_another_epoch_is_lost_and_begun_again() -> None:
    """Its records that were not committed are told by the next commit."""
    rig = Rig(commit_ms=None).joined(claim(offset=0))
    rig.give(4)
    rig.step(Ticked(), 2_000)
    again = claim(epoch=7, offset=0)
    effects = rig.told(again, epoch=7)
    assert effects == [ClaimsLost((claim(offset=0),)), BeginReading((again,))]
    assert rig.core.take_lost() == [again.key]
    assert rig.core.take_lost() == []


def test_a_loss_that_the_application_is_told_of_is_not_told_by_a_commit() -> None:
    """The loss of another partition still is."""
    rig = Rig(commit_ms=None).joined(claim(0, offset=0), claim(1, offset=0))
    rig.give(4, claim(0).key)
    rig.give(4, claim(1).key)
    rig.step(Ticked(), 2_000)
    rig.told(claim(0, epoch=7, offset=0), claim(1, epoch=7, offset=0), epoch=7)
    rig.core.forget_lost({claim(0).key})
    assert rig.core.take_lost() == [claim(1).key]


def test_an_expelled_member_joins_again_and_a_replaced_one_ends() -> None:
    """Both lose what they had at once."""
    rig = Rig().joined(claim(offset=0))
    (beat,) = rig.step(Ticked(), 2_000)
    expelled = StaleMemberError("expelled", group="g", member="m", replaced=False)
    effects = rig.step(RequestFailed(beat, expelled))  # type: ignore[arg-type]
    assert effects == [ClaimsLost((claim(offset=0),)), JoinRequest(1)]
    rig = Rig().joined(claim(offset=0))
    (beat,) = rig.step(Ticked(), 2_000)
    replaced = StaleMemberError("replaced", group="g", member="m", replaced=True)
    effects = rig.step(RequestFailed(beat, replaced))  # type: ignore[arg-type]
    assert effects == [ClaimsLost((claim(offset=0),)), MembershipEnded(replaced)]
    assert rig.step(Polled()) == []


def test_answers_from_before_it_joined_again_count_for_nothing() -> None:
    """A view of an earlier epoch, and a refusal of a commit under an earlier claim."""
    rig = Rig().joined(claim(offset=0))
    rig.give(4)
    commit = rig.step(CommitWanted())[0]
    (beat,) = rig.step(Ticked(), 2_000)
    expelled = StaleMemberError("expelled", group="g", member="m", replaced=False)
    rig.step(RequestFailed(beat, expelled))  # type: ignore[arg-type]
    assert rig.step(Joined("a", 9)) == [BeatRequest("a", 0)]
    assert rig.told(claim(offset=0), epoch=6) == []
    assert rig.core.held == {}
    assert rig.step(Ticked(), 100) == [BeatRequest("a", 0)]
    rig.told(claim(epoch=9, offset=0), epoch=9)
    assert rig.step(RequestFailed(commit, expelled)) == []  # type: ignore[arg-type]
    assert rig.core.held.keys() == {claim().key}


def test_a_late_refusal_is_not_about_the_claims_of_now() -> None:
    """What was processed under the claim of now is still to be committed."""
    rig = Rig(commit_ms=None).joined(claim(offset=0))
    rig.give(4)
    commit = rig.step(CommitWanted())[0]
    (beat,) = rig.step(Ticked(), 2_000)
    expelled = StaleMemberError("expelled", group="g", member="m", replaced=False)
    rig.step(RequestFailed(beat, expelled))  # type: ignore[arg-type]
    rig.step(Joined("a", 9))
    rig.told(claim(epoch=9, offset=0), epoch=9)
    assert rig.core.give(claim().key, 9, Offset(6), 1, rig.now_ms)
    rig.step(CommitWanted())
    late = StaleClaimError("gone", partitions=[claim().key])
    (write,) = rig.writes(rig.step(RequestFailed(commit, late)))  # type: ignore[arg-type]
    assert (write.epoch, write.offset) == (9, 6)
    assert rig.core.refusals_count == 0
    assert not rig.core.is_clean
    assert rig.core.take_lost() == [claim().key]


def test_a_silent_coordinator_is_reported_and_another_one_found() -> None:
    """One report is under way at a time; a broker may also say who it is."""
    rig = Rig().joined(claim(offset=0))
    (beat,) = rig.step(Ticked(), 2_000)
    assert rig.step(RequestFailed(beat, NO_ANSWER)) == [ReportRequest("a")]  # type: ignore[arg-type]
    (beat,) = rig.step(Ticked(), 250)
    assert rig.step(RequestFailed(beat, NO_ANSWER)) == []  # type: ignore[arg-type]
    assert rig.step(Reported("b")) == [BeatRequest("b", 5)]
    other = NotCoordinatorError("c does", group="g", coordinator="c")
    effects = rig.step(RequestFailed(BeatRequest("b", 5), other))
    assert effects == [BeatRequest("c", 5)]


def test_a_refused_partition_does_not_refuse_the_others() -> None:
    """The claims are asked for again, and the application is told."""
    rig = Rig().joined(claim(0, offset=0), claim(1, offset=0))
    rig.give(4)
    rig.give(6, claim(1).key)
    commit = rig.step(CommitWanted())[0]
    refusal = StaleClaimError("gone", partitions=[claim(0).key])
    effects = rig.step(RequestFailed(commit, refusal))  # type: ignore[arg-type]
    assert effects == [BeatRequest("a", 0)]
    assert rig.core.held[claim(1).key].committed == 6
    assert (rig.core.refusals_count, rig.core.last_refusal) == (1, refusal)
    assert rig.core.is_clean


def test_a_seek_back_is_committed_as_one() -> None:
    """Once; with an interval at once, else when the application commits."""
    for commit_ms in (1_000, None):
        rig = Rig(commit_ms).joined(claim(offset=8))
        rig.step(Sought(claim().key, Offset(3)))
        (write,) = rig.writes(rig.step(CommitWanted()))
        assert (write.offset, write.back) == (3, True)
        rig.step(PositionsStored())
        rig.give(9)
        (write,) = rig.writes(rig.step(CommitWanted()))
        assert (write.offset, write.back) == (9, False)


def test_a_chosen_beginning_is_committed_at_once() -> None:
    """So that the next owner begins there, too; a late answer for another claim is not."""
    rig = Rig().joined(claim())
    assert rig.step(Began(claim().key, 4, Offset(7))) == []
    (write,) = rig.writes(rig.step(Began(claim().key, 5, Offset(7))))
    assert write.offset == 7


def test_a_chosen_beginning_that_comes_after_a_seek_counts_for_nothing() -> None:
    """Also after records: only a place that the log has lost is replaced by another one."""
    rig = Rig().joined(claim())
    rig.step(Sought(claim().key, Offset(5)))
    rig.step(Began(claim().key, 5, Offset(100)))
    assert rig.core.held[claim().key].done == rig.core.held[claim().key].given == 5
    rig.give(8)
    rig.step(Began(claim().key, 5, Offset(100)))
    assert rig.core.held[claim().key].given == 8
    rig.step(Began(claim().key, 5, Offset(100), anew=True))
    assert rig.core.held[claim().key].given == 100


def test_a_seek_below_a_commit_that_may_have_counted_is_a_seek_back() -> None:
    """Stored, under way, or without an answer: the broker refuses a lower one that is not back."""
    for answer in (None, "stored", "lost"):
        rig = Rig().joined(claim(offset=40))
        rig.give(50)
        commit = CommitRequest(rig.writes(rig.step(CommitWanted())))
        effects: list[Effect] = []
        if answer == "lost":  # before the seek
            rig.step(RequestFailed(commit, NO_ANSWER))
        rig.step(Sought(claim().key, Offset(45)))
        if answer == "stored":
            effects = rig.step(PositionsStored())
        elif answer is None:
            rig.step(RequestFailed(commit, NO_ANSWER))
        effects = effects or rig.step(Ticked(), 1_000)
        (write,) = [one for one in rig.writes(effects) if one.offset is not None]
        assert (write.offset, write.back) == (45, True), answer
        rig.step(PositionsStored())
        assert not rig.core.held[claim().key].back
        assert rig.core.held[claim().key].committed == 45


def test_an_application_that_asks_for_nothing_loses_its_partitions() -> None:
    """It joins again when it asks."""
    rig = Rig().joined(claim(offset=0))
    rig.give(1)
    rig.step(Ticked(), 60_000)
    effects = rig.step(Ticked(), 1)
    assert effects[:2] == [ClaimsLost((claim(offset=0),)), LeaveRequest()]
    assert rig.step(Polled()) == [JoinRequest(1)]


def test_each_membership_has_a_number() -> None:
    """A leave names the membership that it ends; a repeated join does not begin another one."""
    rig = Rig().joined(claim(offset=0))
    (beat,) = rig.step(Ticked(), 2_000)
    expelled = StaleMemberError("expelled", group="g", member="m", replaced=False)
    (_, join) = rig.step(RequestFailed(beat, expelled))  # type: ignore[arg-type]
    assert join == JoinRequest(1)
    report = RequestFailed(ReportRequest("a"), expelled)
    assert rig.step(report) == []  # of the former membership
    assert rig.step(RequestFailed(JoinRequest(1), NO_ANSWER)) == []
    assert rig.step(Ticked(), 250) == [JoinRequest(1)]
    rig.step(Joined("a", 9))
    rig.told(claim(epoch=9, offset=0), epoch=9)
    assert LeaveRequest(1) in rig.step(Ticked(), 60_000)
    assert rig.step(Polled()) == [JoinRequest(2)]
    rig.step(Joined("a", 12))
    assert LeaveRequest(2) in rig.step(CloseAsked(leave=True))


def test_a_slow_member_does_not_join_until_its_application_asks() -> None:
    """Not when the answer to a heartbeat says that it has left; it would leave again at once."""
    for request in (BeatRequest("a", 5), ReportRequest("a")):
        rig = Rig().joined(claim(offset=0))
        rig.step(Ticked(), 2_000)
        assert LeaveRequest() in rig.step(Ticked(), 60_000)
        gone = StaleMemberError("it has left", group="g", member="m", replaced=False)
        assert rig.step(RequestFailed(request, gone)) == []
        assert rig.step(Ticked(), 1_000) == []
        assert rig.step(Polled()) == [JoinRequest(1)]


def test_a_closed_member_commits_before_it_leaves() -> None:
    """With a name of its own it does not leave; without an answer it ends all the same."""
    rig = Rig().joined(claim(offset=0))
    rig.give(1)
    rig.step(Polled())
    (commit,) = rig.step(CloseAsked(leave=True))
    assert isinstance(commit, CommitRequest)
    assert not rig.give(2)
    assert rig.step(PositionsStored()) == [LeaveRequest()]
    assert rig.step(Left()) == [MembershipEnded(None)]
    rig = Rig().joined(claim(offset=0))
    assert rig.step(CloseAsked(leave=False)) == [MembershipEnded(None)]
    rig = Rig().joined(claim(offset=0))
    (leave,) = rig.step(CloseAsked(leave=True))
    assert rig.step(RequestFailed(leave, NO_ANSWER)) == [MembershipEnded(None)]  # type: ignore[arg-type]


def test_what_cannot_be_joined_ends_and_what_may_come_back_is_tried_again() -> None:
    """An unknown stream is the application's to hear of."""
    rig = Rig()
    assert rig.step(RequestFailed(JoinRequest(), NO_ANSWER)) == []
    assert rig.core.due_ms == 250
    assert rig.step(Ticked(), 250) == [JoinRequest()]
    unknown = UnknownStreamError("no stream")
    assert rig.step(RequestFailed(JoinRequest(), unknown)) == [MembershipEnded(unknown)]
    assert replace(claim(), epoch=7).epoch == 7
