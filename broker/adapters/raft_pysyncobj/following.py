"""The follower's part: removes only conflicting entries, commits and installs only what is checked.

Each message is compared with the log first; the library gets only its new entries. Names like
``_SyncObj__x`` are the library's private ``__x``.
"""

from __future__ import annotations

from typing import Any, Final

from broker.adapters.raft_pysyncobj.chunks import Incoming
from broker.adapters.raft_pysyncobj.library_log import LibraryLog
from broker.core.raft.events import Diverged, Restore
from broker.errors import LogFailedError
from broker.model.raft import Entry, Floor, NodeId, Snapshot
from broker.model.raft_messages import Append, AppendReply, Chunk, ChunkReply, Message

_ALL: Final = 1 << 62

_Library: Any = object  # the real base class is the one of the member's own module


class Following(_Library):  # type: ignore[misc]
    """Part of `Corrections`."""

    _asking: set[NodeId] | None
    _heard_ms: int | None

    def _begin_following(self) -> None:
        self._bar_until_ms = 0
        self._question: Append | Chunk | None = None
        self._matched = 0
        self._incoming = Incoming()

    def _follow(self, node: Any, sender: NodeId, message: Append | Chunk) -> None:
        if self.is_leader() or self.leader_name() not in {None, sender}:
            raise LogFailedError(f"{sender} is a second leader of term {message.term}")
        self._asking = None
        self._heard_ms = self._clock.now_ms
        self.renew_bar()
        self._question = message
        if isinstance(message, Append):
            self._on_append(node, message)
        else:
            self._on_chunk(node, sender, message)

    def renew_bar(self) -> None:
        """Keep the bar for another grace period: after a start, or a message of a leader."""
        self._bar_until_ms = self._clock.now_ms + self._config.bar_ms

    def _lapse_bar(self) -> None:
        """Drop the bar after a grace period without a leader: no member with such a log is back."""
        if self._clock.now_ms >= self._bar_until_ms:
            self._log.bar = Floor()

    def _on_append(self, node: Any, message: Append) -> None:
        """Give the library only new entries, so that it removes only conflicting ones (S1, S3)."""
        log, commit = self._log.entries, self._log.commit
        prev_index, prev_term, entries = self._behind(message)
        agrees = log.term_at(prev_index) == prev_term
        matched = self._matched = prev_index + len(entries)
        if agrees:
            known = 0
            while known < len(entries) and _has(self._log, entries[known]):
                known += 1
            if known:
                prev_index, prev_term = entries[known - 1].index, entries[known - 1].term
                entries = entries[known:]
            if not entries:  # nothing new and no conflict: later entries stay
                prev_index, prev_term = log.last_index, log.last_term
            commit = max(commit, _shown(message, matched))
        self._SyncObj__onMessageReceived(
            node,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": commit,
                "prevLogIdx": prev_index,
                "prevLogTerm": prev_term,
                "entries": [self._log.row(entry) for entry in entries],
            },
        )
        if agrees and message.check_index:
            for at, ours in self._log.hashes:
                if at == message.check_index and ours != message.check_hash:
                    self._out.emit(Diverged(at, ours, message.check_hash))

    def _behind(self, message: Append) -> tuple[int, int, tuple[Entry, ...]]:
        """Drop the message's entries at or below the commit: there both logs are equal."""
        log, commit = self._log.entries, self._log.commit
        skip = commit - message.prev_index
        if skip <= 0:
            return message.prev_index, message.prev_term, message.entries
        commit_term = log.term_at(commit)
        if commit_term is None:
            raise LogFailedError(f"commit {commit} is not in the log")
        if len(message.entries) >= skip and message.entries[skip - 1].term != commit_term:
            raise LogFailedError(f"the leader's log lacks entry {commit}, committed here")
        return commit, commit_term, message.entries[skip:]

    def _on_chunk(self, node: Any, sender: NodeId, message: Chunk) -> None:
        """Let the library install a snapshot when it is complete; its commit waits (S3, S9)."""
        wanted, commit = message.snapshot, self._log.commit
        arrived = None
        if wanted.index <= commit:  # everything in it is committed here already
            self._incoming.forget()
            reply: Message = AppendReply(message.term, True, wanted.index, 0, 0, message.round)
            self._out.send(sender, reply)
        else:
            arrived, offset = self._incoming.take(message)
            if arrived is None:
                reply = ChunkReply(message.term, wanted, offset, message.round)
                self._out.send(sender, reply)
        self._matched = wanted.index
        heartbeat = {"type": "append_entries", "term": message.term, "commit_index": commit}
        self._SyncObj__onMessageReceived(node, {**heartbeat, "serialized": arrived})

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: ARG002, N802, N803
        """Install a snapshot; the entries behind it stay if they agree with it (S4, S9, S10)."""
        snapshot: Snapshot = self._SyncObj__serializer.arrived
        self._log.install(snapshot)
        self._SyncObj__raftCommitIndex = snapshot.id.index
        self._SyncObj__raftLastApplied = snapshot.id.index
        self._out.emit(Restore(snapshot))

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Any,
        reset: bool = False,  # noqa: ARG002 - the library's signature
        nextNodeIdx: int | None = None,  # noqa: ARG002, N803
        success: bool = False,
    ) -> None:
        """Answer with the term, the round, and up to where both logs are surely equal (S2, L1)."""
        asked, log = self._question, self._log.entries
        if asked is None:
            raise LogFailedError("an answer to no question")
        if success:
            reply = AppendReply(asked.term, True, self._matched, 0, 0, asked.round)
        else:
            commit = self._log.commit
            refused = asked.prev_index if isinstance(asked, Append) else 0
            hint_term = log.term_at(commit) or 0
            reply = AppendReply(asked.term, False, refused, commit, hint_term, asked.round)
        self._out.send(NodeId(node.id), reply)

    def _SyncObj__doApplyCommand(self, command: Any) -> None:  # noqa: ARG002, N802
        """Pass the next entry on; the state machine's errors cannot reach the library (S7, S11)."""
        index = self._SyncObj__raftLastApplied + 1
        self._out.apply(self._log.entries.slice(index, index + 1, _ALL)[0])


def _has(log: LibraryLog, entry: Entry) -> bool:
    return log.entries.term_at(entry.index) == entry.term


def _shown(message: Append, matched: int) -> int:
    """Return the leader's commit, at most up to where the message shows both logs to be equal."""
    return min(message.commit, matched)
