"""The writing end of the active segment: one gathered write per group, disk reserved ahead.

Reserving ahead makes a small fdatasync about twice as quick, for the file's size and block map do
not change with it, and turns a full disk into a refusal before anything is written.
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
from broker.storage.log.folder import LogFolder, is_full
from broker.storage.log.handle_pool import HandlePool
from broker.storage.segments.segment import Segment


class ActiveSegment:
    """Appends to one segment. Owner thread only; raises OSError as the disk does."""

    def __init__(
        self, folder: LogFolder, handles: HandlePool, segment: Segment, *, preallocate_bytes: int
    ) -> None:
        self._folder = folder
        self._handles = handles
        self._preallocate_bytes = preallocate_bytes
        self._path = folder.segment_file(segment.base_offset, "log")
        self._file = handles.pin(self._path)
        self._allocated = self._file.size()
        self.segment = segment
        self.dirty = False  # whether something was written since the last datasync
        self.synced_bytes = segment.size_bytes  # what was there when it last was

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
        """Write batches as another log holds them; they continue this one.

        Readers ask that other log as long as its broker leads.
        """
        buffers: list[Any] = []
        for batch in batches:
            buffers += (encode_stored(batch.header), batch.body)
        size = sum(batch.header.size for batch in batches)
        position = self._put(buffers, size, now_us, read_soon=False)
        for batch in batches:
            self.segment.note_batch(batch.header, position)
            position += batch.header.size

    def datasync(self) -> None:
        """Make everything written durable."""
        size = self.segment.size_bytes
        self._file.datasync()
        self.synced_bytes = size
        self.dirty = False

    def trim(self) -> None:
        """Give the disk reserved behind the last batch back; durable with the next datasync."""
        if self._allocated > self.segment.size_bytes:
            self._file.truncate(self.segment.size_bytes)
            self._allocated = self.segment.size_bytes
            self.dirty = True

    def close(self) -> None:
        """Leave the file to the readers; does not sync."""
        self._handles.unpin(self._path)

    def _put(self, buffers: list[Any], size: int, now_us: int, *, read_soon: bool = True) -> int:
        """Write ``buffers`` behind the last batch; return where the first batch begins."""
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
            self._file.truncate(self._allocated)  # a reservation may have been made in part
            ahead = end
            self._reserve_exactly(end)
        self._allocated = ahead

    def _reserve_exactly(self, end: int) -> None:
        """Use the last room of a disk that is almost full."""
        try:
            self._file.allocate(end)
        except OSError as error:
            if is_full(error):
                self._file.truncate(self._allocated)
            raise

    def _cut_back(self, start: int) -> None:
        """Undo a write that did not fit, so that its bytes never lie below a later batch."""
        try:
            self._file.truncate(start)
            self._allocated = start
            self._file.datasync()
        except OSError as cause:  # not a full disk any more: the file's content is unknown
            raise OSError(errno.EIO, f"a write could not be undone: {cause}") from cause


assert HEADER_SIZE % 8 == 0, "batches begin at multiples of eight bytes"
assert SEGMENT_HEADER_SIZE % 8 == 0, "batches begin at multiples of eight bytes"
