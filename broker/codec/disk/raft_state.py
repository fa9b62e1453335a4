"""Bytes of a Raft snapshot: the sessions, then the state machine's own bytes.

    state    | magic 4 | ver u8, 0 u8, sessions u16 | index u64 | machine length u32 |
             session* | machine ... |
    session  | session u64 | used index u64 | floor u64 | replies u16 | reply* |
    reply    | sequence u64 | length u16 | bytes ... |           little-endian

Equal states give equal bytes. This format has no checksum: the snapshot file and the transfer of a
snapshot have one. What a session and its floor are: :mod:`broker.core.raft.applier`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.errors import MetadataCorruptError

VERSION: Final = 1
REPLY_BYTES_MAX: Final = 2048  # 256 sessions of 64 replies stay below a snapshot's maximum
_MAGIC: Final = b"HWRS"
_HEAD: Final = struct.Struct("<4sBBHQI")
_SESSION: Final = struct.Struct("<QQQH")
_REPLY: Final = struct.Struct("<QH")


@dataclass(slots=True)
class SessionState:
    """What the group remembers of one session."""

    session: int
    used_index: int  # index of its newest entry; the least recently used session is dropped first
    floor: int  # replies of lower sequences are forgotten
    replies: dict[int, bytes]  # by sequence


def encode_state(index: int, sessions: Sequence[SessionState], machine: bytes) -> bytes:
    """Return the bytes of a snapshot at ``index``."""
    parts = [_HEAD.pack(_MAGIC, VERSION, 0, len(sessions), index, len(machine))]
    for one in sorted(sessions, key=lambda session: session.session):
        parts.append(_SESSION.pack(one.session, one.used_index, one.floor, len(one.replies)))
        for sequence, reply in sorted(one.replies.items()):
            parts += (_REPLY.pack(sequence, len(reply)), reply)
    return b"".join((*parts, machine))


def decode_state(index: int, data: bytes) -> tuple[list[SessionState], bytes]:
    """Parse a snapshot, which must be of ``index``. Raises MetadataCorruptError, nothing else."""
    try:
        magic, version, zero, count, found, length = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != VERSION or zero or found != index:
            raise MetadataCorruptError(
                f"not a Raft snapshot of version {VERSION} at index {index}: {data[:8].hex()}"
            )
        at = _HEAD.size
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
    return sessions, data[at:]


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
