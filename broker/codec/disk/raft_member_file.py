"""Bytes of the Raft member file, whose presence shows that this disk has been in its group.

    | magic | ver u8, len u8, 0 u16 | term u64 | floor term u64 | floor index u64 | owner 16 |
      crc u32 |                                                                     = 52 bytes
    | ... | owner 16 | disk u64 | crc u32 |    version 2: the disk has a number     = 60 bytes

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
VERSION_WITH_DISK: Final = 2
_BODY: Final = struct.Struct(f"<4sBBHQQQ{OWNER_SIZE}s")
_DISK: Final = struct.Struct("<Q")
_MAGIC: Final = b"HWRF"
_CRC: Final = struct.Struct("<I")
MEMBER_FILE_SIZE: Final = _BODY.size + _CRC.size
assert MEMBER_FILE_SIZE == 52
MEMBER_FILE_SIZE_MAX: Final = MEMBER_FILE_SIZE + _DISK.size


@dataclass(frozen=True, slots=True)
class MemberNote:
    """How a node takes part in the group with this disk.

    ``term`` is the lowest term that the node may use; its vote in that term counts as given. The
    node does not vote before its log has reached ``floor``. ``disk`` is the number of the disk,
    which a configuration names beside the voter; 0: the disk has no number.
    """

    term: int
    floor: Floor
    disk: int = 0


def encode_member_file(membership: MemberNote, owner: bytes) -> bytes:
    """Return the file's bytes."""
    floor = membership.floor
    version, more = VERSION, b""
    if membership.disk:
        version, more = VERSION_WITH_DISK, _DISK.pack(membership.disk)
    size = _BODY.size + len(more)
    body = _BODY.pack(_MAGIC, version, size, 0, membership.term, floor.term, floor.index, owner)
    body += more
    return body + _CRC.pack(crc32c(body))


def decode_member_file(data: bytes) -> tuple[MemberNote, bytes]:
    """Return the file's content and its owner. Raises MetadataCorruptError."""
    if len(data) not in {MEMBER_FILE_SIZE, MEMBER_FILE_SIZE_MAX}:
        raise MetadataCorruptError(
            f"a Raft member file must have {MEMBER_FILE_SIZE} or {MEMBER_FILE_SIZE_MAX} bytes, "
            f"not {len(data)}"
        )
    magic, version, length, zero, term, floor_term, floor_index, owner = _BODY.unpack_from(data)
    end = len(data) - _CRC.size
    (crc,) = _CRC.unpack_from(data, end)
    if crc != crc32c(data[:end]):
        raise MetadataCorruptError("a Raft member file fails its checksum")
    known = VERSION if len(data) == MEMBER_FILE_SIZE else VERSION_WITH_DISK
    if (magic, version, length, zero) != (_MAGIC, known, end, 0):
        raise MetadataCorruptError(f"not a Raft member file of version {known}")
    disk = _DISK.unpack_from(data, _BODY.size)[0] if known == VERSION_WITH_DISK else 0
    return MemberNote(term, Floor(floor_term, floor_index), disk), owner
