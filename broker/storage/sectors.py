"""Sectors of a disk: a power cut leaves whole ones unwritten, and they read as zeros.

Source: ``isTornEntry`` of etcd's WAL; docs/decisions/0002-torn-tail-or-rot.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SECTOR_SIZE: Final = 512  # no disk has smaller ones
_ZEROS: Final = bytes(SECTOR_SIZE)

# (position, size) -> the bytes there; fewer where the file ends.
ReadAt = Callable[[int, int], bytes | memoryview]


def after_sector(position: int) -> int:
    """Return where the sector of a byte ends, and the next one begins."""
    return (position // SECTOR_SIZE + 1) * SECTOR_SIZE


def has_missing_sector(read: ReadAt, start: int, end: int) -> bool:
    """Tell whether a sector's part of ``[start, end)`` is all zero, or behind the file's end."""
    while start < end:
        stop = min(end, after_sector(start))
        part = read(start, stop - start)
        if len(part) < stop - start or part == _ZEROS[: len(part)]:
            return True
        start = stop
    return False
