"""The leader's part: which copies count, what each member gets next, who gets a snapshot.

The library counts copies, commits and sends. This module decides which answers reach the library,
and to which members it may send. Names like ``_SyncObj__x`` are the library's private ``__x``.
"""

from __future__ import annotations

from typing import Any

from broker.adapters.raft_pysyncobj.chunks import Outgoing
from broker.core.raft.events import Refusal, Refused
from broker.errors import LogFailedError
from broker.model.raft import PAYLOAD_BYTES_MAX, Entry, EntryKind, NodeId, Proposal
from broker.model.raft_messages import Append, AppendReply, ChunkReply, TimeoutNow, Vote, VoteReply

_Library: Any = object  # the real base class is the one of the member's own module


class Leading(_Library):  # type: ignore[misc]
    """Part of `Corrections`."""

    def _begin_leading(self) -> None:
        config = self._config
        self._by_transfer = False
        self._round = 0  # of messages to everybody
        self._answered: dict[NodeId, int] = {}  # the newest round that each member answered
        self._void: dict[NodeId, int] = {}  # answers up to these rounds: former processes
        self._stepped_back: dict[NodeId, int] = {}  # refusals of older rounds are ignored
        self._must_send = False
        self._uncommitted: int | None = None
        self._target: tuple[NodeId, int] | None = None  # of a hand-over, and its deadline
        self._outgoing = Outgoing(config.chunk_bytes_max, config.heartbeat_ms)

    def propose(self, proposal: Proposal) -> None:
        """Add a proposal to the log, or refuse it."""
        if self._uncommitted is None:
            self._uncommitted = self._log.entries.weight(self._log.commit + 1)
        if not self.is_leader():
            self._out.emit(Refused(proposal, Refusal.NOT_LEADER))
        elif self._target is not None:
            self._out.emit(Refused(proposal, Refusal.TRANSFERRING))
        elif len(proposal.payload) > PAYLOAD_BYTES_MAX or proposal.kind is EntryKind.NOOP:
            self._out.emit(Refused(proposal, Refusal.TOO_LARGE))
        elif self._uncommitted >= self._config.uncommitted_bytes_max:
            self._out.emit(Refused(proposal, Refusal.OVERLOADED))
        else:
            self._applyCommand(self._log.command(proposal), None)
            self._checkCommandsToApply()
            self._uncommitted += Entry(0, 0, proposal.kind, 0, 0, proposal.payload).weight
            self._must_send = True

    def barrier(self, number: int) -> None:
        """Confirm a barrier; if another member leads, ask that member."""
        if self.is_leader():
            self._reads.queue(self._me, number)
        else:
            self._reads.ask_leader(self.leader_name(), self._term(), number, self._clock.now_ms)

    def hand_over_to(self, target: NodeId) -> None:
        """Refuse proposals until ``target`` has everything, then tell it to stand."""
        if self.is_leader() and target in self._others:
            self._target = (target, self._clock.now_ms + self._config.election_ms_min)

    def forget_copies(self, member: NodeId) -> None:
        """Forget the copies that a member's former process reported: its disk may be another.

        Answers to the next round, or to a later one, are of the new process.
        """
        node = self._others.get(member)
        if node is not None:
            self._SyncObj__raftMatchIndex[node] = 0
            self._void[member] = self._round
            self._must_send = True

    def _hand_over(self) -> None:
        if self._target is not None:
            target, until_ms = self._target
            if self._clock.now_ms >= until_ms:
                self._target = None
            else:
                self.transferLeadership(self._others[target])  # refused until it is up to date

    def _confirm_reads(self) -> None:
        commit = self._log.commit
        self._reads.confirm(
            answered=self._answered,
            commit=commit,
            commit_is_ours=self._log.entries.term_at(commit) == self._term(),
            term=self._term(),
            begin=self._begin_round,
        )

    def _begin_round(self) -> int:
        self._SyncObj__sendAppendEntries()
        return self._round

    def _heard_from(
        self, node: Any, sender: NodeId, round_number: int, *, reset_to: int | None
    ) -> None:
        """Note that a member answered, and what to send next if it refused."""
        newest = min(round_number, self._round)
        self._answered[sender] = max(self._answered.get(sender, 0), newest)
        note = {"type": "next_node_idx", "success": False, "reset": reset_to is not None}
        self._SyncObj__onMessageReceived(node, {**note, "next_node_idx": reset_to or 0})

    def _on_append_reply(self, node: Any, sender: NodeId, reply: AppendReply) -> None:
        """Count a copy, or step back once for all refusals of the same sending (L1)."""
        if reply.round <= self._void.get(sender, -1):
            return
        last, following = self._log.entries.last_index, self._SyncObj__raftNextIndex
        matched = self._SyncObj__raftMatchIndex[node]
        if not reply.ok:
            fresh = reply.round >= self._stepped_back.get(sender, 0)
            next_index = max(min(reply.hint_index, last) + 1, matched + 1)
            self._heard_from(node, sender, reply.round, reset_to=next_index if fresh else None)
            if fresh:
                self._stepped_back[sender] = self._round + 1
                self._must_send = True
            return
        self._heard_from(node, sender, reply.round, reset_to=None)
        if reply.index > last:
            return  # it describes another log
        sent = following[node]
        note = {"type": "next_node_idx", "reset": False, "success": True}
        self._SyncObj__onMessageReceived(node, {**note, "next_node_idx": reply.index + 1})
        following[node] = max(sent, reply.index + 1)
        self._outgoing.matched(sender, reply.index)
        if following[node] <= last:
            self._must_send = True

    def _on_chunk_reply(self, node: Any, sender: NodeId, reply: ChunkReply) -> None:
        """Send the next chunk when the last one has arrived."""
        self._heard_from(node, sender, reply.round, reset_to=None)
        if self._outgoing.answered(sender, reply, self._round):
            self._must_send = True

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Begin a round. Who needs a snapshot gets a chunk of it; the library sends the rest."""
        self._round += 1
        self._must_send = False
        following, connected = self._SyncObj__raftNextIndex, self._SyncObj__connectedNodes
        base, snapshot = self._log.entries.base_index, self._log.snapshot
        behind = {one: node for one, node in self._others.items() if following[node] <= base}
        for one, node in behind.items():
            connected.discard(node)
            if snapshot is None:
                raise LogFailedError("a compacted log without a snapshot")
            chunk = self._outgoing.next(
                NodeId(one), snapshot, self._term(), self._round, self._clock.now_ms
            )
            if chunk is not None:
                self._out.send(NodeId(one), chunk)
        super()._SyncObj__sendAppendEntries()
        connected.update(behind.values())

    # ------------------------------------------------------------------ what the library says

    def library_sends(self, node: Any, message: dict[str, Any]) -> None:
        """Translate a message of the library; an unexpected one ends the member."""
        target, kind, term = NodeId(node.id), message["type"], message.get("term", 0)
        if kind == "append_entries" and "prevLogIdx" in message and "entries" in message:
            self._out.send(target, self._append(message))
        elif kind == "request_vote":
            last_index, last_term = message["last_log_index"], message["last_log_term"]
            self._out.send(
                target, Vote(term, last_index, last_term, self._by_transfer, self._candidacy)
            )
        elif kind == "response_vote":
            self._out.send(target, VoteReply(term, True, self._voting_for))
        elif kind == "timeout_now":
            self._out.send(target, TimeoutNow(term))
        else:
            raise LogFailedError(f"pysyncobj wants to send {sorted(message)} of type {kind}")

    def _append(self, message: dict[str, Any]) -> Append:
        check_index, check_hash = self._log.hashes[-1] if self._log.hashes else (0, 0)
        entries = tuple(
            Entry(index, term, one.kind, one.session, one.sequence, one.payload)
            for one, index, term in (
                (command.proposal, index, term) for command, index, term in message["entries"]
            )
        )
        return Append(
            term=message["term"],
            prev_index=message["prevLogIdx"],
            prev_term=message["prevLogTerm"],
            commit=message["commit_index"],
            round=self._round,
            check_index=check_index,
            check_hash=check_hash,
            entries=entries,
        )
