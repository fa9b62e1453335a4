"""Writing to the active segment: one write call per group, disk space is reserved ahead.

Reserved space has two advantages. A small fdatasync is about twice as quick, because the file's
size and block map do not change. A full disk is found before any byte is written.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from broker.codec.disk.segment_format import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    encode_segment_header,
)
from broker.codec.record_batch import HEADER_SIZE, PreparedBatch, encode_header, encode_stored
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import StoredBatch
from broker.storage.log_folder import LogFolder
from broker.storage.no_room import is_full
from broker.storage.segments.handle_pool import HandlePool
from broker.storage.segments.segment import Segment


class ActiveSegment:
    """Appends to one segment. Owner thread only; passes the disk's OSError on."""

    def __init__(
        self, folder: LogFolder, handles: HandlePool, segment: Segment, *, preallocate_bytes: int
    ) -> None:
        self._folder = folder
        self._handles = handles
        self._preallocate_bytes = preallocate_bytes
        self._path = folder.segment_file(segment.base_offset, "log")
        self._file = handles.pin(self._path)
        try:
            self._allocated = self._file.size()
        except OSError:
            handles.unpin(self._path)
            raise
        self.segment = segment
        self.dirty = False  # whether bytes were written since the last datasync
        self.synced_bytes = segment.size_bytes  # size of the segment at the last datasync

    def write(
        self,
        batches: Sequence[PreparedBatch],
        *,
        leader_epoch: LeaderEpoch,
        synced_end: Offset,
        now_us: int,
    ) -> list[Offset]:
        """Write a group at the log's end; return the batches' base offsets. Not durable yet."""
        offset = self.segment.end_offset
        offsets: list[Offset] = []
        buffers: list[Any] = []
        for batch in batches:
            header = encode_header(
                batch, base_offset=offset, leader_epoch=leader_epoch, synced_end=synced_end
            )
            buffers += (header, batch.body)
            offsets.append(offset)
            offset = Offset(offset + batch.records_count)
        position = self._put(buffers, sum(batch.size for batch in batches), now_us)
        for base, batch in zip(offsets, batches, strict=True):
            self.segment.note(
                OffsetRange(base, Offset(base + batch.records_count)),
                position,
                size_bytes=batch.size,
                leader_epoch=leader_epoch,
                max_timestamp_us=batch.max_timestamp_us,
            )
            position += batch.size
        return offsets

    def write_stored(self, batches: Sequence[StoredBatch], *, now_us: int) -> None:
        """Write batches of the leader's log as they are; they must continue this log.

        The page cache need not keep them: readers ask the leader.
        """
        buffers: list[Any] = []
        for batch in batches:
            buffers += (encode_stored(batch.header), batch.body)
        size = sum(batch.header.size for batch in batches)
        position = self._put(buffers, size, now_us, read_soon=False)
        for batch in batches:
            self.segment.note_batch(batch.header, position)
            position += batch.header.size

    def reserve(self, size: int) -> None:
        """Reserve disk for ``size`` more bytes."""
        self._reserve(max(self.segment.size_bytes, SEGMENT_HEADER_SIZE) + size)

    def datasync(self) -> None:
        """Make all written bytes durable."""
        size = self.segment.size_bytes
        self._file.datasync()
        self.synced_bytes = size
        self.dirty = False

    def trim(self) -> None:
        """Release the space reserved behind the last batch; durable with the next datasync."""
        if self._allocated > self.segment.size_bytes:
            self._file.truncate(self.segment.size_bytes)
            self._allocated = self.segment.size_bytes
            self.dirty = True

    def close(self) -> None:
        """Stop writing; readers may still use the file. Does not sync."""
        self._handles.unpin(self._path)

    def _put(self, buffers: list[Any], size: int, now_us: int, *, read_soon: bool = True) -> int:
        """Write ``buffers`` behind the last batch; return the position of the first new batch."""
        segment = self.segment
        start = segment.size_bytes
        position = max(start, SEGMENT_HEADER_SIZE)
        if start == 0:
            header = SegmentHeader(
                partition_id=self._folder.partition_id,
                base_offset=segment.base_offset,
                created_us=now_us,
            )
            buffers = [encode_segment_header(header), *buffers]
        self._reserve(position + size)
        self.dirty = True
        try:
            self._file.write_at(start, buffers, read_soon=read_soon)
        except OSError as error:
            if is_full(error):
                self._cut_back(start)
            raise
        if start == 0:
            segment.created_us = now_us
        return position

    def _reserve(self, end: int) -> None:
        if end <= self._allocated:
            return
        step = self._preallocate_bytes
        ahead = -(-end // step) * step
        try:
            self._file.allocate(ahead)
        except OSError as error:
            if not is_full(error):
                raise
            self._file.truncate(self._allocated)  # undo a reservation that was made in part
            ahead = end
            self._reserve_exactly(end)
        self._allocated = ahead

    def _reserve_exactly(self, end: int) -> None:
        """Reserve only the needed bytes, on a disk that is almost full."""
        try:
            self._file.allocate(end)
        except OSError as error:
            if is_full(error):
                self._file.truncate(self._allocated)
            raise

    def _cut_back(self, start: int) -> None:
        """Undo a write that did not fit, so that its bytes are never below a later batch."""
        try:
            self._file.truncate(start)
            self._allocated = start
            self._file.datasync()
        except OSError as cause:  # worse than a full disk: the file's content is unknown now
            raise OSError(errno.EIO, f"a write could not be undone: {cause}") from cause


assert HEADER_SIZE % 8 == 0, "batches begin at multiples of eight bytes"
assert SEGMENT_HEADER_SIZE % 8 == 0, "batches begin at multiples of eight bytes"
