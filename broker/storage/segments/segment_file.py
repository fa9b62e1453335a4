"""A segment's file for recovery: a failed read raises another error than a failed write or sync."""

from __future__ import annotations

from broker.ports.system import File, Files
from broker.storage.no_room import PROCESS_LIMITS


class UnreadableError(Exception):
    """The disk could not read a segment."""


class SegmentFile:
    """A segment's file; a failed read raises UnreadableError, a failed write or sync OSError."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.write_at = file.write_at
        self.datasync = file.datasync
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def read_at(self, position: int, size: int) -> bytes:
        """See ``File.read_at``."""
        try:
            return self._file.read_at(position, size)
        except OSError as cause:
            if cause.errno in PROCESS_LIMITS:
                raise
            raise UnreadableError(str(cause)) from cause


def opened(files: Files, path: str) -> File:
    """Open a segment.

    Raises:
        UnreadableError: the disk cannot read the file.
        OSError: the process has no free descriptor or memory now.
    """
    try:
        return SegmentFile(files.open(path))
    except OSError as cause:
        if cause.errno in PROCESS_LIMITS:
            raise
        raise UnreadableError(str(cause)) from cause
