"""Term, vote and commit index of a Raft node, in two slots with equal content.

A change is written to one slot and synced, then to the other and synced, before the node answers.
So if a power cut tears a write, the other slot has the state before the change, and no member has
heard of the change. If one slot rots, the other has everything that was ever answered. If both are
damaged, the node does not start.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.codec.disk.raft_log_format import (
    META_FILE_SIZE,
    META_SLOT_SIZE,
    META_SLOT_STRIDE,
    MetaSlot,
    decode_meta,
    encode_meta,
)
from broker.errors import MetadataCorruptError
from broker.model.raft import HardState
from broker.ports.system import File
from broker.storage.raft.raft_folder import NEXT_STEP


class MetaFile:
    """The open file and its newest content. Owner: the journal's thread."""

    def __init__(self, path: str, file: File, owner: bytes) -> None:
        """Read both slots. Raises MetadataCorruptError."""
        self._path = path
        self._file = file
        self._owner = owner
        self.damaged_slots = 0
        self.slot = self._newest()
        self._sequence = self.slot.sequence

    def write(self, hard: HardState, synced: int, sync: Callable[[File], None]) -> None:
        """Replace both slots, one after the other. Raises OSError, and what ``sync`` does."""
        self._sequence += 1  # also of a write that fails: two contents never share a number
        slot = MetaSlot(self._sequence, hard, synced, self._owner)
        data = encode_meta(slot)
        for number in (0, 1):
            self._file.write_at(number * META_SLOT_STRIDE, [data])
            sync(self._file)
        self.slot = slot

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _newest(self) -> MetaSlot:
        if self._file.size() < META_FILE_SIZE:
            raise MetadataCorruptError(f"{self._path} is too short", path=self._path)
        good: list[MetaSlot] = []
        damage: MetadataCorruptError | None = None
        for number in (0, 1):
            try:
                good.append(
                    decode_meta(self._file.read_at(number * META_SLOT_STRIDE, META_SLOT_SIZE))
                )
            except MetadataCorruptError as error:
                self.damaged_slots += 1
                damage = error
        if not good:
            raise MetadataCorruptError(
                f"{self._path}: both slots are damaged ({damage}). Nothing was changed. This "
                "controller cannot vote safely, because it may have voted in this term already. "
                + NEXT_STEP,
                path=self._path,
            )
        slot = max(good, key=lambda one: one.sequence)
        if slot.owner != self._owner:
            raise MetadataCorruptError(
                f"{self._path} belongs to another node or cluster", path=self._path
            )
        return slot


def first_meta(owner: bytes) -> bytes:
    """Return the bytes of a new node's meta file: term 0, no vote."""
    slot = encode_meta(MetaSlot(1, HardState(), 0, owner))
    padding = bytes(META_SLOT_STRIDE - META_SLOT_SIZE)
    return slot + padding + slot + padding
