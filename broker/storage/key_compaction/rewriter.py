"""Writes one sealed segment anew, without the records that key compaction removes.

The new file stands beside the segment, under a temporary name, and is synced. The log's owner puts
it in the segment's place (``PartitionLog.replace_segment``). Every batch of the new file is sparse.
Neighbouring batches of one leader epoch become one, but a batch that a producer may still send
again keeps its place and its producer, even without records: a restart reads both from the log.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.codec.disk.segment_format import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    encode_segment_header,
)
from broker.codec.record_batch import BatchHeader, encode_stored
from broker.codec.sparse import SPAN_MAX, Survivors, encode_sparse
from broker.model.ids import NO_PRODUCER
from broker.model.offsets import Offset
from broker.storage.log_folder import TEMPORARY_SUFFIX, LogFolder
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.segment import Segment

_BATCH_BYTES: Final = 1024 * 1024  # a batch of survivors ends when it is so large
_BATCH_ROWS: Final = 64 * 1024

Keep = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A synced file that can take the place of a segment."""

    folder: LogFolder
    replaced: Segment  # exactly this one: a segment that was cut or exchanged since is another
    segment: Segment
    path: str  # temporary
    removed_count: int

    def discard(self) -> None:
        """Remove the file, because it does not replace the segment."""
        self.folder.remove_if_there(self.path)


@dataclass(slots=True)
class _Pending:
    """Survivors of neighbouring batches that become one batch."""

    like: BatchHeader
    end: Offset
    survivors: list[Survivors] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def takes(self, header: BatchHeader) -> bool:
        """Tell whether the batch may become part of this one."""
        return (
            header.leader_epoch == self.like.leader_epoch
            and header.codec == self.like.codec
            and self.size_bytes < _BATCH_BYTES
            and self.rows < _BATCH_ROWS
            and header.end_offset - self.like.base_offset <= SPAN_MAX
        )


class SegmentRewriter:
    """Writes one replacement, a run of batches at a time. Single thread; raises OSError."""

    def __init__(
        self,
        folder: LogFolder,
        replaced: Segment,
        index_interval_bytes: int,
        retried: Collection[int],
    ) -> None:
        """Create the temporary file. ``retried``: base offsets of batches that stay separate."""
        self._folder = folder
        self._replaced = replaced
        self._retried = retried
        self._segment = Segment(replaced.base_offset, SegmentIndex(index_interval_bytes))
        self._segment.created_us = replaced.created_us
        self._path = folder.segment_file(replaced.base_offset, "log") + TEMPORARY_SUFFIX
        folder.remove_if_there(self._path)
        self._file = folder.files.open(self._path, create=True)
        header = SegmentHeader(
            partition_id=folder.partition_id,
            base_offset=replaced.base_offset,
            created_us=replaced.created_us,
        )
        self._file.write_at(0, [encode_segment_header(header)], read_soon=False)
        self._position = SEGMENT_HEADER_SIZE
        self._pending: _Pending | None = None
        self.removed_count = 0

    def is_alone(self, header: BatchHeader) -> bool:
        """Tell whether the batch keeps its place, because its producer may send it again."""
        return header.producer_id != NO_PRODUCER and header.base_offset in self._retried

    def add(
        self,
        headers: Sequence[BatchHeader],
        offsets: npt.NDArray[np.int64],
        columns: pa.RecordBatch,
        keep: Keep,
    ) -> None:
        """Add a run of batches: neighbours of one shape, or one that is alone.

        ``offsets`` and ``columns`` are those of all their records, ``keep`` tells which stay.
        """
        first = headers[0]
        alone = len(headers) == 1 and self.is_alone(first)
        if self._pending is not None and (alone or not self._pending.takes(headers[-1])):
            self._flush()
        if self._pending is None:
            self._pending = _Pending(first, first.base_offset)
        pending = self._pending
        self.removed_count += len(keep) - int(keep.sum())
        if keep.all():
            left = Survivors(offsets, columns)
        else:
            left = Survivors(offsets[keep], columns.filter(pa.array(keep)))
        pending.survivors.append(left)
        pending.rows += len(left.offsets)
        pending.size_bytes += left.columns.nbytes
        pending.end = headers[-1].end_offset
        if alone:
            self._flush(keep_producer=True)

    def _flush(self, *, keep_producer: bool = False) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        header, body = encode_sparse(
            pending.like, pending.end, pending.survivors, keep_producer=keep_producer
        )
        buffers: list[Any] = [encode_stored(header), body]
        self._file.write_at(self._position, buffers, read_soon=False)
        self._segment.note_batch(header, self._position)
        self._position += header.size

    def finish(self) -> Replacement:
        """Sync and close the file."""
        self._flush()
        assert self._segment.end_offset == self._replaced.end_offset, "offsets are missing"
        self._file.datasync()
        self._file.close()
        self._segment.sealed = True
        return Replacement(
            self._folder, self._replaced, self._segment, self._path, self.removed_count
        )

    def abandon(self) -> None:
        """Remove the unfinished file. If that fails, the next opening of the log removes it."""
        with suppress(OSError):
            self._file.close()
            self._folder.remove_if_there(self._path)
