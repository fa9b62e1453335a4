"""The Files port over a disk with bad sectors, or without room, for a whole broker."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from broker.ports.system import File, Files


class BadFiles:
    """Passes everything on; the sets of paths and :attr:`full` say what goes wrong."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.unreadable: set[str] = set()  # ends of the paths whose reads fail
        self.unwritable: dict[str, int] = {}  # ends of paths: the errno of their writes
        self.full = False
        self.given_bytes = 0  # room that a cut of the ballast gave back
        self.exists, self.list, self.make_folder = files.exists, files.list, files.make_folder
        self.replace, self.remove = files.replace, files.remove
        self.remove_folder, self.sync_folder = files.remove_folder, files.sync_folder

    def open(self, path: str, *, create: bool = False) -> File:
        """Open; on a full disk nothing new is made."""
        if create and self.full:
            raise OSError(errno.ENOSPC, "simulated: no space left", path)
        return _BadFile(self, path, self._files.open(path, create=create))

    def free_bytes(self) -> int:
        """Return the room left."""
        return 0 if self.full else self._files.free_bytes()


class _BadFile:
    def __init__(self, files: BadFiles, path: str, file: File) -> None:
        self._files, self._path, self._file = files, path, file
        self.datasync, self.size, self.close = file.datasync, file.size, file.close

    def read_at(self, position: int, size: int) -> bytes:
        """Read, or fail as a bad sector does."""
        if any(self._path.endswith(end) for end in self._files.unreadable):
            raise OSError(errno.EIO, "simulated: bad sector", self._path)
        return self._file.read_at(position, size)

    def write_at(self, position: int, buffers: Sequence[Any], *, read_soon: bool = True) -> int:
        """Write; on a full disk only over existing bytes, or into freed ballast."""
        for end, number in self._files.unwritable.items():
            if self._path.endswith(end):
                raise OSError(number, "simulated: the write is refused", self._path)
        size = sum(len(memoryview(one).cast("B")) for one in buffers)
        if self._files.full and position + size > self._file.size() and not _ballast(self._files):
            raise OSError(errno.ENOSPC, "simulated: no space left", self._path)
        return self._file.write_at(position, buffers, read_soon=read_soon)

    def allocate(self, size: int) -> None:
        """Reserve, if there is room."""
        if self._files.full and size > self._file.size():
            raise OSError(errno.ENOSPC, "simulated: no space left", self._path)
        self._file.allocate(size)

    def truncate(self, size: int) -> None:
        """Truncate; bytes cut off the ballast may be used."""
        if self._path.endswith("ballast"):
            self._files.given_bytes += self._file.size() - size
        self._file.truncate(size)


def _ballast(files: BadFiles) -> bool:
    """Take the room of one small write from the freed ballast."""
    if files.given_bytes < 4096:
        return False
    files.given_bytes -= 4096
    return True
