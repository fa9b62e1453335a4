"""A change of the voters, step by step: requests, counted votes, refusals."""

from __future__ import annotations

import pytest

from broker.codec.disk.raft_state import decode_state, encode_state, voters_of
from broker.codec.disk.raft_voters import decode_voters, encode_voters
from broker.core.raft.compare import Compare, GoOn
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import (
    Barrier,
    BarrierPassed,
    ChangeRefusal,
    ChangeVoters,
    SnapshotMade,
    VotersChanged,
    VotersKept,
)
from broker.core.raft.member import Role
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.errors import ControllersLostError, MetadataCorruptError
from broker.model.raft import (
    Entry,
    EntryKind,
    Floor,
    HardState,
    NodeId,
    Standing,
    Voter,
    Voters,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Invite,
    Invited,
    PreVote,
    TimeoutNow,
    Vote,
    VoteReply,
)
from simkit.raft.rig import A, B, C, D, E, MemberRig, append, entries

FIRST = tuple(Voter(one) for one in (A, B, C))
WITH_D = (*FIRST, Voter(D, 9))


def _ok(rig: MemberRig, index: int | None = None, round_number: int = 0) -> AppendReply:
    at = rig.last_index if index is None else index
    return AppendReply(rig.member.term, True, at, 0, 0, round_number)


def _leader(*others: NodeId, observers: tuple[NodeId, ...] = (D, E)) -> MemberRig:
    """Return a as the leader of itself and the others; everybody has everything."""
    rig = MemberRig(RaftCore, members=(A, *others), observers=observers)
    if others:
        rig.lead()
    for peer in (*others, *observers):
        rig.get(peer, _ok(rig))
    rig.effects.clear()
    return rig


def _kept(rig: MemberRig) -> list[ChangeRefusal]:
    return [one.reason for one in rig.effects if isinstance(one, VotersKept)]


def _entry(index: int, term: int, voters: Voters) -> Entry:
    return Entry(index, term, EntryKind.VOTERS, 0, 0, encode_voters(voters))


def _add(rig: MemberRig, node: NodeId, disk: int) -> None:
    rig.step(ChangeVoters(1, add=node))
    rig.get(node, Invited(rig.member.term, disk))
    rig.step(ChangeVoters(2, add=node))


# ---------------------------------------------------------------------------- adding


def test_who_is_added_tells_its_disk_first_and_counts_at_once() -> None:
    """The leader asks for it; with the number the entry is in the log, and in force."""
    rig = _leader(B, C)
    assert Invite(rig.member.term) in rig.step(ChangeVoters(1, add=D))
    assert _kept(rig) == [ChangeRefusal.INVITED]
    rig.get(D, Invited(rig.member.term, 9))
    rig.step(ChangeVoters(2, add=D))
    assert VotersChanged(2, 2) in rig.effects
    assert rig.member.history.voters == WITH_D
    assert (rig.member.quorum, rig.member.commit) == (3, 1)
    rig.get(B, _ok(rig))
    assert rig.member.commit == 1  # two of four
    rig.get(D, _ok(rig))
    assert rig.member.commit == 2


def test_who_has_not_caught_up_is_not_added() -> None:
    """A silent member or an unknown one is not added either."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    rig.lead()
    rig.get(B, _ok(rig))
    rig.step(ChangeVoters(1, add=D))
    rig.step(ChangeVoters(2, add=NodeId("nobody")))
    rig.get(D, _ok(rig))
    for _ in range(11):
        rig.wait(100)
        rig.get(B, _ok(rig))
    rig.step(ChangeVoters(3, add=D))
    assert _kept(rig) == [ChangeRefusal.CATCHING_UP, ChangeRefusal.UNKNOWN, ChangeRefusal.SILENT]


def test_what_is_so_already_is_done() -> None:
    """A repeated request for the same change succeeds."""
    rig = _leader(B, C)
    rig.step(ChangeVoters(1, add=B))
    rig.step(ChangeVoters(2, remove=D))
    assert [one for one in rig.effects if isinstance(one, VotersChanged)] == [
        VotersChanged(1, 0),
        VotersChanged(2, 0),
    ]
    assert rig.last_index == 1


def test_a_new_voter_hears_of_it_once_most_of_the_old_ones_have_it() -> None:
    """Otherwise only the new voter and one lost disk might know of the change."""
    rig = _leader(B, C)
    _add(rig, D, 9)
    assert not any(one.entries for one in rig.said_to(D) if isinstance(one, Append))
    rig.get(B, _ok(rig))
    assert [one.entries for one in rig.said_to(D) if isinstance(one, Append)] == [
        (_entry(2, 1, WITH_D),)
    ]


# ---------------------------------------------------------------------------- one at a time


def test_a_change_waits_for_the_one_before() -> None:
    """A second change is refused until the first one is committed."""
    rig = _leader(B, C)
    _add(rig, D, 9)
    rig.get(E, Invited(rig.member.term, 8))
    rig.step(ChangeVoters(3, add=E))
    assert _kept(rig)[-1] is ChangeRefusal.CHANGE_UNDER_WAY
    assert rig.last_index == 2


def test_a_change_waits_for_an_entry_of_the_own_term() -> None:
    """An uncommitted entry of an earlier leader may be another change (Ongaro, 2015)."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    rig.lead()
    rig.step(ChangeVoters(1, remove=C))
    assert _kept(rig) == [ChangeRefusal.TERM_BEGINS]


def test_only_a_leader_changes_voters_and_the_last_one_stays() -> None:
    """Both refusals name the reason."""
    rig = MemberRig(RaftCore, members=(A, B, C))
    rig.step(ChangeVoters(1, remove=C))
    alone = _leader()
    alone.step(ChangeVoters(2, remove=A))
    assert (_kept(rig), _kept(alone)) == ([ChangeRefusal.NOT_LEADER], [ChangeRefusal.LAST])


def test_nothing_is_changed_to_what_could_not_decide() -> None:
    """One of three is silent: without another there is no majority any more."""
    rig = _leader(B, C)
    for _ in range(11):
        rig.wait(100)
        rig.get(B, _ok(rig))
    rig.step(ChangeVoters(1, remove=B))
    assert _kept(rig) == [ChangeRefusal.TOO_FEW]
    rig.step(ChangeVoters(2, remove=C))
    assert rig.member.history.voters == FIRST[:2]


# ---------------------------------------------------------------------------- removing


def test_a_removed_voter_counts_for_nothing_at_once() -> None:
    """Neither its copies nor its answers to rounds are counted."""
    rig = _leader(B, C)
    rig.step(ChangeVoters(1, remove=C))
    rig.get(C, _ok(rig))
    assert rig.member.commit == 1
    rig.step(Barrier(7))
    asked = max(one.round for one in rig.said_to(C) if isinstance(one, Append))
    rig.get(C, _ok(rig, round_number=asked))
    assert BarrierPassed(7, 1) not in rig.effects
    rig.get(B, _ok(rig, round_number=asked))
    assert rig.member.commit == 2
    assert BarrierPassed(7, 1) in rig.effects


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    """Its own copy counts no more; then it hands over, and follows."""
    rig = _leader(B, C)
    rig.step(ChangeVoters(1, remove=A))
    rig.get(B, _ok(rig))
    assert (rig.member.commit, rig.leads()) == (1, True)
    assert TimeoutNow(rig.member.term) in rig.get(C, _ok(rig))
    assert rig.member.commit == 2
    for _ in range(12):
        rig.wait(100)
        rig.get(B, _ok(rig))
        rig.get(C, _ok(rig))
    assert rig.member.role is Role.FOLLOWER
    rig.effects.clear()
    rig.wait(10_000)
    assert rig.member.role is Role.FOLLOWER, "it stands, and is no voter"


def test_a_removed_voter_stands_as_long_as_that_may_be_needed() -> None:
    """Its log may be the only one that is far enough; it has no vote of its own then."""
    rig = MemberRig(RaftCore, members=(A, B, C))
    without = tuple(Voter(one) for one in (B, C))
    rig.get(B, append(1, (0, 0), (*entries(1, 1, 1), _entry(2, 1, without)), commit=1))
    said = rig.wait(10_000)
    assert PreVote(2, 2, 1) in said
    rig.get(B, append(1, (2, 1), commit=2))
    assert rig.wait(10_000) == []


# ---------------------------------------------------------------------------- seen by a follower


def test_a_configuration_is_in_force_until_it_is_cut_off() -> None:
    """It need not be committed. Once it is cut off, the configuration before it is in force."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    rig.get(B, append(1, (0, 0), (*entries(1, 1, 1), _entry(2, 1, WITH_D)), commit=1))
    assert rig.member.history.voters == WITH_D
    assert rig.member.standing.voters == (A, B, C, D)
    rig.restart(power=True)
    assert rig.member.history.voters == WITH_D
    rig.get(C, append(2, (1, 1), entries(2, 2, 2), commit=1))
    assert rig.member.history.voters == FIRST
    assert rig.member.standing.voters == ()


def test_an_observer_that_was_asked_for_its_disk_votes_whatever_its_log_says() -> None:
    """It votes with its disk number, which is durable; before it was asked it does not vote."""
    rig = MemberRig(RaftCore, members=(B, C, D), observers=(A,))
    rig.get(B, append(1, (0, 0), entries(1, 1, 1), commit=1))
    rig.now_ms += 5000
    assert rig.get(C, Vote(2, 9, 2, transfer=True, disk=5)) == []
    (told,) = rig.get(B, Invite(1))
    assert isinstance(told, Invited)
    assert told.disk > 0
    rig.restart(power=True)
    assert rig.get(B, Invite(1)) == []  # it does not know its leader yet
    rig.get(B, append(1, (1, 1), commit=1))
    assert rig.get(B, Invite(1)) == [told]
    (vote,) = rig.get(C, Vote(2, 9, 2, transfer=True, disk=5))
    assert vote == VoteReply(2, True, 0, told.disk)


def test_a_vote_counts_with_the_disk_that_the_configuration_names() -> None:
    """Another disk does not hold the votes that were given before."""
    for disk, role in ((8, Role.CANDIDATE), (9, Role.LEADER)):
        rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
        log = (*entries(1, 1, 1), _entry(2, 1, WITH_D))
        rig.get(B, append(1, (0, 0), log, commit=2))
        rig.lead_with(D, VoteReply(2, granted=True, disk=disk))
        assert rig.member.role is role


def test_before_the_first_change_nobody_else_is_voted_for() -> None:
    """Only a mistake in a file can name others; later there are newer configurations."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    assert rig.get(D, Vote(9, 100, 9, transfer=True)) == []
    (vote,) = rig.get(D, Vote(9, 100, 9, transfer=True, disk=3))
    assert vote == VoteReply(9, True)


def test_whoever_leads_is_followed() -> None:
    """The follower's own log may not name the leader as a voter yet."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    (reply,) = rig.get(D, append(9, (0, 0), entries(1, 1, 9)))
    assert reply == AppendReply(9, True, 1, 0, 0, 1)
    assert rig.member.leader == D


# ---------------------------------------------------------------------------- snapshots


def test_a_snapshot_says_who_votes_and_one_of_before_does_not() -> None:
    """Old bytes are unchanged; new ones begin with the configuration."""
    old, new = encode_state(3, [], b"m"), encode_state(3, [], b"m", WITH_D)
    assert (old[4], new[4]) == (1, 2)
    assert (voters_of(old), voters_of(new)) == (None, WITH_D)
    assert (decode_state(3, old).voters, decode_state(3, new).voters) == (None, WITH_D)
    assert decode_state(3, new).machine == b"m"
    for end in range(len(new)):
        with pytest.raises(MetadataCorruptError):
            decode_state(3, new[:end])


def test_a_restart_behind_a_snapshot_knows_the_voters() -> None:
    """The entry itself is compacted."""
    rig = _leader(B, C)
    _add(rig, D, 9)
    for peer in (B, C, D):
        rig.get(peer, _ok(rig))
    rig.step(SnapshotMade(2, rig.take_snapshot()))
    assert rig.member.log.base_index == 2
    rig.restart(power=True)
    assert rig.member.history.voters == WITH_D


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x00",
        b"\x02\x01" + bytes(9) + b"a",
        encode_voters(FIRST)[:-1],
        encode_voters(FIRST) + b"x",
        b"\x01\x02" + (bytes(8) + b"\x01b") + (bytes(8) + b"\x01a"),
        b"\x01\x02" + 2 * (bytes(8) + b"\x01a"),
        b"\x01\x01" + b"\xff" * 8 + b"\x01a",
        b"\x01\x01" + bytes(9),
        b"\x01\xff",
    ],
)
def test_what_is_no_configuration_is_refused(data: bytes) -> None:
    """Cut short, too long, out of order, twice, out of bounds."""
    with pytest.raises(MetadataCorruptError):
        decode_voters(data)


def test_configurations_are_read_as_they_were_written() -> None:
    """The encoded order does not depend on the order of the input."""
    assert decode_voters(encode_voters(tuple(reversed(WITH_D)))) == WITH_D


# ---------------------------------------------------------------------------- starts


def test_a_wiped_first_voter_of_a_changed_group_becomes_an_observer() -> None:
    """It does not know who all the others are: an operator makes it a voter anew."""
    joining = Rejoin(RaftConfig(members=(A, B, C)), A, random=lambda low, _: low)
    told = Standing(term=4, last=Floor(4, 9), voters=(A, B, D))
    assert joining.told(B, joining.request_id, 1, told) == TakePart(disk=1)


def test_the_only_voter_of_a_changed_group_cannot_be_wiped() -> None:
    """No other voter is left, so the start fails at once instead of waiting."""
    joining = Rejoin(RaftConfig(members=(A, B, C)), A, random=lambda low, _: low)
    with pytest.raises(ControllersLostError):
        joining.told(B, joining.request_id, 1, Standing(term=4, last=Floor(4, 9), voters=(A,)))


def _compare(*members: NodeId, observers: tuple[NodeId, ...], own: Standing) -> Compare:
    config = RaftConfig(members=members, observers=observers)
    return Compare(config, A, HardState(3, B, 2), random=lambda low, _: low, own=own)


def _round(compare: Compare, told: dict[NodeId, Standing]) -> GoOn | None:
    found, request_id = None, compare.request_id
    for name, standing in told.items():
        found = found or compare.told(name, request_id, 1, standing)
    return found


def test_a_restarted_voter_waits_for_those_whom_the_furthest_log_names() -> None:
    """The voters of its own disk's time do not count, because they may be gone."""
    own = Standing(term=3, last=Floor(3, 5), voters=(A, B, C))
    compare = _compare(A, B, C, observers=(D, E), own=own)
    now = Standing(term=7, last=Floor(7, 30), voters=(A, D, E))
    assert set(compare.unanswered) == {B, C, D, E}
    assert _round(compare, {D: now}) is None
    assert _round(compare, {B: own, C: own, D: now}) is None
    assert _round(compare, {E: now}) is None
    assert _round(compare, {D: now, E: now}) == GoOn(HardState(7, A, 2), Floor(7, 30))


def test_a_voter_alone_asks_those_who_watch_for_the_grace() -> None:
    """Its disk may be an old copy, of a time when it was the only voter."""
    compare = _compare(A, observers=(D,), own=Standing(term=3, last=Floor(3, 5)))
    assert compare.unanswered == (D,)
    assert compare.leave_out_silent() == GoOn(HardState(3, B, 2))
    compare = _compare(A, observers=(D, E), own=Standing(term=3, last=Floor(3, 5)))
    now = Standing(term=7, last=Floor(7, 30), voters=(A, D, E))
    assert _round(compare, {D: now}) is None
    assert set(compare.unanswered) == {D, E}
