"""Bytes of a segment's index file, version 1: a cache of what the segment holds.

A sealed segment is not scanned at start: its index carries the end offset, the size, the highest
timestamp and the leader epochs that begin in it. The index of the active segment covers a prefix
of that segment. A missing or damaged index is rebuilt from the segment. Little-endian:

     0       4     5     6       8             16           24                 32
     | magic | ver | len | flags | base offset | end offset | covered position | max timestamp ...
    40           48              52             56          60           64            80  84
     | created µs | entries count | epochs count | partition | tables crc | stream uuid | went | crc
    88
     | entries: (offset, position, max timestamp before)* | epochs: (leader epoch, start offset)*

Entries and epochs are int64. Flag bit 0 says that the segment is sealed, bit 1 that key compaction
wrote its batches. *went* (u32) is then the number of records that key compaction removed, plus
one; 0: the number is not known. A build that does not know bit 1 or *went* rebuilds the index.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from broker.codec.checksum import crc32c
from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.errors import IndexCorruptError
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset

MAGIC: Final = b"HWIX"
VERSION: Final = 1
INDEX_HEADER_SIZE: Final = 88
_HEADER: Final = struct.Struct("<4sBBHqqqqqIIII16sII")
assert _HEADER.size == INDEX_HEADER_SIZE  # the drawing, the struct and the document agree
_CRC: Final = struct.Struct("<I")
_SEALED: Final = 1
_SPARSE: Final = 2
_INT64: Final = np.dtype("<i8")
_ENTRY_SIZE: Final = 24
_EPOCH_SIZE: Final = 16
INDEX_BYTES_MAX: Final = 1024 * 1024 * 1024
_WENT_MAX: Final = (1 << 32) - 1

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntries:
    """Columns, one value per indexed batch, ascending: int64 [n] each."""

    offsets: Column
    positions: Column
    timestamps_us_before: Column  # the highest timestamp of the batches before this one

    @classmethod
    def of(cls, offsets: Any, positions: Any, timestamps_us_before: Any) -> IndexEntries:
        """Take any three sequences of integers."""
        return cls(
            np.asarray(offsets, dtype=np.int64),
            np.asarray(positions, dtype=np.int64),
            np.asarray(timestamps_us_before, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSummary:
    """The header of an index: it describes the first ``covered`` bytes of the segment."""

    partition_id: PartitionId
    base_offset: Offset
    end_offset: Offset
    covered: int  # position after the last batch that the index knows
    max_timestamp_us: int
    created_us: int
    sealed: bool
    sparse: bool
    removed_count: int | None  # records that key compaction removed; None: not known
    entries_count: int
    epochs_count: int
    tables_crc: int


@dataclass(frozen=True, slots=True, eq=False)
class IndexFile:
    """A whole index file."""

    summary: IndexSummary
    entries: IndexEntries
    epochs: tuple[EpochStart, ...]


def encode_index(
    *,
    partition_id: PartitionId,
    base_offset: Offset,
    end_offset: Offset,
    covered: int,
    max_timestamp_us: int,
    created_us: int,
    sealed: bool,
    sparse: bool = False,
    removed_count: int | None = None,
    entries: IndexEntries,
    epochs: tuple[EpochStart, ...],
) -> bytes:
    """Return the bytes of an index file."""
    rows = np.column_stack((entries.offsets, entries.positions, entries.timestamps_us_before))
    starts = [value for one in epochs for value in (one.leader_epoch, one.start_offset)]
    tables = rows.astype(_INT64).tobytes() + np.array(starts, dtype=_INT64).tobytes()
    number, uuid_bytes = pack_partition_id(partition_id)
    went = 0 if removed_count is None or not sparse else removed_count + 1
    packed = _HEADER.pack(
        MAGIC, VERSION, INDEX_HEADER_SIZE, _SEALED * sealed | _SPARSE * sparse, base_offset,
        end_offset, covered, max_timestamp_us, created_us, len(rows), len(epochs), number,
        crc32c(tables), uuid_bytes, went if went <= _WENT_MAX else 0, 0,
    )  # fmt: skip
    return packed[:-4] + _CRC.pack(crc32c(packed[:-4])) + tables


def decode_index_summary(data: Any) -> IndexSummary:
    """Parse and check the header alone. Raises IndexCorruptError, nothing else."""
    if len(data) < INDEX_HEADER_SIZE:
        raise IndexCorruptError(f"{len(data)} bytes are too few for an index")
    view = memoryview(data)[:INDEX_HEADER_SIZE]
    (
        magic, version, size, flags, base, end, covered, max_us, created_us, entries_count,
        epochs_count, number, tables_crc, uuid_bytes, went, crc,
    ) = _HEADER.unpack(view)  # fmt: skip
    if magic != MAGIC or version != VERSION or size != INDEX_HEADER_SIZE:
        raise IndexCorruptError(f"not an index of version {VERSION}: {bytes(view[:6]).hex()}")
    if crc32c(view[:-4]) != crc:
        raise IndexCorruptError("index header checksum mismatch")
    sane = (
        flags & ~(_SEALED | _SPARSE) == 0
        and 0 <= base <= end
        and went <= (1 + end - base if flags & _SPARSE else 0)
        and covered >= 0
        and created_us >= 0
        and entries_count * _ENTRY_SIZE + epochs_count * _EPOCH_SIZE <= INDEX_BYTES_MAX
    )
    if not sane:
        raise IndexCorruptError("index header values are out of bounds")
    return IndexSummary(
        partition_id=unpack_partition_id(number, uuid_bytes),
        base_offset=Offset(base),
        end_offset=Offset(end),
        covered=covered,
        max_timestamp_us=max_us,
        created_us=created_us,
        sealed=bool(flags & _SEALED),
        sparse=bool(flags & _SPARSE),
        removed_count=_removed(went, sparse=bool(flags & _SPARSE)),
        entries_count=entries_count,
        epochs_count=epochs_count,
        tables_crc=tables_crc,
    )


def _removed(went: int, *, sparse: bool) -> int | None:
    if not sparse:
        return 0
    return went - 1 if went else None


def index_file_size(summary: IndexSummary) -> int:
    """Return how many bytes a file with this header must have."""
    tables = summary.entries_count * _ENTRY_SIZE + summary.epochs_count * _EPOCH_SIZE
    return INDEX_HEADER_SIZE + tables


def decode_index(data: Any) -> IndexFile:
    """Parse and check a whole index file. Raises IndexCorruptError, nothing else."""
    summary = decode_index_summary(data)
    if len(data) != index_file_size(summary):
        raise IndexCorruptError(
            f"the index has {len(data)} bytes; its header says {index_file_size(summary)}"
        )
    tables = memoryview(data)[INDEX_HEADER_SIZE:]
    if crc32c(tables) != summary.tables_crc:
        raise IndexCorruptError("index tables checksum mismatch")
    numbers = np.frombuffer(tables, dtype=_INT64).astype(np.int64)
    rows = numbers[: 3 * summary.entries_count].reshape(-1, 3)
    starts = numbers[3 * summary.entries_count :].reshape(-1, 2).tolist()
    entries = IndexEntries(*(rows[:, column].copy() for column in range(3)))
    if not _within(entries, summary):
        raise IndexCorruptError("index entries are out of order or out of bounds")
    epochs = tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in starts)
    return IndexFile(summary, entries, epochs)


def _within(entries: IndexEntries, summary: IndexSummary) -> bool:
    """Tell whether the columns ascend and point into the bytes that the index covers."""
    offsets, positions, stamps = (
        entries.offsets, entries.positions, entries.timestamps_us_before,
    )  # fmt: skip
    if not len(offsets):
        return summary.base_offset == summary.end_offset
    return bool(
        summary.base_offset <= offsets[0]
        and offsets[-1] < summary.end_offset
        and positions[0] >= 0
        and positions[-1] < summary.covered
        and (offsets[1:] > offsets[:-1]).all()
        and (positions[1:] > positions[:-1]).all()
        and (stamps[1:] >= stamps[:-1]).all()
    )
