"""Known ways to get a change of the voters wrong, one switch each. The simulation catches all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from broker.codec.disk.raft_state import encode_state
from broker.core.raft.applier import Applier
from broker.core.raft.changing import VoterChange
from broker.core.raft.compare import Compare
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.election import Election
from broker.core.raft.events import ChangeRefusal, ChangeVoters
from broker.core.raft.leader import Leader
from broker.core.raft.member import Member, Role
from broker.core.raft.rejoin import Rejoin
from broker.core.raft.voters import VoterHistory
from broker.model.raft import Entry, Floor, HardState, NodeId, Standing
from broker.model.raft_messages import Append, AppendReply, Invited, VoteReply
from simkit.raft.rig import A, B, C, D, E, MemberRig
from simkit.replacing import Mutant, replaced, together


def in_force_once_committed() -> Any:
    """Count by the old configuration until the new one is committed."""

    def append(self: Member, entries: tuple[Entry, ...]) -> None:
        with replaced(VoterHistory, "appended", lambda *_: False):
            original_append(self, entries)

    def commit_to(self: Member, index: int) -> None:
        new = self.log.slice(self.commit + 1, index + 1, 1 << 62) if index > self.commit else ()
        original_commit(self, index)
        if self.history.appended(new):
            self._use_voters()

    original_append, original_commit = Member.append, Member.commit_to
    return together(
        replaced(Member, "append", append),
        replaced(Member, "commit_to", commit_to),
        replaced(Leader, "_commit", _counting_anew(Leader._commit)),
    )


def _counting_anew(original: Callable[[Leader], None]) -> Callable[[Leader], None]:
    def commit(self: Leader) -> None:
        original(self)
        self._count_voters()

    return commit


def two_changes_under_way() -> Any:
    """Begin a change although the one before is not committed."""

    def waits(self: VoterChange) -> ChangeRefusal | None:
        found = original(self)
        return None if found is ChangeRefusal.CHANGE_UNDER_WAY else found

    original = VoterChange._waits
    return replaced(VoterChange, "_waits", waits)


def no_entry_of_the_own_term() -> Any:
    """Begin a change before anything of the leader's own term is committed."""

    def waits(self: VoterChange) -> ChangeRefusal | None:
        return ChangeRefusal.CHANGE_UNDER_WAY if self.is_under_way else None

    return replaced(VoterChange, "_waits", waits)


def learner_votes_at_once() -> Any:
    """Make a member a voter that has not caught up."""

    def lags(self: VoterChange, _node: NodeId) -> ChangeRefusal | None:
        return None

    return replaced(VoterChange, "_lags", lags)


def removed_voter_counts() -> Any:
    """Keep counting the copies of a removed voter."""

    def count(self: Leader) -> None:
        old = self._voters
        original(self)
        self._voters = [*self._voters, *(one for one in old if one not in self._voters)]

    original = Leader._count_voters
    return replaced(Leader, "_count_voters", count)


def removed_leader_counts_itself() -> Any:
    """Go on counting the own copy after having removed oneself."""

    def count(self: Leader) -> None:
        original(self)
        self._own_count = 1

    original = Leader._count_voters
    return replaced(Leader, "_count_voters", count)


def cut_configuration_in_force() -> Any:
    """Go by a configuration whose entry was cut off."""
    return replaced(VoterHistory, "cut", lambda *_: False)


def snapshot_without_voters() -> Any:
    """Leave the configuration out of snapshots."""

    def snapshot(self: Applier) -> bytes:
        return encode_state(self.index, list(self._sessions.values()), self._machine.snapshot())

    return replaced(Applier, "snapshot", snapshot)


def votes_of_any_disk() -> Any:
    """Count a voter's vote, whichever disk it is from."""

    def on_vote_reply(self: Election, sender: NodeId, reply: VoteReply) -> None:
        disk = self._m.voters.get(sender, 0)
        original(self, sender, VoteReply(reply.term, reply.granted, reply.candidacy, disk))

    original = Election.on_vote_reply
    return replaced(Election, "on_vote_reply", on_vote_reply)


def wiped_voter_comes_back_by_the_file() -> Any:
    """Take part with an empty disk as a first voter, whatever was changed since."""

    def told(self: Rejoin, sender: NodeId, number: int, life: int, standing: Standing) -> Any:
        plain = Standing(standing.fresh, standing.behind, standing.term, standing.last)
        return original(self, sender, number, life, plain)

    original = Rejoin.told
    return replaced(Rejoin, "told", told)


def restarted_voter_asks_by_the_file() -> Any:
    """Compare a disk with those of the first voters, although the voters have changed."""
    return replaced(Compare, "_take_voters", _take_first)


def _take_first(self: Compare, _voters: tuple[NodeId, ...]) -> None:
    self._voters = self._config.members
    self._others = tuple(one for one in self._voters if one != self._me)
    if not hasattr(self, "_wanted"):
        self._wanted = self._others


def new_voter_hears_first() -> Any:
    """Send the entry that adds a voter to that one at once."""
    return replaced(VoterChange, "end_for", lambda self, _: self._m.log.last_index)


def a_removed_member_never_stands() -> Any:
    """Let a member whose removal is not committed wait for the others."""
    return replaced(Member, "_may_be_needed", property(lambda self: self.is_voter))


def votes_only_by_the_own_log() -> Any:
    """Refuse to vote as long as the own log does not say that one is a voter."""
    by_log = property(lambda self: self.voters.get(self.me) == self.disk)
    return replaced(Member, "is_entitled", by_log)


# ---------------------------------------------------------------------------- rare windows


def _leads(*observers: NodeId) -> MemberRig:
    """Return a as the leader of a, b, c, whose first entry is committed; all have everything."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=observers)
    rig.lead()
    for peer in (B, C, *observers):
        rig.get(peer, AppendReply(rig.member.term, True, rig.last_index, 0, 0, 0))
    rig.effects.clear()
    return rig


def add(rig: MemberRig, node: NodeId, disk: int) -> None:
    """Let the leader ask a member for its disk, and then add it."""
    rig.step(ChangeVoters(1, add=node))
    rig.get(node, Invited(rig.member.term, disk))
    rig.step(ChangeVoters(1, add=node))
    assert rig.member.voters.get(node) == disk, "the rig no longer adds a voter"


def a_new_voter_and_a_lost_disk() -> None:
    """Only a majority of the old voters may let the new one know that it votes."""
    rig = _leads(D)
    add(rig, D, 9)
    sent = [one.entries for one in rig.said_to(D) if isinstance(one, Append)]
    assert not any(sent), "a configuration that the old voters do not have yet was told"
    rig.get(B, AppendReply(rig.member.term, True, rig.last_index, 0, 0, 0))
    sent = [one.entries for one in rig.said_to(D) if isinstance(one, Append)]
    assert any(sent), "the new voter never hears of it"


def another_disk_votes() -> None:
    """A member with a new disk number does not vote for one that counts on its former disk."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    rig.lead()
    for peer in (B, C, D):
        rig.get(peer, AppendReply(rig.member.term, True, rig.last_index, 0, 0, 0))
    add(rig, D, 9)
    rig.restart(power=False)
    rig.lead_with(D, VoteReply(rig.member.term + 1, granted=True, disk=8))
    assert rig.member.role is not Role.LEADER, "a vote of another disk was counted"


def a_change_at_the_beginning_of_a_term() -> None:
    """What an earlier leader left may be another change, and be committed by its majority later."""
    rig = MemberRig(RaftCore, members=(A, B, C), observers=(D,))
    rig.lead()
    rig.step(ChangeVoters(1, remove=C))
    assert rig.last_index == 1, "a change begins before an entry of the own term is committed"


def those_who_voted_once_are_gone() -> None:
    """A disk of a time when others voted: only those who vote now know what it has promised."""
    config = RaftConfig(members=(A, B, C), observers=(D, E))
    compare = Compare(config, A, HardState(3), random=lambda low, _: low)
    compare.leave_out_silent()  # a former voter is silent, so every member is asked
    old, now = Standing(term=3), Standing(term=7, last=Floor(7, 30), voters=(A, D, E))
    for sender, standing in ((D, now), (B, old), (C, old), (B, old), (C, old)):
        found = compare.told(sender, compare.request_id, 1, standing)
        assert found is None, "it goes on without asking who votes now"


# The first seed that is known to show it, if that is not 0: a hunt begins there.
CHANGING_FIRST_SEEDS: Final[dict[str, int]] = {
    "a_removed_member_never_stands": 197,
    "two_changes_under_way": 19,
    "votes_only_by_the_own_log": 49,
    "learner_votes_at_once": 3,
    "removed_voter_counts": 8,
    "removed_leader_counts_itself": 30,
    "cut_configuration_in_force": 30,
    "snapshot_without_voters": 16,
    "wiped_voter_comes_back_by_the_file": 5,
}

# Groups in which the window is common: faults, first voters, observers.
CHANGING_HINTS: Final[dict[str, tuple[tuple[str, ...], int, int]]] = {
    "two_changes_under_way": (("one-way", "cut"), 5, 1),
    "wiped_voter_comes_back_by_the_file": (("wipe", "cut"), 3, 2),
}

CHANGING_SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    "new_voter_hears_first": a_new_voter_and_a_lost_disk,
    "no_entry_of_the_own_term": a_change_at_the_beginning_of_a_term,
    "restarted_voter_asks_by_the_file": those_who_voted_once_are_gone,
    "votes_of_any_disk": another_disk_votes,
}

_PROMISE: Final = r"AssertionError: (?!no progress)"
_PROGRESS: Final = "no progress after healing"
CHANGING_REASONS: Final[defaultdict[str, str]] = defaultdict(
    lambda: _PROMISE,
    a_removed_member_never_stands=_PROGRESS,
    votes_only_by_the_own_log=_PROGRESS,
    wiped_voter_comes_back_by_the_file="ControllersLostError",  # though others vote, and are there
)

CHANGING_MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        in_force_once_committed,
        two_changes_under_way,
        no_entry_of_the_own_term,
        learner_votes_at_once,
        removed_voter_counts,
        removed_leader_counts_itself,
        cut_configuration_in_force,
        snapshot_without_voters,
        votes_of_any_disk,
        wiped_voter_comes_back_by_the_file,
        restarted_voter_asks_by_the_file,
        new_voter_hears_first,
        a_removed_member_never_stands,
        votes_only_by_the_own_log,
    )
}
