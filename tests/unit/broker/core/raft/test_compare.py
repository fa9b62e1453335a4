"""How a restarting voter continues: the answers, the voters it waits for, its votes."""

from __future__ import annotations

import pytest

from broker.core.raft.compare import Compare, GoOn
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import NewConsensus
from broker.core.raft.events import Effect, Event, Received, Save, Saved, Send, Tick
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
from broker.model.raft_messages import Append, Message, PreVote, PreVoteReply, Vote, VoteReply
from simkit.raft.groups import CORES

A, B, C, D, E = FIVE = tuple(NodeId(name) for name in "abcde")
NAMES = FIVE[:3]
GRACE_MS = 5000


OWN = HardState(3, B, 2)


def _compare(hard: HardState = OWN, *, members: tuple[NodeId, ...] = NAMES) -> Compare:
    return Compare(RaftConfig(members=members), A, hard, random=lambda low, _: low)


def _round(compare: Compare, told: dict[NodeId, Standing], *, lives: int = 1) -> GoOn | None:
    found, request_id = None, compare.request_id
    for name, standing in told.items():
        found = found or compare.told(name, request_id, lives, standing)
    return found


def test_it_learns_the_highest_term_and_the_furthest_log() -> None:
    """Both other voters are asked twice; in a term that is new to it, it gives no vote."""
    compare = _compare()
    told = {B: Standing(term=6, last=Floor(5, 9)), C: Standing(term=5, last=Floor(5, 11))}
    assert _round(compare, told) is None
    assert _round(compare, told) == GoOn(HardState(6, A, 2), Floor(5, 11))


def test_what_the_disk_knows_better_stays() -> None:
    """Its own vote stays, and so does its own term if that is higher than the answers."""
    for own, term in ((OWN, 3), (HardState(9, C, 2), 3)):
        compare, told = _compare(own), {B: Standing(term=term), C: Standing(term=term)}
        _round(compare, told)
        assert _round(compare, told) == GoOn(own)


def test_answers_have_to_be_of_one_moment() -> None:
    """A process that ended in between begins the asking again."""
    compare, told = _compare(), {B: Standing(term=3), C: Standing(term=3)}
    assert _round(compare, told) is None
    assert _round(compare, told, lives=2) is None
    assert _round(compare, told, lives=2) is not None


def test_who_is_silent_is_left_out_only_beside_a_majority() -> None:
    """Without any answer it keeps waiting for all voters."""
    compare = _compare()
    waits_for: list[tuple[NodeId, ...]] = []
    compare.leave_out_silent()
    waits_for.append(compare.unanswered)
    _round(compare, {B: Standing(term=4, last=Floor(4, 7))})
    compare.leave_out_silent()
    waits_for.append(compare.unanswered)
    assert waits_for == [(B, C), (B,)]
    _round(compare, {B: Standing(term=4, last=Floor(4, 7))})
    found = _round(compare, {B: Standing(term=4, last=Floor(4, 7))})
    assert found == GoOn(HardState(4, A, 2), Floor(4, 7), silent=(C,))


def test_who_answers_and_ends_is_left_out() -> None:
    """The other has answered in that round, so is not asked in it again: it counts as there."""
    compare, told = _compare(), Standing(term=4, last=Floor(4, 7))
    _round(compare, {B: told, C: told})
    _round(compare, {B: told})
    compare.leave_out_silent()
    assert compare.unanswered == (C,)
    compare.leave_out_silent()
    assert compare.unanswered == (B,)
    _round(compare, {B: told})
    assert _round(compare, {B: told}) == GoOn(HardState(4, A, 2), Floor(4, 7), silent=(C,))


def test_two_of_five_are_left_out_whenever_the_others_answer() -> None:
    """The others need not all answer in the same round."""
    compare, told = _compare(members=FIVE), Standing(term=4, last=Floor(4, 7))
    _round(compare, {B: told})
    compare.leave_out_silent()
    _round(compare, {D: told})
    compare.leave_out_silent()
    assert compare.unanswered == (B, D)
    _round(compare, {B: told, D: told})
    found = _round(compare, {B: told, D: told})
    assert found == GoOn(HardState(4, A, 2), Floor(4, 7), silent=(C, E))


class _Restarted:
    """A member with entries 1 to 3 of term 1, told of a log that ends at 5 of term 2."""

    def __init__(self, new_core: NewConsensus, *, grace_ms: int = GRACE_MS) -> None:
        entries = tuple(Entry(index, 1, EntryKind.NOOP, 0, 0, b"") for index in (1, 2, 3))
        stored = Stored(HardState(2, A), None, LogImage(0, 0, entries), bar=Floor(2, 5))
        config = RaftConfig(members=NAMES, restart_grace_ms=grace_ms)
        self.core = new_core(config, A, stored, random=lambda low, _: low)
        self.now_ms = 0
        self.said: list[Message] = []
        self._take(self.core.start(0))

    def hears(self, message: Message) -> list[Message]:
        self.said = []
        self._step(Received(B, message))
        return self.said

    def waits(self, until_ms: int) -> list[Message]:
        self.said = []
        while self.now_ms < until_ms:
            self.now_ms += 50
            self._step(Tick())
        return self.said

    def _step(self, event: Event) -> None:
        self._take(self.core.step(self.now_ms, event))

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.said.append(effect.message)
            elif isinstance(effect, Save):
                self._step(Saved(effect.number))


@pytest.fixture(params=CORES)
def new_core(request: pytest.FixtureRequest) -> NewConsensus:
    """Each implementation of a Raft member."""
    return CORES[request.param]


def test_below_the_bar_it_votes_for_those_who_reach_it(new_core: NewConsensus) -> None:
    """A candidate needs the log end that it was told of, not only a log like its own."""
    for last, granted in ((Floor(1, 3), False), (Floor(2, 4), False), (Floor(2, 5), True)):
        one = _Restarted(new_core)
        assert one.hears(PreVote(3, last.index, last.term)) == [PreVoteReply(2, 3, granted)]
        assert one.hears(Vote(3, last.index, last.term, False, 7)) == [VoteReply(3, granted, 7)]


def test_below_the_bar_it_does_not_stand(new_core: NewConsensus) -> None:
    """Only after a grace period without a leader: then no member with more entries comes."""
    one = _Restarted(new_core)
    assert one.waits(GRACE_MS - 50) == []
    assert PreVote(3, 3, 1) in one.waits(GRACE_MS + 2000)


def test_the_bar_outlasts_an_election_however_short_the_grace_is(new_core: NewConsensus) -> None:
    """A member with more entries runs, and may wait a whole election timeout to stand."""
    one = _Restarted(new_core, grace_ms=0)
    assert one.waits(2 * RaftConfig(members=NAMES).election_ms_max - 50) == []
    assert one.hears(PreVote(3, 3, 1)) == [PreVoteReply(2, 3, False)]
    assert PreVote(3, 3, 1) in one.waits(10_000)


def test_a_leader_brings_it_to_the_bar(new_core: NewConsensus) -> None:
    """What a leader sends counts as ever; at the bar it may stand again."""
    one = _Restarted(new_core)
    entries = tuple(Entry(index, 2, EntryKind.NOOP, 0, 0, b"") for index in (4, 5))
    one.hears(Append(2, 3, 1, 3, 1, 0, 0, entries))
    assert PreVote(3, 5, 2) in one.waits(3000)
