"""Bytes of the Raft member file: its presence shows that this disk has taken part in the group.

    | magic | ver u8, len u8, 0 u16 | term u64 | floor term u64 | floor index u64 | owner 16 |
      crc u32 |                                                                     = 52 bytes

Little-endian; the CRC-32C covers the bytes before it. A disk with an empty log and without this
file is either new or was wiped. Nothing else on the disk can tell these two cases apart. The
*floor* is a place in the log, see :mod:`broker.core.raft.rejoin`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.disk.raft_log_format import OWNER_SIZE
from broker.errors import MetadataCorruptError
from broker.model.raft import Floor

VERSION: Final = 1
_BODY: Final = struct.Struct(f"<4sBBHQQQ{OWNER_SIZE}s")
_MAGIC: Final = b"HWRF"
_CRC: Final = struct.Struct("<I")
MEMBER_FILE_SIZE: Final = _BODY.size + _CRC.size
assert MEMBER_FILE_SIZE == 52


@dataclass(frozen=True, slots=True)
class MemberNote:
    """The lowest term that the node may use, with its vote in that term used; and its floor."""

    term: int
    floor: Floor


def encode_member_file(membership: MemberNote, owner: bytes) -> bytes:
    """Return the file's bytes."""
    floor = membership.floor
    body = _BODY.pack(
        _MAGIC, VERSION, _BODY.size, 0, membership.term, floor.term, floor.index, owner
    )
    return body + _CRC.pack(crc32c(body))


def decode_member_file(data: bytes) -> tuple[MemberNote, bytes]:
    """Return the file's content and its owner. Raises MetadataCorruptError."""
    if len(data) != MEMBER_FILE_SIZE:
        raise MetadataCorruptError(
            f"a Raft member file must have {MEMBER_FILE_SIZE} bytes, not {len(data)}"
        )
    magic, version, length, zero, term, floor_term, floor_index, owner = _BODY.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _BODY.size)
    if crc != crc32c(data[: _BODY.size]):
        raise MetadataCorruptError("a Raft member file fails its checksum")
    if (magic, version, length, zero) != (_MAGIC, VERSION, _BODY.size, 0):
        raise MetadataCorruptError(f"not a Raft member file of version {VERSION}")
    return MemberNote(term, Floor(floor_term, floor_index)), owner
