"""The follower's part: takes entries and snapshots of the leader, and reports what is durable.

Entries are removed only if they conflict with the leader's, and never below the commit. A commit
index of a message counts only up to the entry up to which that message has shown both logs to be
equal. A snapshot is installed when it is complete and its checksum is right; before that it changes
nothing.
"""

from __future__ import annotations

from broker.codec.checksum import crc32c
from broker.core.raft.member import Member
from broker.model.raft import SNAPSHOT_BYTES_MAX, Entry, NodeId, Snapshot, SnapshotId
from broker.model.raft_messages import Append, AppendReply, Chunk, ChunkReply


class Follower:
    """What a member does with its leader's messages. Owner: one `RaftCore`."""

    def __init__(self, member: Member) -> None:
        self._m = member
        self._incoming: SnapshotId | None = None
        self._received = bytearray()

    def on_append(self, leader: NodeId, message: Append) -> None:
        """Take entries that continue the log; answer up to where both logs are or may be equal."""
        m = self._m
        prev_index, prev_term, entries = _above_commit(m, message)
        if m.log.term_at(prev_index) != prev_term:
            hint_index, hint_term = m.log.agreement(prev_index, prev_term)
            if hint_index < m.commit:
                hint_index, hint_term = m.commit, m.log.term_at(m.commit) or 0
            m.send(
                leader,
                AppendReply(m.term, False, prev_index, hint_index, hint_term, message.round),
            )
            return
        matched = prev_index + len(entries)
        self._take(entries)
        if message.commit > m.commit:
            m.commit_to(max(m.commit, min(message.commit, matched)))
        m.send(leader, AppendReply(m.term, True, matched, 0, 0, message.round))
        if message.check_index:
            m.compare_hash(message.check_index, message.check_hash)

    def _take(self, entries: tuple[Entry, ...]) -> None:
        """Keep equal entries, remove entries from the first conflict on, add the others."""
        m = self._m
        for at, entry in enumerate(entries):
            present = m.log.term_at(entry.index)
            if present == entry.term:
                continue
            if present is not None:
                m.truncate(entry.index)
            m.append(entries[at:])
            return

    def on_chunk(self, leader: NodeId, message: Chunk) -> None:
        """Take the next piece; install the snapshot when it is complete."""
        m = self._m
        wanted = message.snapshot
        if wanted.index <= m.commit:  # everything in it is committed here already
            self._forget()
            m.send(leader, AppendReply(m.term, True, wanted.index, 0, 0, message.round))
            return
        if not 0 <= wanted.size <= SNAPSHOT_BYTES_MAX:
            return
        if self._incoming != wanted:
            self._incoming = wanted
            self._received = bytearray()
        fits = len(self._received) + len(message.data) <= wanted.size
        if message.offset == len(self._received) and fits:
            self._received += message.data
        if len(self._received) < wanted.size:
            m.send(leader, ChunkReply(m.term, wanted, len(self._received), message.round))
            return
        data = bytes(self._received)
        self._forget()
        if crc32c(data) != wanted.crc:  # start again; nothing of it was used
            m.send(leader, ChunkReply(m.term, wanted, 0, message.round))
            return
        m.install(Snapshot(wanted, data))
        m.send(leader, AppendReply(m.term, True, wanted.index, 0, 0, message.round))

    def _forget(self) -> None:
        self._incoming = None
        self._received = bytearray()


def _above_commit(member: Member, message: Append) -> tuple[int, int, tuple[Entry, ...]]:
    """Drop the message's entries at or below the commit: there both logs are equal."""
    prev_index, entries = message.prev_index, message.entries
    skip = member.commit - prev_index
    if skip <= 0:
        return prev_index, message.prev_term, entries
    commit_term = member.log.term_at(member.commit)
    assert commit_term is not None, "the commit is below the log"
    if len(entries) >= skip:
        assert entries[skip - 1].term == commit_term, "the leader's log lacks a committed entry"
    return member.commit, commit_term, entries[skip:]
