"""Bytes of the promises file: up to which offset records may have been acknowledged, per replica.

The file lies beside the logs, not in them. Little-endian; each header and each slot ends with a
CRC-32C of the bytes before the checksum. Version 1:

    file    | header, 1 block | copy A of 32 slots, 1 block | copy B of them, 1 block | A | B | ...
    header  | magic | ver u8, len u8, flags u16 | owner 16 | zeros 8 | crc u32 |         = 36 bytes
    slot    | magic | ver u8, len u8, kind u16 | sequence | key 16 | number u32 | flags u32 |
            | first | second | third | crc u32 |                                         = 68 bytes

A block has 4,096 bytes, a slot takes 128 of them. The two copies of a slot are in different
blocks, so that a torn write leaves one copy whole; the copy with the higher sequence is valid. A
free slot is all zeros or has kind 0.

    kind 0  free
    kind 1  a replica: key and number name its partition; log start, promised end, epoch of the
            last promised record; flags: bit 0 renewing, the other bits identify the batch of that
            record (`broker/storage/promises/promised_batch.py`), or are 0
    kind 2  a counter: key is its name, padded with zeros; its two values, and 0
"""

from __future__ import annotations

import struct
import uuid
from typing import Any, Final, NamedTuple

from broker.codec.checksum import crc32c
from broker.errors import MetadataCorruptError

VERSION: Final = 1
BLOCK_SIZE: Final = 4096
SLOT_STRIDE: Final = 128
SLOTS_PER_BLOCK: Final = BLOCK_SIZE // SLOT_STRIDE
PAIR_SIZE: Final = 2 * BLOCK_SIZE

KIND_FREE: Final = 0
KIND_REPLICA: Final = 1
KIND_COUNTER: Final = 2
FLAG_RENEWING: Final = 1  # the log is being replaced: an absent log is no loss then
_MARK_SHIFT: Final = 1  # the other flag bits of a replica identify the last promised batch, or 0

_CRC: Final = struct.Struct("<I")
_HEADER_MAGIC: Final = b"HWPM"
_HEADER: Final = struct.Struct("<4sBBH16s8sI")
HEADER_SIZE: Final = 36
assert _HEADER.size == HEADER_SIZE
_SLOT_MAGIC: Final = b"HWPI"
_SLOT: Final = struct.Struct("<4sBBHq16sIIqqqI")
_SLOT_FACTS: Final = struct.Struct("<4sBBHq16sIIqqq")  # a slot without its checksum
SLOT_SIZE: Final = 68
assert _SLOT.size == SLOT_SIZE
_ZEROS: Final = bytes(8)
_NEVER_WRITTEN: Final = bytes(SLOT_SIZE)


class SlotValues(NamedTuple):
    """The values of one copy of a slot; a tuple, because each commit makes one."""

    kind: int
    sequence: int
    key: bytes
    number: int = 0
    flags: int = 0
    first: int = 0
    second: int = 0
    third: int = 0


def encode_header(owner: str) -> bytes:
    """Return the header of the promises file; ``owner`` is the uuid of the data folder."""
    packed = _HEADER.pack(_HEADER_MAGIC, VERSION, HEADER_SIZE, 0, uuid.UUID(owner).bytes, _ZEROS, 0)
    return packed[:-4] + _CRC.pack(crc32c(packed[:-4]))


def decode_header(data: Any) -> str:
    """Return the uuid of the data folder that owns the file. Raises MetadataCorruptError only."""
    if len(data) < HEADER_SIZE:
        raise MetadataCorruptError(f"{len(data)} bytes are too few for a promises file")
    view = memoryview(data)[:HEADER_SIZE]
    magic, version, size, flags, owner, _, crc = _HEADER.unpack(view)
    if magic != _HEADER_MAGIC or version != VERSION or size != HEADER_SIZE or flags != 0:
        raise MetadataCorruptError(
            f"not a promises file of version {VERSION}: {bytes(view[:8]).hex()}"
        )
    if crc32c(view[:-4]) != crc:
        raise MetadataCorruptError("the header of the promises file fails its checksum")
    return str(uuid.UUID(bytes=owner))


def encode_slot(values: SlotValues) -> bytes:
    """Return the bytes of one copy of a slot."""
    packed = _SLOT_FACTS.pack(_SLOT_MAGIC, VERSION, SLOT_SIZE, *values)
    return packed + _CRC.pack(crc32c(packed))


def decode_slot(data: Any) -> SlotValues | None:
    """Parse one copy; None when it was never written.

    Raises MetadataCorruptError, nothing else.
    """
    view = memoryview(data)[:SLOT_SIZE]
    if len(view) < SLOT_SIZE:
        raise MetadataCorruptError(f"{len(view)} bytes are too few for a promise")
    if view == _NEVER_WRITTEN:
        return None
    magic, version, size, kind, sequence, key, number, flags, first, second, third, crc = (
        _SLOT.unpack(view)
    )
    if magic != _SLOT_MAGIC or version != VERSION or size != SLOT_SIZE:
        raise MetadataCorruptError(f"not a promise of version {VERSION}: {bytes(view[:6]).hex()}")
    if crc32c(view[:-4]) != crc:
        raise MetadataCorruptError("a promise fails its checksum")
    if kind not in (KIND_FREE, KIND_REPLICA, KIND_COUNTER) or min(sequence, first, second) < 0:
        raise MetadataCorruptError("the values of a promise are out of bounds")
    return SlotValues(
        kind=kind, sequence=sequence, key=key, number=number, flags=flags, first=first,
        second=second, third=third,
    )  # fmt: skip


def flags_of(mark: int) -> int:
    """Return a replica's flags for the 31-bit mark of the last promised batch."""
    return mark << _MARK_SHIFT


def mark_in(flags: int) -> int:
    """Return the mark of the last promised batch; 0 when no mark was noted."""
    return flags >> _MARK_SHIFT


def slot_position(index: int, copy: int) -> int:
    """Return the position in the file of copy 0 or copy 1 of the slot."""
    pair, place = divmod(index, SLOTS_PER_BLOCK)
    return BLOCK_SIZE + pair * PAIR_SIZE + copy * BLOCK_SIZE + place * SLOT_STRIDE
