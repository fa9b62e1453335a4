"""Cut a log's files at an offset. Every prefix of the steps is safe to crash in.

First the recovery point goes down, in both slots, so that what is about to vanish is nowhere said
to be durable; then segments go, newest first and each durably, so that no hole can appear; then
the index of the cut segment, which covers too much; the bytes themselves go last. A power cut may
leave some sectors of those bytes and lose others, which looks like rot. So while they go, a file
named ``cut`` says that whatever lies beyond the recovery point is to go, and opening finishes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.codec.disk.log_state_format import RecoveryPoint
from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.model.offsets import Offset
from broker.ports.system import File
from broker.storage.log.folder import CUT_NAME, LogFolder, RecoveryPointFile, ignoring_full_disk
from broker.storage.log.producer_state import remove_producer_state_above
from broker.storage.promises.promises import Promised
from broker.storage.segments.scan import ValidBatch, Window, scan
from broker.storage.segments.segment import Segment


def truncate_files(
    folder: LogFolder,
    point: RecoveryPointFile,
    segments: Sequence[Segment],
    *,
    log_start: Offset,
    end: Offset,
) -> None:
    """Remove everything from ``end`` on, durably. Everything below must be durable before.

    Raises:
        OSError: the disk failed; opening the log again finds a whole state.
    """
    kept = [segment for segment in segments if segment.base_offset <= end]
    assert kept, f"{end} is below the first segment"
    last = kept[-1]
    file = folder.files.open(folder.segment_file(last.base_offset, "log"))
    try:
        position = _position_of(file, last.base_offset, end)
        for _ in range(2):
            point.write(folder, at=(last.base_offset, position), log=(log_start, end))
        remove_producer_state_above(folder, end)
        folder.sync()
        for segment in reversed(segments[len(kept) :]):
            for kind in ("index", "log"):
                folder.remove_if_there(folder.segment_file(segment.base_offset, kind))
            folder.sync()
        folder.remove_if_there(folder.segment_file(last.base_offset, "index"))
        with ignoring_full_disk():  # it spares a false alarm, no more
            folder.files.open(folder.file(CUT_NAME), create=True).close()
        folder.sync()
        file.truncate(position)
        file.datasync()
        folder.remove_if_there(folder.file(CUT_NAME))
        folder.sync()  # before anything is written behind the point again
    finally:
        file.close()


def finish_cut(
    folder: LogFolder, point: RecoveryPoint | None, promised: Promised | None = None
) -> None:
    """Drop what a cut that was interrupted had not dropped yet: all behind the recovery point.

    A cut lowers the promise before anything else. So a mark below a promise that reaches further is
    another copy's, and nothing but the mark goes.
    """
    if not folder.files.exists(folder.file(CUT_NAME)):
        return
    if point is not None and (promised is None or promised.end <= point.log_end):
        path = folder.segment_file(point.segment_base, "log")
        # The index covers what goes. Its name may be back: what removed it was never synced.
        folder.remove_if_there(folder.segment_file(point.segment_base, "index"))
        folder.sync()
        if folder.files.exists(path):
            file = folder.files.open(path)
            try:
                if file.size() > point.position:
                    file.truncate(point.position)
                file.datasync()
            finally:
                file.close()
    folder.files.remove(folder.file(CUT_NAME))
    folder.sync()


def _position_of(file: File, base: Offset, end: Offset) -> int:
    """Return where the batch of offset ``end`` begins, or the last one before it ends."""
    if end == base:
        return 0
    position = SEGMENT_HEADER_SIZE
    for found in scan(Window(file, file.size()), position=position, offset=base):
        if not isinstance(found, ValidBatch) or found.header.base_offset >= end:
            break
        assert found.header.end_offset <= end, f"offset {end} lies within a batch"
        position = found.position + found.header.size
    return position
