"""The effects of a step in order; and barriers, which the library does not have.

The leader confirms a barrier by a round of messages that began after the barrier, in a term of
which it has committed an entry: a majority that answers knew no newer leader then. The barrier
passes when everything that was committed at that time is applied here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.core.raft.config import RaftConfig
from broker.core.raft.events import Apply, BarrierFailed, BarrierPassed, Effect, Send
from broker.model.raft import Entry, NodeId
from broker.model.raft_messages import Message, ReadIndexReply, ReadIndexRequest


class Outbox:
    """Effects of one step. Owner: its core, which holds them back until the step is durable."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def send(self, target: NodeId, message: Message) -> None:
        """Send a message."""
        self._effects.append(Send(target, message))

    def emit(self, effect: Effect) -> None:
        """Add any other effect."""
        self._effects.append(effect)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry, together with those just before it."""
        last = self._effects[-1] if self._effects else None
        if isinstance(last, Apply):
            self._effects[-1] = Apply((*last.entries, entry))
        else:
            self._effects.append(Apply((entry,)))

    def take(self) -> list[Effect]:
        """Return all effects, and forget them."""
        effects, self._effects = self._effects, []
        return effects


@dataclass(frozen=True, slots=True)
class _Round:
    number: int
    index: int
    reads: tuple[tuple[NodeId, int], ...]


class Reads:
    """Barriers of this member and, while it leads, of others. Owner: its core."""

    def __init__(self, config: RaftConfig, me: NodeId, out: Outbox, first_number: int) -> None:
        self._config = config
        self._me = me
        self._out = out
        # A reply to a question of an earlier process must not answer one of this process.
        self._number = first_number
        self._remote: dict[int, tuple[int, int]] = {}  # asked: (barrier, deadline)
        self._waiting: list[tuple[NodeId, int]] = []
        self._open: _Round | None = None
        self._confirmed: list[tuple[int, int]] = []  # (index, barrier) that wait for the apply

    def ask_leader(self, leader: NodeId | None, term: int, barrier: int, now_ms: int) -> None:
        """Ask the leader for the index that this follower's barrier must wait for."""
        if leader is None or len(self._remote) >= self._config.reads_max:
            self._out.emit(BarrierFailed(barrier))
            return
        self._number += 1
        self._remote[self._number] = (barrier, now_ms + self._config.election_ms_min)
        self._out.send(leader, ReadIndexRequest(term, self._number))

    def replied(self, number: int, index: int) -> None:
        """Take the leader's answer."""
        found = self._remote.pop(number, None)
        if found is not None:
            self._confirmed.append((index, found[0]))

    def queue(self, origin: NodeId, number: int) -> None:
        """Queue a barrier, of the leader or of a follower, for the next round."""
        if len(self._waiting) < self._config.reads_max:
            self._waiting.append((origin, number))
        elif origin == self._me:
            self._out.emit(BarrierFailed(number))

    def confirm(
        self,
        *,
        answered: Mapping[NodeId, int],
        commit: int,
        commit_is_ours: bool,
        term: int,
        begin: Callable[[], int],
    ) -> None:
        """Close the open round if a majority has answered it, and begin the next.

        ``answered`` has each member's newest round. The commits of earlier terms are known only
        after an entry of this term is committed.
        """
        while True:
            found = self._open
            if found is not None:
                count = 1 + sum(one >= found.number for one in answered.values())
                if count < self._config.quorum:
                    return
                for origin, number in found.reads:
                    if origin == self._me:
                        self._confirmed.append((found.index, number))
                    else:
                        self._out.send(origin, ReadIndexReply(term, number, found.index))
                self._open = None
            if not self._waiting or not commit_is_ours:
                return
            reads = tuple(self._waiting)
            self._waiting.clear()
            self._open = _Round(begin(), commit, reads)

    def pass_applied(self, applied: int) -> None:
        """Pass the barriers whose index is applied."""
        for index, barrier in sorted(self._confirmed):
            if index <= applied:
                self._confirmed.remove((index, barrier))
                self._out.emit(BarrierPassed(barrier, index))

    def expire(self, now_ms: int) -> None:
        """Fail the questions that the leader did not answer in time."""
        for number, (barrier, deadline_ms) in list(self._remote.items()):
            if now_ms >= deadline_ms:
                del self._remote[number]
                self._out.emit(BarrierFailed(barrier))

    def leader_changed(self) -> None:
        """Fail all barriers: the leader that was asked, or this member, does not lead any more."""
        for barrier, _ in self._remote.values():
            self._out.emit(BarrierFailed(barrier))
        self._remote.clear()
        asked = [*(self._open.reads if self._open is not None else ()), *self._waiting]
        for origin, number in asked:
            if origin == self._me:
                self._out.emit(BarrierFailed(number))
        self._open = None
        self._waiting.clear()
