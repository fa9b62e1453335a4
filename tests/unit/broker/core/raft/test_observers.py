"""Members that do not vote: they get every committed entry, and no decision counts them."""

from __future__ import annotations

import pytest

from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import (
    Barrier,
    BarrierFailed,
    BarrierPassed,
    Propose,
    Refusal,
    Refused,
    SnapshotMade,
    TransferLeadership,
)
from broker.core.raft.member import Role
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.errors import ControllersLostError, InvalidConfigError
from broker.model.raft import Floor, NodeId, Standing
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    Forward,
    PreVote,
    PreVoteReply,
    ReadIndexReply,
    ReadIndexRequest,
    TimeoutNow,
    Vote,
    VoteReply,
)
from simkit.raft.rig import A, B, C, D, E, MemberRig, append, entries, proposal, snapshot_of

FRESH = Standing(fresh=True)
EMPTY = Standing()


def _leader(**sizes: int) -> MemberRig:
    """Return the leader of a, b, c, observed by d and e; its first entry is not committed."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D, E), **sizes)
    rig.lead()
    return rig


def _observer() -> MemberRig:
    """Return a as the observer of b, c, d."""
    return MemberRig(RaftCore, members=(B, C, D), observers=(A,))


def _ok(rig: MemberRig, index: int, round_number: int = 1) -> AppendReply:
    return AppendReply(rig.member.term, True, index, 0, 0, round_number)


# ---------------------------------------------------------------------------- seen by the leader


def test_an_observers_copies_commit_nothing() -> None:
    """However many of them have an entry; one member more is a majority."""
    rig = _leader()
    for observer in (D, E):
        rig.get(observer, _ok(rig, 1))
    assert rig.member.commit == 0
    rig.get(B, _ok(rig, 1))
    assert rig.member.commit == 1


def test_an_observer_is_sent_what_members_are_sent() -> None:
    """Entries at once, the commit as soon as it is known."""
    rig = _leader()
    (first,) = [one for one in rig.said_to(D) if isinstance(one, Append)]
    assert [one.index for one in first.entries] == [1]
    rig.get(D, _ok(rig, 1))
    rig.said_to(D)
    rig.get(B, _ok(rig, 1))
    (told,) = rig.said_to(D)
    assert isinstance(told, Append)
    assert told.commit == 1


def test_observers_do_not_keep_a_leader_in_office() -> None:
    """The observers answer and the voters do not, so the leader steps down."""
    rig = _leader()
    for _ in range(12):
        rig.get(D, _ok(rig, 1))
        rig.wait(100)
    assert rig.member.role is not Role.LEADER


def test_observers_confirm_no_barrier() -> None:
    """A majority of the members has to answer the round."""
    rig = _leader()
    rig.get(B, _ok(rig, 1))
    rig.step(Barrier(1))
    asked = max(one.round for one in rig.said_to(D) if isinstance(one, Append))
    for observer in (D, E):
        rig.get(observer, _ok(rig, 1, asked))
    assert BarrierPassed(1, 1) not in rig.effects
    rig.get(C, _ok(rig, 1, asked))
    assert BarrierPassed(1, 1) in rig.effects


def test_an_observers_barrier_and_proposal_are_served() -> None:
    """The leader serves them as it serves any follower's."""
    rig = _leader()
    rig.get(B, _ok(rig, 1))
    rig.get(D, ReadIndexRequest(rig.member.term, 7))
    said = rig.get(C, _ok(rig, 1, 100))
    assert ReadIndexReply(rig.member.term, 7, 1) in said
    rig.get(D, Forward(0, proposal(0)))
    assert rig.last_index == 2


def test_office_is_not_handed_to_an_observer() -> None:
    """The refused request does not block proposals either."""
    rig = _leader()
    rig.get(D, _ok(rig, 1))
    assert TimeoutNow(rig.member.term) not in rig.step(TransferLeadership(D))
    rig.step(Propose(proposal(0)))
    assert rig.last_index == 2


def test_an_observers_votes_are_not_counted() -> None:
    """Neither its pre-vote nor its vote counts, and no candidate asks it."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D, E))
    rig.wait(rig.config.election_ms_max + 1)
    for observer in (D, E):
        assert rig.said_to(observer) == []
        rig.get(observer, PreVoteReply(0, 1, granted=True))
    roles = [rig.member.role]
    rig.get(B, PreVoteReply(0, 1, granted=True))
    for observer in (D, E):
        rig.get(observer, VoteReply(1, granted=True))
    roles.append(rig.member.role)
    assert roles == [Role.PRECANDIDATE, Role.CANDIDATE]


@pytest.mark.parametrize(
    "said",
    [
        PreVote(9, 100, 9),
        Vote(9, 100, 9, transfer=True),
        TimeoutNow(0),
    ],
)
def test_what_only_members_may_say_is_not_heard_from_an_observer(said: object) -> None:
    """Its own configuration may differ and name it as a voter."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    assert rig.get(D, said) == []  # type: ignore[arg-type]
    assert (rig.member.term, rig.member.leader, rig.last_index) == (0, None, 0)


def test_an_observer_far_behind_gets_the_snapshot() -> None:
    """It lost its disk, the entries are compacted; it goes on behind the snapshot."""
    rig = _leader()
    for one in (B, D):
        rig.get(one, _ok(rig, 1))
    rig.step(SnapshotMade(1, rig.take_snapshot()))
    rig.said_to(D)
    (chunk,) = rig.get(D, AppendReply(rig.member.term, False, 1, 0, 0, 1))
    assert isinstance(chunk, Chunk)
    assert chunk.snapshot.index == 1
    rig.get(D, _ok(rig, 1))
    rig.said_to(D)
    rig.step(Propose(proposal(0)))
    (sent,) = rig.said_to(D)
    assert isinstance(sent, Append)
    assert sent.prev_index == 1


def test_an_observer_that_lost_its_disk_begins_anew_within_the_term() -> None:
    """The leader forgets its acknowledgements; a member's refusal stays below its ack."""
    rig = _leader()
    for one in (B, D):
        rig.get(one, _ok(rig, 1))
        rig.said_to(one)
        rig.get(one, AppendReply(rig.member.term, False, 1, 0, 0, 1))
    (probe,) = rig.said_to(D)
    assert isinstance(probe, Append)
    assert (probe.prev_index, len(probe.entries)) == (0, 1)
    assert rig.member.commit == 1
    rig.get(D, _ok(rig, 1))
    rig.step(Propose(proposal(0)))
    assert [one.prev_index for one in rig.said_to(D) if isinstance(one, Append)] == [1]


# ---------------------------------------------------------------------------- seen by itself


def test_an_observer_neither_stands_nor_votes() -> None:
    """Neither an election timeout, nor the best log, nor a hand-over makes it stand or vote."""
    rig = _observer()
    rig.get(B, append(1, (0, 0), entries(1, 2, 1), commit=2))
    assert rig.member.commit == 2
    assert rig.get(B, TimeoutNow(1)) == []
    rig.effects.clear()
    assert rig.wait(10_000) == []
    assert (rig.member.role, rig.member.leader) == (Role.FOLLOWER, None)
    for asked in (PreVote(9, 100, 9), Vote(9, 100, 9, transfer=True)):
        assert rig.get(C, asked) == []
    assert (rig.member.term, rig.member.vote) == (1, None)


def test_an_observer_follows_one_leader_after_another() -> None:
    """Entries of the first leader that the second does not have are cut off."""
    rig = _observer()
    rig.get(B, append(1, (0, 0), entries(1, 3, 1), commit=1))
    (reply,) = rig.get(C, append(2, (1, 1), entries(2, 2, 2), commit=2))
    assert reply == AppendReply(2, True, 2, 0, 0, 1)
    assert [(one.index, one.term) for one in rig.applied] == [(1, 1), (2, 2)]


def test_an_observer_takes_a_snapshot_and_keeps_it() -> None:
    """The snapshot is still there after a power cut."""
    rig = _observer()
    snapshot = snapshot_of(5, 2)
    rig.get(B, Chunk(3, snapshot.id, 0, 1, snapshot.data))
    assert rig.restored == [snapshot]
    rig.restart(power=True)
    assert rig.restored == [snapshot]
    (reply,) = rig.get(B, append(3, (5, 2), entries(6, 6, 3), commit=6))
    assert reply == AppendReply(3, True, 6, 0, 0, 1)


def test_an_observer_restarts_where_it_was() -> None:
    """Acknowledged entries are on its disk, as on a member's."""
    rig = _observer()
    rig.get(B, append(1, (0, 0), entries(1, 3, 1), commit=3))
    rig.restart(power=True)
    (reply,) = rig.get(B, append(1, (3, 1), commit=3))
    assert reply == AppendReply(1, True, 3, 0, 0, 1)


def test_an_observer_asks_the_leader() -> None:
    """It asks for barriers; a proposal is refused here, and the driver forwards it."""
    rig = _observer()
    rig.step(Barrier(1))
    assert BarrierFailed(1) in rig.effects
    rig.get(B, append(1, (0, 0), entries(1, 1, 1), commit=1))
    (asked,) = rig.step(Barrier(2))
    assert isinstance(asked, ReadIndexRequest)
    rig.get(B, ReadIndexReply(1, asked.number, 1))
    assert BarrierPassed(2, 1) in rig.effects
    rig.step(Propose(proposal(0)))
    assert Refused(proposal(0), Refusal.NOT_LEADER) in rig.effects


def test_a_single_member_commits_alone_beside_observers() -> None:
    """The single voter is the majority."""
    rig = MemberRig(RaftCore, members=(A,), observers=(B, C))
    assert rig.leads()
    assert rig.member.commit == 1


@pytest.mark.parametrize("observers", [(A,), (D, D)])
def test_an_observer_is_no_member_and_named_once(observers: tuple[NodeId, ...]) -> None:
    """A configuration in which a name is a voter and an observer is refused."""
    with pytest.raises(InvalidConfigError, match="observer"):
        RaftConfig(members=(A, B, C), observers=observers)


# ---------------------------------------------------------------------------- an empty disk


def _round(joining: Rejoin, told: dict[NodeId, Standing]) -> TakePart | None:
    request_id, found = joining.request_id, None
    for sender, standing in told.items():
        found = found or joining.told(sender, request_id, 1, standing)
    return found


def _joining(*members: NodeId, observers: tuple[NodeId, ...] = (D,)) -> Rejoin:
    return Rejoin(RaftConfig(members=members, observers=observers), A, random=lambda low, _: low)


def test_a_wiped_member_needs_no_answer_of_observers() -> None:
    """They never voted, so their term and log in an answer change nothing."""
    joining = _joining(A, B, C)
    knows = Standing(term=4, last=Floor(4, 9))
    beyond = Standing(term=9, last=Floor(9, 99))
    assert joining.unanswered == (B, C, D)
    assert _round(joining, {D: beyond, B: knows, C: knows}) is None
    assert _round(joining, {B: knows, C: knows}) == TakePart(5, Floor(4, 9))


def test_a_new_group_begins_once_all_observers_say_that_they_know_nothing() -> None:
    """They have to say so in both rounds."""
    joining = _joining(A, B, C)
    assert _round(joining, {B: FRESH, C: FRESH}) is None
    assert joining.unanswered == (D,)
    assert _round(joining, {D: EMPTY}) is None
    assert _round(joining, {B: FRESH, C: FRESH, D: EMPTY}) == TakePart()


@pytest.mark.parametrize("members", [(A, B, C), (A,)])
def test_no_group_begins_beside_an_observer_that_knows_one(members: tuple[NodeId, ...]) -> None:
    """Every member lost its disk: committed entries must not be forgotten in silence."""
    joining = _joining(*members)
    told = dict.fromkeys(members[1:], FRESH) | {D: Standing(term=3, last=Floor(3, 7))}
    assert _round(joining, told) is None
    with pytest.raises(ControllersLostError, match="data directory"):
        _round(joining, told)


def test_a_group_that_is_just_beginning_is_waited_for() -> None:
    """An observer has heard of it a moment before the members that are asked."""
    joining = _joining(A, B, C)
    begun = {B: EMPTY, C: FRESH, D: Standing(term=1, last=Floor(1, 1))}
    for _ in range(3):
        assert _round(joining, begun) is None
    knows = Standing(term=1, last=Floor(1, 1))
    assert _round(joining, {B: knows, C: knows}) is None
    assert _round(joining, {B: knows, C: knows}) == TakePart(2, Floor(1, 1))
