"""A segment's file for recovery: a read that fails is told from a write or a sync that does."""

from __future__ import annotations

from broker.ports.system import File, Files
from broker.storage.log.folder import PROCESS_LIMITS


class UnreadableError(Exception):
    """The disk did not give what was asked of a segment."""


class SegmentFile:
    """A segment's file; a read that fails is told from a write or sync that does."""

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
        UnreadableError: the disk does not give it.
        OSError: the process has no descriptor or memory for it now.
    """
    try:
        return SegmentFile(files.open(path))
    except OSError as cause:
        if cause.errno in PROCESS_LIMITS:
            raise
        raise UnreadableError(str(cause)) from cause
