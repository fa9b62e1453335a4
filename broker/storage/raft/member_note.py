"""Reads the member file of a disk; it is read before every other file of the folder."""

from __future__ import annotations

from broker.codec.disk.raft_member_file import MEMBER_FILE_SIZE_MAX, decode_member_file
from broker.ports.system import Files


def noted_disk(files: Files, folder: str) -> int:
    """Return the number of the disk; 0 if it has none. Raises MetadataCorruptError."""
    path = f"{folder}/member"
    if not files.exists(path):
        return 0
    file = files.open(path)
    try:
        return decode_member_file(file.read_at(0, MEMBER_FILE_SIZE_MAX + 1))[0].disk
    finally:
        file.close()
