"""Known ways to get members that do not vote wrong, one switch each. The simulation catches all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.core.raft.core import RaftCore
from broker.core.raft.election import Election
from broker.core.raft.events import Barrier, BarrierPassed
from broker.core.raft.leader import Leader
from broker.core.raft.member import Member, Role
from broker.core.raft.progress import Progress
from broker.model.raft import NodeId
from broker.model.raft_messages import Append, AppendReply, Message, PreVoteReply, VoteReply
from simkit.raft.rig import B, MemberRig
from simkit.replacing import Mutant, replaced, together

O = NodeId("o")  # noqa: E741 - the observer of a group of a, b, c


def _with_observers(name: str) -> Any:
    """Let one step of a leader count observers as it counts members."""

    def step(self: Leader) -> Any:
        voters, self._voters = self._voters, list(self._progress.values())
        try:
            return original(self)
        finally:
            self._voters = voters

    original = getattr(Leader, name)
    return replaced(Leader, name, step)


def count_observers_in_a_commit() -> Any:
    """Take an observer's copy for one of the majority's."""
    return _with_observers("_commit")


def observers_confirm_reads() -> Any:
    """Take an observer's answer for a proof that no other member leads."""
    return _with_observers("_confirm_reads")


def _hear_all(self: RaftCore, sender: NodeId, _message: Message) -> bool:
    return sender in (*self.member.peers, *self.member.observers)


_MAY_VOTE: Final = property(lambda self: not self.abstains)


def observers_stand() -> Any:
    """Let an observer that hears no leader stand, and members vote for it."""
    return together(
        replaced(RaftCore, "_is_heard", _hear_all),
        replaced(Member, "may_vote", _MAY_VOTE),
        replaced(Member, "may_stand", _MAY_VOTE),
    )


def observers_vote() -> Any:
    """Ask observers for their votes, and count them."""

    def asking_all(name: str) -> Any:
        original = getattr(Election, name)

        def ask(self: Election, **facts: Any) -> None:
            m = self._m
            if m.me in m.config.observers:
                m.leader = None
                self.restart_timer()
                return
            peers, m.peers = m.peers, (*m.peers, *m.observers)
            try:
                original(self, **facts)
            finally:
                m.peers = peers

        return replaced(Election, name, ask)

    return together(
        replaced(RaftCore, "_is_heard", _hear_all),
        replaced(Member, "may_vote", _MAY_VOTE),
        asking_all("ask_first"),
        asking_all("stand"),
        replaced(Election, "on_pre_vote_reply", _count_all),
        replaced(Election, "on_vote_reply", _count_all),
    )


def _count_all(self: Election, sender: NodeId, reply: PreVoteReply | VoteReply) -> None:
    m = self._m
    if isinstance(reply, PreVoteReply):
        ours = m.role is Role.PRECANDIDATE and reply.asked == m.term + 1
    else:
        ours = m.role is Role.CANDIDATE and reply.term == m.term
    if reply.granted and ours:
        self._votes.add(sender)


def believe_a_wiped_observer() -> Any:
    """Go on behind what an observer had acknowledged before its disk was emptied."""
    return replaced(Progress, "forget", lambda *_: None)


def _leads() -> MemberRig:
    rig = MemberRig(RaftCore, observers=(O,))
    rig.lead()
    rig.get(B, AppendReply(rig.member.term, True, rig.last_index, 0, 0, 0))
    return rig


def reads_that_observers_confirm() -> None:
    """A leader that only an observer hears answers no barrier: another may have been elected."""
    rig = _leads()
    rig.step(Barrier(1))
    rounds = [one.round for one in rig.said_to(O) if isinstance(one, Append)]
    rig.get(O, AppendReply(rig.member.term, True, rig.last_index, 0, 0, max(rounds)))
    passed = [one for one in rig.effects if isinstance(one, BarrierPassed)]
    assert not passed, "an observer confirmed a read"


def an_observer_loses_its_disk() -> None:
    """It had everything, and refuses now what follows: the leader begins anew with it."""
    rig = _leads()
    term, last = rig.member.term, rig.last_index
    rig.get(O, AppendReply(term, True, last, 0, 0, 0))
    rig.said_to(O)
    rig.get(O, AppendReply(term, False, last, 0, 0, 0))
    probes = [one.prev_index for one in rig.said_to(O) if isinstance(one, Append)]
    assert probes == [0], "an observer with an empty disk never gets anything"


# Faults, members, observers: where a mutant's window is common.
OBSERVER_HINTS: Final[dict[str, tuple[tuple[str, ...], int, int]]] = {
    "count_observers_in_a_commit": (("cut", "power"), 3, 2),
    "observers_stand": (("cut", "one-way"), 3, 1),
    "observers_vote": (("cut", "kill"), 3, 1),
}

# The first seed that is known to show it, if that is not 0.
OBSERVER_FIRST_SEEDS: Final[dict[str, int]] = {}

# The windows of the other mutants are too rare for seeds.
OBSERVER_SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    "observers_confirm_reads": reads_that_observers_confirm,
    "believe_a_wiped_observer": an_observer_loses_its_disk,
}

OBSERVER_MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        count_observers_in_a_commit,
        observers_confirm_reads,
        observers_stand,
        observers_vote,
        believe_a_wiped_observer,
    )
}
