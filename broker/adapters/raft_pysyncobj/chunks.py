"""Transfers snapshots between members: one chunk in flight, with the snapshot's id and an offset.

The library's own transfer has no id and no offset, uses whatever arrives last, and loops while it
has nothing to send. Here a receiver tells its offset, takes only the next piece, and uses the
snapshot only when the checksum of the whole is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.codec.checksum import crc32c
from broker.model.raft import NodeId, Snapshot, SnapshotId
from broker.model.raft_messages import Chunk, ChunkReply


class Incoming:
    """The snapshot that a follower is receiving."""

    def __init__(self) -> None:
        self._id: SnapshotId | None = None
        self._received = bytearray()

    def forget(self) -> None:
        """Drop what was received; the next chunk starts a new transfer."""
        self._id = None
        self._received = bytearray()

    def take(self, message: Chunk) -> tuple[Snapshot | None, int]:
        """Take the next piece; return the whole snapshot if it is complete, and the offset."""
        wanted = message.snapshot
        if self._id != wanted:
            self._id = wanted
            self._received = bytearray()
        fits = len(self._received) + len(message.data) <= wanted.size
        if message.offset == len(self._received) and fits:
            self._received += message.data
        if len(self._received) < wanted.size:
            return None, len(self._received)
        data = bytes(self._received)
        self.forget()
        if crc32c(data) != wanted.crc:
            return None, 0  # start again: nothing of it was used
        return Snapshot(wanted, data), wanted.size


@dataclass(slots=True)
class _Transfer:
    snapshot: Snapshot
    offset: int = 0
    round: int = 0  # of the newest chunk with data
    waiting: bool = False  # it is not answered yet
    asked_ms: int = 0


class Outgoing:
    """The snapshots that a leader sends to members whose next entries are compacted."""

    def __init__(self, chunk_bytes_max: int, ask_again_ms: int) -> None:
        self._chunk_bytes_max = chunk_bytes_max
        self._ask_again_ms = ask_again_ms
        self._transfers: dict[NodeId, _Transfer] = {}

    def clear(self) -> None:
        """Forget all transfers: this member does not lead any more."""
        self._transfers.clear()

    def next(
        self, target: NodeId, snapshot: Snapshot, term: int, round_number: int, now_ms: int
    ) -> Chunk | None:
        """Return the next chunk, or a question for the receiver's offset, or None."""
        one = self._transfers.setdefault(target, _Transfer(snapshot))
        if one.waiting and now_ms - one.asked_ms < self._ask_again_ms:
            return None
        end = one.offset if one.waiting else one.offset + self._chunk_bytes_max
        if not one.waiting:
            one.waiting, one.round = True, round_number
        one.asked_ms = now_ms
        data = one.snapshot.data[one.offset : end]
        return Chunk(term, one.snapshot.id, one.offset, round_number, data)

    def answered(self, sender: NodeId, reply: ChunkReply, round_number: int) -> bool:
        """Continue at the receiver's offset; return False for a duplicate or an old answer."""
        one = self._transfers.get(sender)
        if one is None or reply.snapshot != one.snapshot.id:
            return False
        asked_later = min(reply.round, round_number) > one.round
        if reply.offset <= one.offset and not asked_later:
            return False
        one.offset = min(reply.offset, one.snapshot.id.size)
        one.waiting = False
        return True

    def matched(self, target: NodeId, index: int) -> None:
        """Note that the receiver has everything up to ``index``."""
        one = self._transfers.get(target)
        if one is not None and index >= one.snapshot.id.index:
            del self._transfers[target]
