"""Snapshots of the producers' state beside the log: opaque bytes, a cache.

A snapshot is named by the end of the records that it covers. The newest valid snapshot is used. The
snapshot before it is kept, so that damage of the newest only costs a longer replay. That needs the
records after the older one. So before records are freed, two snapshots must cover them: if only the
newest does, it gets a copy under a second name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.codec.disk.log_state_format import decode_producer_state, encode_producer_state
from broker.codec.disk.segment_format import parse_segment_name
from broker.errors import CorruptDataError
from broker.model.offsets import Offset
from broker.storage.log_folder import LogFolder, cannot_open
from broker.storage.no_room import PROCESS_LIMITS, lacks_room

_KEPT: int = 2
KINDS: Final = ("producers", "producers-copy")  # of a snapshot, and of its copy


@dataclass(frozen=True, slots=True)
class ProducerStates:
    """The snapshots of a log at one moment."""

    folder: str
    valid: tuple[tuple[bytes, Offset, str], ...]  # state, end, path; the newest first
    unreadable: tuple[str, ...]  # paths

    @property
    def newest(self) -> tuple[bytes, Offset] | None:
        """The newest snapshot, and the end of the records that it covers."""
        return self.valid[0][:2] if self.valid else None

    @property
    def kept_end(self) -> Offset:
        """End of the records that two snapshots cover: any one of them may be damaged later."""
        return self.valid[1][1] if len(self.valid) > 1 else Offset(0)


def write_state(folder: LogFolder, offset: Offset, state: bytes, *, twice: bool = False) -> bool:
    """Write the snapshot of all records below ``offset``, which are durable; drop older ones.

    With ``twice`` it gets a copy: two snapshots cover these records then.

    Returns:
        False when the disk is full; the older snapshots stay.
    """
    data = encode_producer_state(offset, state)
    try:
        for kind in KINDS if twice else KINDS[:1]:
            folder.replace(folder.segment_file(offset, kind), data)
        folder.sync()
    except OSError as error:
        if lacks_room(error):
            return False
        raise
    for old in [one for one in _snapshots(folder) if one[0] <= offset][:-_KEPT]:
        folder.files.remove(folder.segment_file(*old))
    return True


def read_states(folder: LogFolder, log_end: Offset) -> ProducerStates:
    """Return the snapshots at or below ``log_end``.

    Raises:
        OverloadedError: the process has no free descriptor or memory now. Nothing is skipped for
            that: without a state that may be whole, repeats would not be known.
    """
    valid, unreadable = [], []
    try:
        for offset, kind in reversed(_snapshots(folder)):
            if offset <= log_end:
                path = folder.segment_file(offset, kind)
                state = _valid_state(folder, path, offset)
                if state is None:
                    unreadable.append(path)
                else:
                    valid.append((state, offset, path))
    except OSError as cause:
        raise cannot_open(folder.path, cause, "read the producers' state of") from cause
    return ProducerStates(folder.path, tuple(valid), tuple(unreadable))


def _valid_state(folder: LogFolder, path: str, offset: Offset) -> bytes | None:
    try:
        found, state = decode_producer_state(folder.read(path))
    except CorruptDataError:
        return None
    except OSError as cause:
        if cause.errno in PROCESS_LIMITS:
            raise
        return None
    return state if found == offset else None


def remove_producer_state_above(folder: LogFolder, end: Offset) -> bool:
    """Remove snapshots that cover records from ``end`` on; return whether there were any."""
    above = [one for one in _snapshots(folder) if one[0] > end]
    for one in above:
        folder.files.remove(folder.segment_file(*one))
    return bool(above)


def _snapshots(folder: LogFolder) -> list[tuple[Offset, str]]:
    """Return offset and kind of each snapshot, oldest first."""
    names = map(parse_segment_name, folder.files.list(folder.path))
    return sorted(name for name in names if name is not None and name[1] in KINDS)
