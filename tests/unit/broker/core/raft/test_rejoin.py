"""A member with an empty disk: its conclusion from the answers, and when it votes again."""

from __future__ import annotations

import pytest

from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import Effect, FloorReached, Received, Save, Saved, Send, Tick
from broker.core.raft.member import Role
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.errors import ControllersLostError
from broker.model.raft import (
    Entry,
    EntryKind,
    Floor,
    HardState,
    LogImage,
    NodeId,
    Standing,
    Stored,
)
from broker.model.raft_messages import (
    Append,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)

A, B, C, D, E = (NodeId(name) for name in "abcde")
FRESH = Standing(fresh=True)
EMPTY = Standing()


def _knows(term: int, *last: int, behind: bool = False) -> Standing:
    return Standing(behind=behind, term=term, last=Floor(*last))


def _joining(*members: NodeId) -> Rejoin:
    return Rejoin(RaftConfig(members=members), A, random=lambda low, _: low)


def _round(
    joining: Rejoin, told: dict[NodeId, Standing], lives: dict[NodeId, int] | None = None
) -> TakePart | None:
    """Answer one whole round."""
    request_id, found = joining.request_id, None
    for sender, standing in told.items():
        found = joining.told(sender, request_id, (lives or {}).get(sender, 1), standing)
    return found


def test_everybody_is_asked_twice() -> None:
    """One round is not enough; in each round only the answers to its own question count."""
    joining = _joining(A, B, C)
    first = joining.request_id
    asked = [joining.unanswered]
    for sender in (B, B, C, B):
        assert joining.told(sender, first, 1, FRESH) is None
        asked.append(joining.unanswered)
    assert asked == [(B, C), (C,), (C,), (B, C), (B, C)]
    assert joining.request_id != first
    assert _round(joining, {B: FRESH, C: FRESH}) == TakePart()


def test_a_new_group_begins_in_term_zero() -> None:
    """Members that began a moment ago without an entry do not prevent it."""
    joining = _joining(A, B, C)
    assert _round(joining, {B: EMPTY, C: FRESH}) is None
    assert _round(joining, {B: EMPTY, C: FRESH}) == TakePart(0, Floor())


def test_it_takes_part_above_every_term_and_below_the_furthest_log() -> None:
    """The highest term and the furthest log may be told by two; logs compare by term first."""
    joining = _joining(A, B, C)
    told = {B: _knows(9, 3, 50), C: _knows(4, 4, 20)}
    assert _round(joining, told) is None
    assert _round(joining, told) == TakePart(10, Floor(4, 20))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({B: _knows(4, 4, 9), C: FRESH}, {B: _knows(4, 4, 9), C: EMPTY}),
        ({B: EMPTY, C: EMPTY}, {B: _knows(1, 0, 0), C: EMPTY}),
    ],
)
def test_rounds_that_differ_are_no_moment(
    first: dict[NodeId, Standing], second: dict[NodeId, Standing]
) -> None:
    """A member or the group began in between: it asks again."""
    joining = _joining(A, B, C)
    assert _round(joining, first) is None
    assert _round(joining, second) is None
    assert _round(joining, second) is not None


def test_a_process_that_is_new_in_the_second_round_is_asked_again() -> None:
    """Between the two rounds it may have lost the state of its first answer."""
    joining = _joining(A, B, C)
    told = {B: _knows(4, 4, 9), C: _knows(4, 4, 9)}
    assert _round(joining, told) is None
    assert _round(joining, told, {C: 2}) is None
    assert _round(joining, told, {C: 2}) == TakePart(5, Floor(4, 9))


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ((A, B, C), {B: _knows(4, 4, 9), C: FRESH}),
        ((A, B, C, D, E), {B: FRESH, C: FRESH, D: _knows(1, 0, 0), E: EMPTY}),
    ],
)
def test_more_than_a_minority_lost_is_an_operators_case(
    members: tuple[NodeId, ...], told: dict[NodeId, Standing]
) -> None:
    """Entries that they acknowledged together may be on no disk: no new log is begun."""
    joining = _joining(*members)
    assert _round(joining, told) is None
    with pytest.raises(ControllersLostError, match="data directory") as caught:
        _round(joining, told)
    assert str(caught.value.facts["lost"]).startswith("a,")


def test_two_of_five_may_be_lost_at_once() -> None:
    """The three that are left are a majority."""
    joining = _joining(A, B, C, D, E)
    told = {B: FRESH, C: _knows(2, 2, 5), D: _knows(3, 2, 6), E: _knows(2, 1, 1)}
    assert _round(joining, told) is None
    assert _round(joining, told) == TakePart(4, Floor(2, 6))


def test_it_waits_for_one_that_has_not_reached_its_own_floor() -> None:
    """To end the leader's term now would leave too few who may vote."""
    joining = _joining(A, B, C)
    told = {B: _knows(4, 4, 9), C: _knows(4, 4, 9, behind=True)}
    for _ in range(3):
        assert _round(joining, told) is None
        assert joining.unanswered == (B, C)
    assert joining.behind == (C,)
    told[C] = _knows(4, 4, 9)
    found = _round(joining, told)
    assert found == TakePart(5, Floor(4, 9))


# ---------------------------------------------------------------------------- below the floor


class Rig:
    """A core that rejoined in term 5 below a floor; its saves succeed when the test says so."""

    def __init__(self, floor: Floor) -> None:
        stored = Stored(HardState(5, A), None, LogImage(0, 0, ()), floor)
        config = RaftConfig(members=(A, B, C))
        self.core = RaftCore(config, A, stored, random=lambda low, _: low)
        self.member = self.core.member
        self.now_ms = 0
        self.saves: list[int] = []
        self.reached = False
        self.core.start(0)

    def step(self, event: object) -> list[Message]:
        """Feed one event; return what is sent at once."""
        return self._sent(self.core.step(self.now_ms, event))  # type: ignore[arg-type]

    def get(self, sender: NodeId, message: Message) -> list[Message]:
        """Receive a message; return what is sent at once."""
        return self.step(Received(sender, message))

    def abstains(self) -> bool:
        """Tell whether it may not vote."""
        return self.member.abstains

    def save(self) -> list[Message]:
        """Let the waiting saves succeed; return the messages held back for them."""
        found: list[Message] = []
        while self.saves:
            found += self.step(Saved(self.saves.pop(0)))
        return found

    def _sent(self, effects: list[Effect]) -> list[Message]:
        self.saves += [one.number for one in effects if isinstance(one, Save)]
        self.reached |= any(isinstance(one, FloorReached) for one in effects)
        return [one.message for one in effects if isinstance(one, Send)]


def _append(term: int, prev: tuple[int, int], *terms: int) -> Append:
    entries = (
        Entry(prev[0] + 1 + at, one, EntryKind.NOOP, 0, 0, b"") for at, one in enumerate(terms)
    )
    return Append(term, *prev, 0, 1, 0, 0, tuple(entries))


def test_below_its_floor_it_neither_votes_nor_stands() -> None:
    """Not for a longer log, not at a hand-over by the leader, not after its election timeout."""
    rig = Rig(Floor(4, 2))
    assert rig.get(B, PreVote(9, 100, 5)) == [PreVoteReply(5, 9, False)]
    rig.get(B, Vote(9, 100, 5, transfer=True, candidacy=3))
    assert rig.save() == [VoteReply(9, False, 3)]
    assert rig.member.vote is None
    rig.get(B, _append(9, (0, 0), 3))
    rig.save()
    assert rig.get(B, TimeoutNow(9)) == []
    rig.now_ms += 10_000
    assert rig.step(Tick()) == []
    assert rig.member.role is Role.FOLLOWER
    assert rig.member.leader is None


def test_it_votes_once_its_disk_has_reached_the_floor() -> None:
    """Entries in memory do not count; an entry of a later term reaches an earlier floor."""
    rig = Rig(Floor(4, 2))
    rig.get(B, _append(6, (0, 0), 3, 6))
    assert rig.abstains()
    rig.save()
    assert rig.reached
    assert not rig.abstains()
    rig.now_ms += 10_000
    rig.step(Tick())
    assert rig.member.role is Role.PRECANDIDATE


def test_a_longer_log_of_an_older_term_is_not_enough() -> None:
    """Entries that it acknowledged in the floor's term may be missing."""
    rig = Rig(Floor(4, 2))
    rig.get(B, _append(6, (0, 0), 3, 3, 3))
    rig.save()
    assert rig.abstains()
    rig.get(B, _append(6, (1, 3), 4, 4))
    rig.save()
    assert not rig.abstains()


def test_a_reached_floor_on_the_disk_is_dropped_at_once() -> None:
    """The process crashed after it reached the floor and before it noted so."""
    entries = (Entry(1, 4, EntryKind.NOOP, 0, 0, b""),)
    stored = Stored(HardState(5, A), None, LogImage(0, 0, entries), Floor(4, 1))
    core = RaftCore(RaftConfig(members=(A, B, C)), A, stored, random=lambda low, _: low)
    assert any(isinstance(one, FloorReached) for one in core.start(0))
    assert not core.member.abstains


def test_the_leader_steps_down_before_the_one_that_rejoined() -> None:
    """It learns the newer term; its count of that member's entries ends with its leadership."""
    rig = Rig(Floor(4, 2))
    (reply,) = rig.get(B, _append(4, (0, 0), 4))
    assert (reply.term, rig.member.log.last_index) == (5, 0)


def test_it_tells_its_floor_and_what_is_in_memory() -> None:
    """Another one with an empty disk must reach all that this one may have acknowledged."""
    rig = Rig(Floor(4, 2))
    assert rig.member.standing == Standing(behind=True, term=5, last=Floor(4, 2))
    rig.get(B, _append(6, (0, 0), 6))
    assert rig.member.standing == Standing(behind=True, term=6, last=Floor(6, 1))
    rig.save()
    assert rig.member.standing == Standing(term=6, last=Floor(6, 1))


def test_a_vote_for_a_former_life_is_not_counted() -> None:
    """The candidate's earlier process, on a disk that is gone, had asked for it in this term."""
    stored = Stored(HardState(5), None, LogImage(0, 0, ()))
    core = RaftCore(RaftConfig(members=(A, B, C)), A, stored, random=lambda low, _: low)
    core.start(0)
    core.step(10_000, Tick())
    effects = core.step(10_000, Received(B, PreVoteReply(5, 6, True)))
    for one in effects:
        if isinstance(one, Save):
            core.step(10_000, Saved(one.number))
    roles = [core.member.role]
    for candidacy in (99, 0):
        core.step(10_000, Received(B, VoteReply(6, True, candidacy)))
        roles.append(core.member.role)
    assert roles == [Role.CANDIDATE, Role.CANDIDATE, Role.LEADER]
