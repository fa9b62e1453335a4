"""The facts of one segment in memory, and its index file.

One thread writes, any thread reads. A reader takes ``end_offset`` first and ``size_bytes`` second;
the writer sets them in the other order. So the bytes that a reader may read cover its offsets.
"""

from __future__ import annotations

from broker.codec.disk.index_format import IndexFile, decode_index, encode_index
from broker.codec.record_batch import BatchHeader
from broker.errors import HeadwaterError, IndexCorruptError
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import SegmentInfo
from broker.storage.log_folder import LogFolder
from broker.storage.no_room import PROCESS_LIMITS
from broker.storage.segments.index import SegmentIndex


class Segment:
    """Facts of one segment. The ``index`` of a sealed segment is loaded at the first read."""

    __slots__ = (
        "base_offset",
        "created_us",
        "end_offset",
        "epochs",
        "index",
        "max_timestamp_us",
        "removed_count",
        "sealed",
        "size_bytes",
        "sparse",
    )

    def __init__(self, base_offset: Offset, index: SegmentIndex | None) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0  # header and batches, without the reserved zeros behind them
        self.max_timestamp_us = 0
        self.created_us = 0  # when the first batch was written; 0 while there is none
        self.sealed = False
        self.sparse = False  # key compaction wrote its batches: records may be missing
        self.removed_count: int | None = 0  # records that key compaction removed; None: not known
        self.epochs: tuple[EpochStart, ...] = ()  # the starts of the leader epochs that occur here
        self.index = index

    @property
    def empty(self) -> bool:
        """Whether no batch was ever written."""
        return self.end_offset == self.base_offset

    def note_batch(self, header: BatchHeader, position: int, *, force: bool = False) -> None:
        """Add a scanned batch to the facts; with ``force`` it gets an index entry."""
        self.sparse = self.sparse or header.sparse
        if header.sparse and self.removed_count is not None:
            self.removed_count += header.offset_span - header.records_count
        self.note(
            OffsetRange(header.base_offset, header.end_offset),
            position,
            size_bytes=header.size,
            leader_epoch=header.leader_epoch,
            max_timestamp_us=header.max_timestamp_us,
            force=force,
        )

    def note(
        self,
        offsets: OffsetRange,
        position: int,
        *,
        size_bytes: int,
        leader_epoch: LeaderEpoch,
        max_timestamp_us: int,
        force: bool = False,
    ) -> None:
        """Add the batch at ``position`` to the facts; readers see it from now on."""
        assert self.index is not None, "a segment that is written has its index loaded"
        self.index.note(offsets.start, position, self.max_timestamp_us, force=force)
        if not self.epochs or self.epochs[-1].leader_epoch != leader_epoch:
            self.epochs = (*self.epochs, EpochStart(leader_epoch, offsets.start))
        self.max_timestamp_us = max(self.max_timestamp_us, max_timestamp_us)
        self.size_bytes = position + size_bytes
        self.end_offset = offsets.end

    def seal(self) -> None:
        """Note that no batch follows."""
        self.sealed = True
        if self.index is not None:
            self.index.forget_newest()

    def info(self) -> SegmentInfo:
        """Return the facts as the type of the ports."""
        end, size = self.end_offset, self.size_bytes
        return SegmentInfo(
            self.base_offset, end, size, self.max_timestamp_us, self.sealed, self.sparse,
            self.created_us, self.removed_count,
        )  # fmt: skip


def write_index(folder: LogFolder, segment: Segment) -> None:
    """Replace the segment's index file. All batches that it covers must be durable before."""
    assert segment.index is not None, "the index of this segment is not loaded"
    data = encode_index(
        partition_id=folder.partition_id,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        covered=segment.size_bytes,
        max_timestamp_us=segment.max_timestamp_us,
        created_us=segment.created_us,
        sealed=segment.sealed,
        sparse=segment.sparse,
        removed_count=segment.removed_count,
        entries=segment.index.entries(),
        epochs=segment.epochs,
    )
    folder.replace(folder.segment_file(segment.base_offset, "index"), data)


def read_index(folder: LogFolder, base_offset: Offset) -> IndexFile:
    """Read a segment's index file.

    Raises:
        IndexCorruptError: the file is missing, damaged or not readable: rebuild the index.
        OSError: the process has no free descriptor or memory now; the file may be whole.
    """
    path = folder.segment_file(base_offset, "index")
    try:
        index = decode_index(folder.read(path))
    except FileNotFoundError as cause:
        raise IndexCorruptError(f"the index {path} is missing", path=path) from cause
    except OSError as cause:
        if cause.errno in PROCESS_LIMITS:
            raise
        raise IndexCorruptError(f"the index {path} cannot be read: {cause}", path=path) from cause
    except HeadwaterError as cause:
        raise IndexCorruptError(f"the index {path}: {cause}", path=path) from cause
    summary = index.summary
    if summary.partition_id != folder.partition_id or summary.base_offset != base_offset:
        raise IndexCorruptError(
            f"the index {path} belongs to segment {summary.base_offset} of {summary.partition_id}",
            path=path,
        )
    return index
