"""Bytes of the Raft journal: its records, its header, the two meta slots, the snapshot's header.

    header   | magic | ver u8, len u8, 0 u16 | base index u64 | base term u64 | first number u64 |
             synced u64 | owner 16 | 0 u32 | crc u32 |                               = 64 bytes
    record   | magic | length u32 | body crc u32 | kind u8, entry kind u8, 0 u16 | number u64 |
             synced u64 | index u64 | term u64 | session u64 | sequence u64 | 0 u32 | crc u32 |
             payload, padded to 8 |                                                  = 72 + n bytes
    meta     | magic | ver u8, len u8, vote length u8, 0 u8 | sequence u64 | term u64 | commit u64 |
             synced u64 | owner 16 | vote 64 | crc u32 |                             = 124 bytes
    snapshot | magic | ver u8, len u8, 0 u16 | index u64 | term u64 | size u64 | body crc u32 |
             owner 16 | crc u32 |                                                    = 56 bytes

Little-endian, CRC-32C. The crc of a head covers the bytes before it. `number` counts all records
that this node ever wrote. `synced`: when this record was written, all records with this number or
a lower one were durable. So a later record proves that a damaged earlier record was once whole.
Neither the first nor the last eight bytes of a record's head can be all zeros. So a sector that
was never written can be told from a sector that changed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import MetadataCorruptError
from broker.model.raft import (
    NODE_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Entry,
    EntryKind,
    HardState,
    NodeId,
    SnapshotId,
)

VERSION: Final = 1
OWNER_SIZE: Final = 16
ALIGNMENT: Final = 8
_CRC: Final = struct.Struct("<I")

_HEADER: Final = struct.Struct("<4sBBHQQQQ16sI")
_HEADER_MAGIC: Final = b"HWRJ"
JOURNAL_HEADER_SIZE: Final = _HEADER.size + 4
assert JOURNAL_HEADER_SIZE == 64

_RECORD: Final = struct.Struct("<4sIIBBHQQQQQQI")
_RECORD_MAGIC: Final = b"HWRE"
RECORD_HEAD_SIZE: Final = _RECORD.size + 4
assert RECORD_HEAD_SIZE == 72

_META: Final = struct.Struct("<4sBBBBQQQQ16s64s")
_META_MAGIC: Final = b"HWRM"
META_SLOT_SIZE: Final = _META.size + 4
assert META_SLOT_SIZE == 124
META_SLOT_STRIDE: Final = 4096  # slots share no sector, of 512 or of 4,096 bytes
META_FILE_SIZE: Final = 2 * META_SLOT_STRIDE

_SNAPSHOT: Final = struct.Struct("<4sBBHQQQI16s")
_SNAPSHOT_MAGIC: Final = b"HWRS"
SNAPSHOT_HEADER_SIZE: Final = _SNAPSHOT.size + 4
assert SNAPSHOT_HEADER_SIZE == 56


class RecordKind(IntEnum):
    """What a record does to the log."""

    ENTRY = 1  # adds one entry
    CUT = 2  # drops the entry at ``index`` and all later ones


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The first bytes of a journal."""

    base_index: int
    base_term: int
    first_number: int
    synced: int  # records up to this number were durable before the journal got its name
    owner: bytes


@dataclass(frozen=True, slots=True)
class RecordHead:
    """A record without its payload; the payload of ``entry`` is empty."""

    kind: RecordKind
    number: int
    synced: int
    length: int
    body_crc: int
    entry: Entry

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return RECORD_HEAD_SIZE + _padded(self.length)


@dataclass(frozen=True, slots=True)
class MetaSlot:
    """One of the two copies of the state that a Raft node must never lose: term, vote, commit."""

    sequence: int
    hard: HardState
    synced: int  # records up to this number were durable
    owner: bytes


def encode_journal_header(header: JournalHeader) -> bytes:
    """Return the header of a journal."""
    packed = _HEADER.pack(
        _HEADER_MAGIC, VERSION, JOURNAL_HEADER_SIZE, 0, header.base_index, header.base_term,
        header.first_number, header.synced, header.owner, 0,
    )  # fmt: skip
    return packed + _CRC.pack(crc32c(packed))


def decode_journal_header(data: Any) -> JournalHeader:
    """Parse and check a journal's header. Raises MetadataCorruptError, nothing else."""
    view = _checked(data, _HEADER, _HEADER_MAGIC, JOURNAL_HEADER_SIZE, "a Raft journal")
    _, _, _, _, base_index, base_term, first_number, synced, owner, _ = _HEADER.unpack_from(view)
    return JournalHeader(base_index, base_term, first_number, synced, owner)


def encode_record(kind: RecordKind, number: int, synced: int, entry: Entry) -> bytes:
    """Return a record; a CUT needs only the entry's index."""
    payload = entry.payload
    head = _RECORD.pack(
        _RECORD_MAGIC, len(payload), crc32c(payload), kind, entry.kind, 0, number, synced,
        entry.index, entry.term, entry.session, entry.sequence, 0,
    )  # fmt: skip
    padding = bytes(_padded(len(payload)) - len(payload))
    return b"".join((head, _CRC.pack(crc32c(head)), payload, padding))


def decode_record_head(data: Any) -> RecordHead | None:
    """Parse a record's head; None when the bytes are not a record's head."""
    if len(data) < RECORD_HEAD_SIZE:
        return None
    view = memoryview(data)[:RECORD_HEAD_SIZE]
    (
        magic, length, body_crc, kind, entry_kind, zero, number, synced, index, term, session,
        sequence, _,
    ) = _RECORD.unpack_from(view)  # fmt: skip
    if magic != _RECORD_MAGIC or crc32c(view[:-4]) != _CRC.unpack(view[-4:])[0]:
        return None
    if zero or kind not in _RECORD_KINDS or entry_kind not in _ENTRY_KINDS:
        return None
    if length > PAYLOAD_BYTES_MAX or synced >= number:
        return None
    entry = Entry(index, term, EntryKind(entry_kind), session, sequence, b"")
    return RecordHead(RecordKind(kind), number, synced, length, body_crc, entry)


_RECORD_KINDS: Final = frozenset(RecordKind)
_ENTRY_KINDS: Final = frozenset(EntryKind)


def decode_record_body(head: RecordHead, body: Any) -> Entry | None:
    """Return the entry with its payload; None if size, checksum or padding of the body is wrong."""
    payload = bytes(body[: head.length])
    if len(body) != head.size - RECORD_HEAD_SIZE or crc32c(payload) != head.body_crc:
        return None
    if any(body[head.length :]):
        return None
    one = head.entry
    return Entry(one.index, one.term, one.kind, one.session, one.sequence, payload)


def encode_meta(slot: MetaSlot) -> bytes:
    """Return the bytes of one slot."""
    vote = (slot.hard.vote or "").encode()
    assert len(vote) <= NODE_ID_BYTES_MAX, "the configuration bounds node ids"
    packed = _META.pack(
        _META_MAGIC, VERSION, META_SLOT_SIZE, len(vote), 0, slot.sequence, slot.hard.term,
        slot.hard.commit, slot.synced, slot.owner, vote,
    )  # fmt: skip
    return packed + _CRC.pack(crc32c(packed))


def decode_meta(data: Any) -> MetaSlot:
    """Parse and check one slot. Raises MetadataCorruptError, nothing else."""
    view = _checked(data, _META, _META_MAGIC, META_SLOT_SIZE, "a Raft meta slot")
    _, _, _, length, _, sequence, term, commit, synced, owner, vote = _META.unpack_from(view)
    try:
        name = vote[:length].decode() if length <= NODE_ID_BYTES_MAX else ""
    except UnicodeDecodeError as cause:
        raise MetadataCorruptError(
            f"the vote in a Raft meta slot is not a node id: {cause}"
        ) from cause
    hard = HardState(term, NodeId(name) if name else None, commit)
    return MetaSlot(sequence, hard, synced, owner)


def encode_snapshot_header(snapshot: SnapshotId, owner: bytes) -> bytes:
    """Return the header of a snapshot file."""
    packed = _SNAPSHOT.pack(
        _SNAPSHOT_MAGIC, VERSION, SNAPSHOT_HEADER_SIZE, 0, snapshot.index, snapshot.term,
        snapshot.size, snapshot.crc, owner,
    )  # fmt: skip
    return packed + _CRC.pack(crc32c(packed))


def decode_snapshot_header(data: Any) -> tuple[SnapshotId, bytes]:
    """Parse and check a header; return snapshot id and owner. Raises MetadataCorruptError only."""
    view = _checked(data, _SNAPSHOT, _SNAPSHOT_MAGIC, SNAPSHOT_HEADER_SIZE, "a Raft snapshot file")
    _, _, _, _, index, term, size, crc, owner = _SNAPSHOT.unpack_from(view)
    if size > SNAPSHOT_BYTES_MAX or index == 0:
        raise MetadataCorruptError("a Raft snapshot's values are out of bounds")
    return SnapshotId(index, term, size, crc), owner


def _checked(
    data: Any, layout: struct.Struct, magic: bytes, size: int, what: str
) -> memoryview[int]:
    if len(data) < size:
        raise MetadataCorruptError(f"{len(data)} bytes are too few for {what}")
    view = memoryview(data)[:size]
    if bytes(view[:4]) != magic or view[4] != VERSION or view[5] != size:
        raise MetadataCorruptError(f"not {what} of version {VERSION}: {bytes(view[:6]).hex()}")
    if crc32c(view[: layout.size]) != _CRC.unpack(view[layout.size : layout.size + 4])[0]:
        raise MetadataCorruptError(f"{what} fails its checksum")
    return view


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
