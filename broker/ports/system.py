"""The broker's interface to the machine: time and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Clock(Protocol):
    """Wall time is for data, monotonic time is for waiting. No other code reads a clock."""

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""

    def monotonic_ms(self) -> int:
        """Return milliseconds of a clock that never goes back."""


class File(Protocol):
    """One open file. Raises OSError as the operating system does; short writes are completed."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``position``; fewer only at the end of the file."""

    def write_at(self, position: int, buffers: Sequence[Any], *, read_soon: bool = True) -> int:
        """Write the buffers one after another; return the bytes written. Not yet durable.

        ``read_soon=False`` is a hint: the bytes will not be read soon, so the page cache need not
        keep them once they are durable.
        """

    def datasync(self) -> None:
        """Make everything written durable (fdatasync); never use the file after an error."""

    def allocate(self, size: int) -> None:
        """Reserve disk space up to ``size`` and extend the file with zeros.

        If it fails with ENOSPC, no written byte is affected.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size`` bytes."""

    def size(self) -> int:
        """Return the length in bytes."""

    def close(self) -> None:
        """Close; does not sync."""


class Files(Protocol):
    """A file system below one root. Paths are relative, with ``/``."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` makes a new file and fails if it exists."""

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when the folder is absent."""

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably."""

    def replace(self, source: str, target: str) -> None:
        """Rename over ``target``; durable only after :meth:`sync_folder`."""

    def remove(self, path: str) -> None:
        """Remove a file; durable only after :meth:`sync_folder`."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and its content."""

    def sync_folder(self, folder: str) -> None:
        """Make durable the names that were created, renamed or removed in ``folder``."""

    def free_bytes(self) -> int:
        """Return the bytes that may still be written."""
