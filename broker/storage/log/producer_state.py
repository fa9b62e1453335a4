"""Snapshots of the producers' state beside the log: opaque bytes, a cache.

A snapshot is named by the end of the records that it covers. The newest valid snapshot is used. The
snapshot before it is kept, so that damage of the newest only costs a longer replay.
"""

from __future__ import annotations

from broker.codec.disk.log_state_format import decode_producer_state, encode_producer_state
from broker.codec.disk.segment_format import parse_segment_name
from broker.errors import CorruptDataError
from broker.model.offsets import Offset
from broker.storage.log_folder import LogFolder, cannot_open
from broker.storage.no_room import PROCESS_LIMITS, lacks_room

_KEPT: int = 2


def write_producer_state(folder: LogFolder, offset: Offset, state: bytes) -> bool:
    """Write the snapshot of all records below ``offset``, which are durable; drop older ones.

    Returns:
        False when the disk is full; the older snapshots stay.
    """
    try:
        folder.replace(
            folder.segment_file(offset, "producers"), encode_producer_state(offset, state)
        )
        folder.sync()
    except OSError as error:
        if lacks_room(error):
            return False
        raise
    for old in [one for one in _offsets(folder) if one <= offset][:-_KEPT]:
        folder.files.remove(folder.segment_file(old, "producers"))
    return True


def read_producer_state(folder: LogFolder, log_end: Offset) -> tuple[bytes, Offset] | None:
    """Return the newest valid snapshot at or below ``log_end`` and its offset.

    Raises:
        OverloadedError: the process has no free descriptor or memory now. Nothing is skipped for
            that: without a state that may be whole, repeats would not be known.
    """
    try:
        for offset in reversed(_offsets(folder)):
            if offset <= log_end and (state := _valid_state(folder, offset)) is not None:
                return state, offset
    except OSError as cause:
        raise cannot_open(folder.path, cause, "read the producers' state of") from cause
    return None


def _valid_state(folder: LogFolder, offset: Offset) -> bytes | None:
    try:
        found, state = decode_producer_state(folder.read(folder.segment_file(offset, "producers")))
    except CorruptDataError:
        return None
    except OSError as cause:
        if cause.errno in PROCESS_LIMITS:
            raise
        return None
    return state if found == offset else None


def remove_producer_state_above(folder: LogFolder, end: Offset) -> bool:
    """Remove snapshots that cover records from ``end`` on; return whether there were any."""
    above = [offset for offset in _offsets(folder) if offset > end]
    for offset in above:
        folder.files.remove(folder.segment_file(offset, "producers"))
    return bool(above)


def _offsets(folder: LogFolder) -> list[Offset]:
    names = map(parse_segment_name, folder.files.list(folder.path))
    return sorted(name[0] for name in names if name is not None and name[1] == "producers")
