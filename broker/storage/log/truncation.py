"""Cut a log's files at an offset. A crash after any step is safe.

1. The recovery point is lowered, in both slots, so that no slot calls the dropped bytes durable.
2. Whole segments are removed, the newest first and each durably, so that no hole can appear.
3. The index of the cut segment is removed, because it covers too much.
4. The bytes of the cut segment are removed.

A power cut during step 4 may leave some sectors of these bytes and lose others, which looks like
rot. So a file named ``cut`` exists during step 4. If the file exists at the next opening, opening
removes all bytes beyond the recovery point.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.codec.disk.log_state_format import RecoveryPoint
from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE, parse_segment_name
from broker.model.offsets import Offset
from broker.ports.system import File
from broker.storage.log.producer_state import remove_producer_state_above
from broker.storage.log_folder import CUT_NAME, LogFolder, RecoveryPointFile
from broker.storage.no_room import datasync, ignoring_no_room
from broker.storage.promises.promises import Promised
from broker.storage.segments.handle_pool import HandlePool
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
    """Remove all records from ``end`` on, durably. All records below must be durable before.

    Raises:
        OSError: the disk has no room, or the process no descriptor: call again; or the disk failed,
            and the log can be opened again.
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
        for base in _bases_above(folder, last.base_offset):
            for kind in ("index", "log"):
                folder.remove_if_there(folder.segment_file(base, kind))
            folder.sync()
        folder.remove_if_there(folder.segment_file(last.base_offset, "index"))
        with ignoring_no_room():  # the file only prevents a false alarm
            if not folder.files.exists(folder.file(CUT_NAME)):  # of an earlier try
                folder.files.open(folder.file(CUT_NAME), create=True).close()
        folder.sync()
        file.truncate(position)
        datasync(file)
        folder.remove_if_there(folder.file(CUT_NAME))
        folder.sync()  # before a batch is written behind the recovery point again
    finally:
        file.close()


def remove_files(folder: LogFolder, handles: HandlePool, bases: Sequence[Offset]) -> None:
    """Remove the files of segments that were freed; who reads one now may finish."""
    for base in bases:
        for kind in ("log", "index"):
            path = folder.segment_file(base, kind)
            folder.remove_if_there(path)
            handles.drop(path)
    folder.sync()


def _bases_above(folder: LogFolder, base: Offset) -> list[int]:
    """Return the segments above ``base``, newest first; one may be there that was never used."""
    names = map(parse_segment_name, folder.files.list(folder.path))
    return sorted({one[0] for one in names if one is not None and one[0] > base}, reverse=True)


def finish_cut(
    folder: LogFolder, point: RecoveryPoint | None, promised: Promised | None = None
) -> None:
    """Finish an interrupted cut: drop all bytes behind the recovery point.

    A cut lowers the promise first. So if the promise is above the recovery point, the file ``cut``
    comes from another copy of the log: then only this file is removed.
    """
    if not folder.files.exists(folder.file(CUT_NAME)):
        return
    if point is not None and (promised is None or promised.end <= point.log_end):
        path = folder.segment_file(point.segment_base, "log")
        # The index covers bytes that are dropped. Its removal may not have become durable.
        folder.remove_if_there(folder.segment_file(point.segment_base, "index"))
        folder.sync()
        if folder.files.exists(path):
            file = folder.files.open(path)
            try:
                if file.size() > point.position:
                    file.truncate(point.position)
                datasync(file)
            finally:
                file.close()
    folder.files.remove(folder.file(CUT_NAME))
    folder.sync()


def _position_of(file: File, base: Offset, end: Offset) -> int:
    """Return the position of the batch at offset ``end``, or the end of the batch before it."""
    if end == base:
        return 0
    position = SEGMENT_HEADER_SIZE
    for found in scan(Window(file, file.size()), position=position, offset=base):
        if not isinstance(found, ValidBatch) or found.header.base_offset >= end:
            break
        assert found.header.end_offset <= end, f"offset {end} lies within a batch"
        position = found.position + found.header.size
    return position
