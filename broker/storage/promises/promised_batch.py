"""The last batch below a promised end, and its mark: a hash that identifies the batch.

If a data folder is copied and both copies go on, their logs may have equal lengths and epochs, but
they have different records. So a promise also holds the mark of its last batch.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.errors import HeadwaterError, OverloadedError
from broker.model.epoch_history import EpochHistory
from broker.model.offsets import Offset, OffsetRange
from broker.storage.log_folder import LogFolder
from broker.storage.promises.lost_log import another_batch, another_log
from broker.storage.promises.promises import Promised
from broker.storage.segments.damage import DamagedRange
from broker.storage.segments.handle_pool import HandlePool
from broker.storage.segments.log_reader import LogReader, LogState

NO_MARK: Final = 0  # the batch is not known
_FACTS: Final = struct.Struct("<Iqqq")


def mark_of(batch: BatchHeader | PreparedBatch, end: Offset) -> int:
    """Return the mark of a batch that ends at ``end``: 31 bits, never NO_MARK."""
    facts = _FACTS.pack(batch.body_crc, end, batch.records_count, batch.max_timestamp_us)
    return crc32c(facts) >> 1 or 1


def mark_before(
    folder: LogFolder, state: LogState, end: Offset, index_interval_bytes: int
) -> int | None:
    """Return the mark of the batch of a healthy log that ends at ``end``; blocks.

    Returns:
        None if the log has no record before ``end``, or this record cannot be read, or key
        compaction has written its batch. NO_MARK if a batch begins before ``end`` and ends after
        it.

    Raises:
        OverloadedError: the process has no free descriptor or memory now.
    """
    if not state.log_start < end <= state.log_end:
        return None
    handles = HandlePool(folder.files, 1)
    reader = LogReader(folder, handles, state, index_interval_bytes=index_interval_bytes)
    try:
        last = reader.read(Offset(end - 1), end, bytes_max=1)[-1].header
    except OverloadedError:  # no descriptor or memory now: this says nothing of the batch
        raise
    except (HeadwaterError, OSError):  # a reader of the batch meets the same error and reports it
        return None
    finally:
        handles.close()
    if last.sparse:
        return None  # other bytes than were promised, on purpose
    return mark_of(last, end) if last.end_offset == end else NO_MARK


def not_promised(
    folder: LogFolder,
    state: LogState,
    epochs: EpochHistory,
    promised: Promised,
    index_interval_bytes: int,
) -> DamagedRange | None:
    """Return the range of a healthy log that is long enough, but has other records; else None."""
    found = OffsetRange(state.log_start, state.log_end)
    other = another_log(folder.path, promised, epochs, found)
    if other is None and promised.mark:
        mark = mark_before(folder, state, promised.end, index_interval_bytes)
        other = another_batch(folder.path, promised, mark, found)
    return other
