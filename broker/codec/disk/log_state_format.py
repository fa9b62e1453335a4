"""Bytes of the small files beside the segments: recovery point, epoch history, producer state.

The recovery point is in two slots, each within one disk sector, which are overwritten in turn. So
a new recovery point needs no room on a full disk, and a torn write leaves the other slot whole.
The epoch history and the producer state are replaced as whole files. All numbers are
little-endian. A CRC-32C covers each slot and each file, so damage of any byte is detected.
Version 1 of each:

    slot       | magic | ver u8, len u8, flags u16 | sequence | segment base | position |
               | log start | log end | partition u32 | stream uuid 16 | crc u32 |        = 72 bytes
    epochs     | magic | ver u8, len u8, flags u16 | count u32 | partition u32 | stream uuid 16 |
               (leader epoch i64, start offset i64)* | crc u32 |
    producers  | magic | ver u8, len u8, flags u16 | offset i64 | length u64 | crc u32 | opaque
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.errors import MetadataCorruptError
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset

VERSION: Final = 1
_CRC: Final = struct.Struct("<I")

_SLOT_MAGIC: Final = b"HWRP"
_SLOT: Final = struct.Struct("<4sBBHqqqqqI16sI")
SLOT_SIZE: Final = 72
assert _SLOT.size == SLOT_SIZE
SLOT_STRIDE: Final = 4096  # slots share no sector, of 512 or of 4,096 bytes
RECOVERY_FILE_SIZE: Final = 2 * SLOT_STRIDE

_EPOCHS_MAGIC: Final = b"HWEP"
_EPOCHS: Final = struct.Struct("<4sBBHII16s")
EPOCHS_HEADER_SIZE: Final = 32
assert _EPOCHS.size == EPOCHS_HEADER_SIZE
EPOCHS_COUNT_MAX: Final = 1024 * 1024

_PRODUCERS_MAGIC: Final = b"HWPS"
_PRODUCERS: Final = struct.Struct("<4sBBHqQI")
PRODUCERS_HEADER_SIZE: Final = 28
assert _PRODUCERS.size == PRODUCERS_HEADER_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """Below ``position`` of segment ``segment_base`` all was durable when this was written."""

    partition_id: PartitionId
    sequence: int  # of the two slots, the one with the higher sequence is valid
    segment_base: Offset
    position: int
    log_start: Offset
    log_end: Offset  # the offset at ``position``


def encode_recovery_point(point: RecoveryPoint) -> bytes:
    """Return the 72 bytes of one slot."""
    number, uuid_bytes = pack_partition_id(point.partition_id)
    packed = _SLOT.pack(
        _SLOT_MAGIC, VERSION, SLOT_SIZE, 0, point.sequence, point.segment_base, point.position,
        point.log_start, point.log_end, number, uuid_bytes, 0,
    )  # fmt: skip
    return packed[:-4] + _CRC.pack(crc32c(packed[:-4]))


def decode_recovery_point(data: Any) -> RecoveryPoint:
    """Parse and check one slot. Raises MetadataCorruptError, nothing else."""
    if len(data) < SLOT_SIZE:
        raise MetadataCorruptError(f"{len(data)} bytes are too few for a recovery point")
    view = memoryview(data)[:SLOT_SIZE]
    magic, version, size, flags, sequence, base, position, start, end, number, uuid_bytes, crc = (
        _SLOT.unpack(view)
    )
    if magic != _SLOT_MAGIC or version != VERSION or size != SLOT_SIZE:
        raise MetadataCorruptError(
            f"not a recovery point of version {VERSION}: {bytes(view[:6]).hex()}"
        )
    if crc32c(view[:-4]) != crc:
        raise MetadataCorruptError("recovery point checksum mismatch")
    if flags != 0 or sequence < 0 or position < 0 or not 0 <= start <= end or not 0 <= base <= end:
        raise MetadataCorruptError("recovery point values are out of bounds")
    return RecoveryPoint(
        partition_id=unpack_partition_id(number, uuid_bytes),
        sequence=sequence,
        segment_base=Offset(base),
        position=position,
        log_start=Offset(start),
        log_end=Offset(end),
    )


def encode_epochs(partition_id: PartitionId, epochs: tuple[EpochStart, ...]) -> bytes:
    """Return the whole epoch history file."""
    number, uuid_bytes = pack_partition_id(partition_id)
    head = _EPOCHS.pack(
        _EPOCHS_MAGIC, VERSION, EPOCHS_HEADER_SIZE, 0, len(epochs), number, uuid_bytes
    )
    numbers = [value for start in epochs for value in (start.leader_epoch, start.start_offset)]
    body = head + struct.pack(f"<{len(numbers)}q", *numbers)
    return body + _CRC.pack(crc32c(body))


def decode_epochs(data: Any) -> tuple[PartitionId, tuple[EpochStart, ...]]:
    """Parse and check an epoch history file. Raises MetadataCorruptError, nothing else."""
    if len(data) < EPOCHS_HEADER_SIZE + 4:
        raise MetadataCorruptError(f"{len(data)} bytes are too few for an epoch history")
    view = memoryview(data)
    magic, version, size, flags, count, number, uuid_bytes = _EPOCHS.unpack_from(view)
    if magic != _EPOCHS_MAGIC or version != VERSION or size != EPOCHS_HEADER_SIZE:
        raise MetadataCorruptError(
            f"not an epoch history of version {VERSION}: {bytes(view[:6]).hex()}"
        )
    if count > EPOCHS_COUNT_MAX or len(view) != EPOCHS_HEADER_SIZE + 16 * count + 4:
        raise MetadataCorruptError(
            f"an epoch history of {len(view)} bytes cannot hold {count} epochs"
        )
    if crc32c(view[:-4]) != _CRC.unpack(view[-4:])[0]:
        raise MetadataCorruptError("epoch history checksum mismatch")
    numbers = struct.unpack_from(f"<{2 * count}q", view, EPOCHS_HEADER_SIZE)
    epochs = tuple(
        EpochStart(LeaderEpoch(epoch), Offset(start))
        for epoch, start in zip(numbers[::2], numbers[1::2], strict=True)
    )
    ascending = all(
        a.leader_epoch < b.leader_epoch and a.start_offset <= b.start_offset
        for a, b in itertools.pairwise(epochs)
    )
    if flags != 0 or not ascending or any(start.start_offset < 0 for start in epochs):
        raise MetadataCorruptError("epoch history is out of order or out of bounds")
    return unpack_partition_id(number, uuid_bytes), epochs


def encode_producer_state(offset: Offset, state: bytes) -> bytes:
    """Return a producer-state file: opaque bytes that describe all records below ``offset``."""
    head = _PRODUCERS.pack(
        _PRODUCERS_MAGIC, VERSION, PRODUCERS_HEADER_SIZE, 0, offset, len(state), 0
    )
    crc = crc32c(state, crc32c(head[:-4]))
    return head[:-4] + _CRC.pack(crc) + state


def decode_producer_state(data: Any) -> tuple[Offset, bytes]:
    """Return (offset, opaque bytes). Raises MetadataCorruptError, nothing else."""
    if len(data) < PRODUCERS_HEADER_SIZE:
        raise MetadataCorruptError(f"{len(data)} bytes are too few for producer state")
    view = memoryview(data)
    magic, version, size, flags, offset, length, crc = _PRODUCERS.unpack_from(view)
    if magic != _PRODUCERS_MAGIC or version != VERSION or size != PRODUCERS_HEADER_SIZE:
        raise MetadataCorruptError(
            f"not producer state of version {VERSION}: {bytes(view[:6]).hex()}"
        )
    state = view[PRODUCERS_HEADER_SIZE:]
    if flags != 0 or offset < 0 or length != len(state):
        raise MetadataCorruptError("producer state values are out of bounds")
    if crc32c(state, crc32c(view[: PRODUCERS_HEADER_SIZE - 4])) != crc:
        raise MetadataCorruptError("producer state checksum mismatch")
    return Offset(offset), bytes(state)
