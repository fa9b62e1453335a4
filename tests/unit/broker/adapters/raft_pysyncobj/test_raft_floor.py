"""A member whose disk was wiped abstains below its floor, whichever implementation it is."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.raft.events import FloorReached, MemberAsks, Propose
from broker.model.raft import Floor
from broker.model.raft_messages import (
    Append,
    AppendReply,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from simkit.raft.groups import CORES
from simkit.raft.rig import B, C, MemberRig, append, entries, proposal


@pytest.fixture(params=CORES)
def wiped(request: pytest.FixtureRequest) -> MemberRig:
    """Return a member that takes part again, in term 4, below entry 20 of term 2."""
    rig = MemberRig(CORES[request.param])
    rig.journal.take_part(4, Floor(2, 20))
    rig.restart(power=True)
    return rig


def _granted(said: list[Any]) -> bool:
    return any(getattr(one, "granted", False) for one in said)


def test_it_neither_votes_nor_stands(wiped: MemberRig) -> None:
    """Its lost disk may have held a vote, and entries that it acknowledged."""
    assert wiped.member.term == 4
    assert not _granted(wiped.get(B, PreVote(6, 50, 3)))
    assert not _granted(wiped.get(B, Vote(6, 50, 3, transfer=True)))
    wiped.get(B, append(6, (0, 0)))
    assert wiped.get(B, TimeoutNow(6)) == []
    for _ in range(10):
        assert wiped.wait(wiped.config.election_ms_max + 1) == []
    assert wiped.member.standing.behind
    assert wiped.member.standing.last == Floor(2, 20)


def test_it_does_again_once_its_disk_has_reached_the_floor(wiped: MemberRig) -> None:
    """A cached entry is not enough, nor an entry of an older term at that index."""
    wiped.get(B, append(5, (0, 0), entries(1, 25, 1)))
    assert wiped.member.standing.behind
    wiped.saves_at_once = False
    wiped.get(B, append(5, (10, 1), entries(11, 20, 2)))
    assert FloorReached() not in wiped.effects
    said = wiped.save()
    assert AppendReply(5, True, 20, 0, 0, 1) in said
    assert wiped.effects.count(FloorReached()) == 1
    assert not wiped.member.standing.behind
    wiped.saves_at_once = True
    wiped.now_ms += 10 * wiped.config.election_ms_max
    assert PreVoteReply(5, 6, granted=True) in wiped.get(C, PreVote(6, 20, 2))
    assert VoteReply(6, granted=True) in wiped.get(C, Vote(6, 20, 2, transfer=False))


def test_it_is_below_its_floor_after_a_restart_too(wiped: MemberRig) -> None:
    """The floor is on its disk."""
    wiped.get(B, append(5, (0, 0), entries(1, 15, 2)))
    wiped.restart(power=True)
    assert not _granted(wiped.get(C, Vote(6, 50, 3, transfer=False)))
    assert wiped.member.standing.behind


def _commit(leader: MemberRig) -> int:
    """Let all saves be done; return what is committed then."""
    while leader.waiting_saves:
        leader.save()
    return int(leader.member.commit)


def _round(leader: MemberRig) -> int:
    """Return the newest round in which the member spoke to B."""
    return max(one.round for one in leader.said_to(B) if isinstance(one, Append))


@pytest.mark.parametrize("core", CORES)
def test_copies_of_a_former_process_do_not_count(core: str) -> None:
    """A follower may restart on an older disk: its leader counts the new process's copies only."""
    leader = MemberRig(CORES[core])
    term = leader.lead()
    leader.saves_at_once = False
    leader.step(Propose(proposal(0)))
    end = leader.last_index
    late = AppendReply(term, True, end, 0, 0, _round(leader))
    leader.get(B, late)
    leader.step(MemberAsks(B))
    leader.get(B, late)
    commits = [_commit(leader)]
    leader.wait(leader.config.heartbeat_ms)
    leader.get(B, AppendReply(term, True, end, 0, 0, _round(leader)))
    commits.append(_commit(leader))
    assert [one == end for one in commits] == [False, True]
