"""Bytes of a segment file's header and the names of a segment's files, version 1.

A segment file is a 64-byte header and then record batches (broker/codec/record_batch.py) without
any gap. After the last batch come zeros (reserved space) or the end of the file. The header is
written together with the first batch, so an empty segment is an empty or all-zero file.
Little-endian:

     0       4     5     6       8             16           24          28
     | magic | ver | len | flags | base offset | created µs | partition | stream uuid ...
    44               60      64
     | zeros, for later | crc  | record batches ...

Partition and stream uuid show when a file was copied or restored into the wrong folder.
"""

from __future__ import annotations

import re
import struct
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.errors import SegmentCorruptError
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset

MAGIC: Final = b"HWSG"
VERSION: Final = 1
SEGMENT_HEADER_SIZE: Final = 64
_HEADER: Final = struct.Struct("<4sBBHqqI16s16sI")
assert _HEADER.size == SEGMENT_HEADER_SIZE  # the drawing, the struct and the document agree
_CRC: Final = struct.Struct("<I")
_LATER: Final = bytes(16)

_NAME: Final = re.compile(r"(\d{20})\.(log|index|producers(?:-copy)?)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The partition of a segment, and when its first batch was written (µs UTC)."""

    partition_id: PartitionId
    base_offset: Offset
    created_us: int


def segment_name(base_offset: int, kind: str) -> str:
    """Return the name of a segment's file: ``kind`` is ``log``, ``index`` or ``producers``."""
    return f"{base_offset:020d}.{kind}"


def parse_segment_name(name: str) -> tuple[Offset, str] | None:
    """Return (base offset, kind) of a name made by :func:`segment_name`, else None."""
    match = _NAME.match(name)
    if match is None or int(match[1]) > OFFSET_MAX:
        return None
    return Offset(int(match[1])), match[2]


@lru_cache(maxsize=4096)
def pack_partition_id(partition_id: PartitionId) -> tuple[int, bytes]:
    """Return the partition number and the 16 bytes of the stream uuid, as headers hold them."""
    return partition_id.number, uuid.UUID(partition_id.stream_uuid).bytes


@lru_cache(maxsize=4096)
def unpack_partition_id(number: int, uuid_bytes: bytes) -> PartitionId:
    """Undo :func:`pack_partition_id`."""
    return PartitionId(StreamUuid(str(uuid.UUID(bytes=uuid_bytes))), PartitionNumber(number))


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 64 bytes that begin a segment file."""
    number, uuid_bytes = pack_partition_id(header.partition_id)
    packed = _HEADER.pack(
        MAGIC, VERSION, SEGMENT_HEADER_SIZE, 0, header.base_offset, header.created_us, number,
        uuid_bytes, _LATER, 0,
    )  # fmt: skip
    return packed[:-4] + _CRC.pack(crc32c(packed[:-4]))


def decode_segment_header(data: Any) -> SegmentHeader:
    """Parse and check a segment header. Raises SegmentCorruptError, nothing else."""
    if len(data) < SEGMENT_HEADER_SIZE:
        raise SegmentCorruptError(f"{len(data)} bytes are too few for a segment header")
    view = memoryview(data)[:SEGMENT_HEADER_SIZE]
    magic, version, size, flags, base, created_us, number, uuid_bytes, later, crc = _HEADER.unpack(
        view
    )
    if magic != MAGIC:
        raise SegmentCorruptError(f"not a segment: it begins with {bytes(magic).hex()}")
    if version != VERSION or size != SEGMENT_HEADER_SIZE:
        raise SegmentCorruptError(
            f"segment version {version} is not known; this build reads version {VERSION}",
            version=version,
        )
    if crc32c(view[:-4]) != crc:
        raise SegmentCorruptError("segment header checksum mismatch")
    if flags != 0 or later != _LATER or base < 0 or created_us < 0:
        raise SegmentCorruptError("segment header values are out of bounds")
    return SegmentHeader(
        partition_id=unpack_partition_id(number, uuid_bytes),
        base_offset=Offset(base),
        created_us=created_us,
    )
