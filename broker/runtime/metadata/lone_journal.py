"""The metadata folder of a single broker of release 0.1 and before. It is only read, except that
its last entry is made durable.

Files in ``metadata/``: ``snapshot`` (state as of an index), ``journal`` (commands after it), and
``ballast``, space that was reserved for a full disk.

    journal entry:  | length u32 | command crc u32 | index u64 | head crc u32 | command ... |
    snapshot:       | crc u32 | index u64 | state as JSON ... |     little-endian, CRC-32C

The head's CRC covers the 16 bytes before it, a snapshot's all that follows. A journal that ends
inside an entry lost a command that was never acknowledged, so it ends before that entry. Any other
damage stops the broker: damaged metadata is never treated as empty or repaired by deletion (pitfall
D6).
"""  # noqa: D205 - one thought

from __future__ import annotations

import struct
from typing import Final

from broker.codec.checksum import crc32c
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import decode
from broker.core.metadata.size import SNAPSHOT_BYTES_MAX
from broker.core.metadata.state import MetadataState
from broker.errors import LogFailedError, MetadataCorruptError
from broker.ports.system import Files
from broker.storage.sectors import after_sector
from broker.storage.whole_file import read_whole

FOLDER: Final = "metadata"
COUNTER: Final = "metadata"  # in the promises: the last entry that was answered

_HEAD: Final = struct.Struct("<IIQ")
_CRC: Final = struct.Struct("<I")
_HEAD_SIZE: Final = _HEAD.size + _CRC.size
_SNAPSHOT: Final = struct.Struct("<IQ")
_JOURNAL_BYTES_MAX: Final = 256 * 1024 * 1024


def read_lone_journal(files: Files, *, answered: int) -> tuple[MetadataState, int]:
    """Return the state and the index of its last entry, after making that entry durable. Blocks.

    Raises:
        MetadataCorruptError: a file is damaged or missing, or ends before the entry ``answered``.
        LogFailedError: the disk does not confirm the last entry.
    """
    files.sync_folder(FOLDER)  # a crash may have come between a replacement and this sync
    state, index = _read_snapshot(files)
    path = f"{FOLDER}/journal"
    if not files.exists(path):
        if index:
            raise MetadataCorruptError(f"{path} is missing beside a snapshot", path=path)
        _require_newest(index, answered)
        return state, index
    data = read_whole(files, path, _JOURNAL_BYTES_MAX)
    position = last = 0
    while position < len(data):
        entry = _next_entry(data, position, path)
        if entry is None:
            break
        number, command, end = entry
        if number > index:  # else the snapshot has it
            if number != index + 1:
                raise MetadataCorruptError(f"{path} jumps to entry {number}", path=path)
            state, _ = apply(state, decode(command))
            index = number
        last, position = position, end
    _require_newest(index, answered)
    if position:
        _confirm(files, path, last, data[last:position])
    return state, index


def _confirm(files: Files, path: str, position: int, entry: bytes) -> None:
    """Make the last entry durable: after a failed sync it may be in the page cache only.

    Nothing was written after a failed sync, so every other entry is on the disk.
    """
    file = files.open(path)
    try:
        file.write_at(position, [entry])
        file.datasync()
    except OSError as cause:
        raise LogFailedError(f"{path} cannot be made durable: {cause}") from cause
    finally:
        file.close()


def _require_newest(index: int, answered: int) -> None:
    """Refuse an older copy: it may lack streams, whose records would then be removed."""
    if answered > index:
        raise MetadataCorruptError(
            f"{FOLDER} ends at entry {index}, and entry {answered} had been answered: files were "
            "lost, or an older copy was put back. Nothing was changed. Put the newest copy of the "
            "folder back, or rebuild the streams from their tables.",
            path=FOLDER,
            expected=answered,
            found=index,
        )


def _read_snapshot(files: Files) -> tuple[MetadataState, int]:
    path = f"{FOLDER}/snapshot"
    if not files.exists(path):
        return MetadataState(), 0
    data = read_whole(files, path, _SNAPSHOT.size + SNAPSHOT_BYTES_MAX)
    if len(data) < _SNAPSHOT.size:
        raise MetadataCorruptError(f"{path} is too short", path=path)
    crc, index = _SNAPSHOT.unpack_from(data)
    if crc32c(memoryview(data)[4:]) != crc:
        raise MetadataCorruptError(f"{path} fails its checksum", path=path)
    return MetadataState.from_json(data[_SNAPSHOT.size :].decode(errors="replace")), index


def _next_entry(data: bytes, position: int, path: str) -> tuple[int, bytes, int] | None:
    """Return (index, command, end) of the entry at ``position``; None for a torn last one."""
    command_start = position + _HEAD_SIZE
    if command_start > len(data):
        return None
    length, crc, index = _HEAD.unpack_from(data, position)
    (head_crc,) = _CRC.unpack_from(data, position + _HEAD.size)
    end = command_start + length
    head_good = crc32c(memoryview(data)[position : position + _HEAD.size]) == head_crc
    if head_good and end > len(data):
        return None
    if head_good and crc32c(memoryview(data)[command_start:end]) == crc:
        return index, data[command_start:end], end
    next_sector = after_sector(position)
    if next_sector < len(data) and not any(data[next_sector:]):
        return None
    raise MetadataCorruptError(
        f"{path} is damaged at byte {position}; nothing was changed. Restore the metadata "
        "folder from a copy, or rebuild the streams from their tables.",
        path=path,
        position=position,
    )
