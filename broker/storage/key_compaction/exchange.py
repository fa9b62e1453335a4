"""Puts the file of a rewritten segment in the segment's place.

1. The segment's index is removed, durably: it describes bytes that are about to be replaced.
2. The new file, which is synced, is renamed over the segment. Readers see the new segment.
3. The folder is synced, and the new index is written.

A crash after any step leaves the old segment or the new one, whole. Without its index the segment
is scanned when the log is opened.
"""

from __future__ import annotations

from broker.errors import OffsetOutOfRangeError
from broker.model.offsets import Offset
from broker.storage.key_compaction.rewriter import Replacement
from broker.storage.log_folder import LogFolder
from broker.storage.no_room import ignoring_no_room
from broker.storage.segments.handle_pool import HandlePool
from broker.storage.segments.log_reader import LogState
from broker.storage.segments.segment import Segment, write_index


def sealed_at(state: LogState, path: str, base_offset: Offset) -> Segment:
    """Return the sealed segment that begins at ``base_offset``.

    Raises:
        OffsetOutOfRangeError: it was freed or cut.
    """
    for segment in state.segments:
        if segment.base_offset == base_offset and segment.sealed:
            return segment
    raise OffsetOutOfRangeError(
        f"{path} has no sealed segment that begins at {base_offset} any more",
        offset=base_offset,
        start=state.log_start,
        end=state.log_end,
    )


def exchange(
    folder: LogFolder, handles: HandlePool, state: LogState, replacement: Replacement
) -> bool:
    """Put a replacement in its place, durably; raises OSError. Owner thread.

    Returns:
        False if the segment was freed, cut or exchanged since: then the new file is removed.
    """
    old, new = replacement.replaced, replacement.segment
    if not any(segment is old for segment in state.segments):
        replacement.discard()
        return False
    path = folder.segment_file(old.base_offset, "log")
    folder.remove_if_there(folder.segment_file(old.base_offset, "index"))
    folder.sync()
    with state.swapping:
        folder.files.replace(replacement.path, path)
        handles.drop(path)
        state.segments = tuple(new if segment is old else segment for segment in state.segments)
        state.generation += 1
    folder.sync()
    with ignoring_no_room():
        write_index(folder, new)
        folder.sync()
    return True
