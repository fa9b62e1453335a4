"""Bytes of a Raft snapshot: the voters, the sessions, then the state machine's own bytes.

    state    | magic 4 | ver u8, 0 u8, sessions u16 | index u64 | machine length u32 |
             voters | session* | machine ... |
    voters   | length u16 | bytes of `raft_voters.py` |     in version 2 only
    session  | session u64 | used index u64 | floor u64 | replies u16 | reply* |
    reply    | sequence u64 | length u16 | bytes ... |           little-endian

Version 2 has the voters at that index; version 1 means that the voters had not changed yet. Equal
states give equal bytes. This format has no checksum: the snapshot file and the transfer of a
snapshot have one. What a session and its floor are: :mod:`broker.core.raft.applier`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.codec.disk.raft_voters import VOTERS_BYTES_MAX, decode_voters, encode_voters
from broker.errors import MetadataCorruptError
from broker.model.raft import Voters

VERSION: Final = 1
VERSION_WITH_VOTERS: Final = 2
REPLY_BYTES_MAX: Final = 2048  # 256 sessions of 64 replies stay below a snapshot's maximum
_MAGIC: Final = b"HWRS"
_HEAD: Final = struct.Struct("<4sBBHQI")
_SESSION: Final = struct.Struct("<QQQH")
_REPLY: Final = struct.Struct("<QH")
_VOTERS: Final = struct.Struct("<H")


@dataclass(slots=True)
class SessionState:
    """The state of one session: its remembered replies."""

    session: int
    used_index: int  # index of its newest entry; the least recently used session is dropped first
    floor: int  # replies of lower sequences are forgotten
    replies: dict[int, bytes]  # by sequence


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The content of a snapshot."""

    sessions: list[SessionState]
    machine: bytes
    voters: Voters | None  # None: those of the first configuration


def encode_state(
    index: int, sessions: Sequence[SessionState], machine: bytes, voters: Voters | None = None
) -> bytes:
    """Return the bytes of a snapshot at ``index``."""
    version = VERSION if voters is None else VERSION_WITH_VOTERS
    parts = [_HEAD.pack(_MAGIC, version, 0, len(sessions), index, len(machine))]
    if voters is not None:
        data = encode_voters(voters)
        parts += (_VOTERS.pack(len(data)), data)
    for one in sorted(sessions, key=lambda session: session.session):
        parts.append(_SESSION.pack(one.session, one.used_index, one.floor, len(one.replies)))
        for sequence, reply in sorted(one.replies.items()):
            parts += (_REPLY.pack(sequence, len(reply)), reply)
    return b"".join((*parts, machine))


def voters_of(data: bytes) -> Voters | None:
    """Return the voters at a snapshot's index; None: the first configuration is still in force.

    Raises:
        MetadataCorruptError: the snapshot has a list of voters, and the list is damaged.
    """
    if data[:4] != _MAGIC or len(data) < _HEAD.size or data[4] != VERSION_WITH_VOTERS:
        return None
    try:
        return _voters(data, _HEAD.size)[0]
    except struct.error as cause:
        raise MetadataCorruptError(f"a Raft snapshot ends early: {cause}") from cause


def _voters(data: bytes, at: int) -> tuple[Voters, int]:
    (length,) = _VOTERS.unpack_from(data, at)
    at += _VOTERS.size
    if length > VOTERS_BYTES_MAX or len(data) < at + length:
        raise MetadataCorruptError("a Raft snapshot ends within its voters")
    return decode_voters(data[at : at + length]), at + length


def decode_state(index: int, data: bytes) -> SnapshotState:
    """Parse a snapshot, which must be of ``index``. Raises MetadataCorruptError, nothing else."""
    voters = None
    try:
        magic, version, zero, count, found, length = _HEAD.unpack_from(data)
        known = version in {VERSION, VERSION_WITH_VOTERS}
        if magic != _MAGIC or not known or zero or found != index:
            raise MetadataCorruptError(
                f"not a Raft snapshot of version {VERSION} or {VERSION_WITH_VOTERS} at index "
                f"{index}: {data[:8].hex()}"
            )
        at = _HEAD.size
        if version == VERSION_WITH_VOTERS:
            voters, at = _voters(data, at)
        sessions = []
        for _ in range(count):
            session, at = _session(data, at)
            sessions.append(session)
    except struct.error as cause:
        raise MetadataCorruptError(f"a Raft snapshot ends early: {cause}") from cause
    if len(data) - at != length:
        raise MetadataCorruptError(
            f"a Raft snapshot has {len(data) - at} bytes of state where its header says {length}"
        )
    if any(a.session >= b.session for a, b in itertools.pairwise(sessions)):
        raise MetadataCorruptError("a Raft snapshot's sessions are out of order")
    return SnapshotState(sessions, data[at:], voters)


def _session(data: bytes, at: int) -> tuple[SessionState, int]:
    session, used_index, floor, count = _SESSION.unpack_from(data, at)
    at += _SESSION.size
    replies: dict[int, bytes] = {}
    for _ in range(count):
        sequence, length = _REPLY.unpack_from(data, at)
        at += _REPLY.size
        if length > REPLY_BYTES_MAX or len(data) < at + length:
            raise MetadataCorruptError("a Raft snapshot ends within a reply")
        replies[sequence] = data[at : at + length]
        at += length
    return SessionState(session, used_index, floor, replies), at
