"""The sparse index of one segment in memory: offset or time → position of a batch at or before it.

One thread writes, any thread reads. Entries are only appended, and the offset column grows last. So
a reader that takes the length of the offset column sees whole entries.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from broker.codec.disk.index_format import IndexEntries
from broker.model.offsets import Offset


class SegmentIndex:
    """Holds the first batch of every ``interval_bytes``; an entry takes 24 bytes."""

    __slots__ = ("_interval_bytes", "_offsets", "_positions", "_stamps_before")

    def __init__(self, interval_bytes: int, entries: IndexEntries | None = None) -> None:
        self._interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._stamps_before = array("q")
        if entries is not None:
            self._positions.frombytes(entries.positions.tobytes())
            self._stamps_before.frombytes(entries.timestamps_us_before.tobytes())
            self._offsets.frombytes(entries.offsets.tobytes())

    def note(
        self, offset: Offset, position: int, timestamp_us_before: int, *, force: bool = False
    ) -> None:
        """Add an entry for the batch if the last entry is ``interval_bytes`` away, or if forced."""
        positions = self._positions
        if force or not positions or position - positions[-1] >= self._interval_bytes:
            self._add(offset, position, timestamp_us_before)

    def place_of(self, offset: Offset) -> tuple[Offset, int] | None:
        """Return offset and position of the last entry at or below ``offset``; None if none is."""
        found = bisect_right(self._offsets, offset) - 1
        return (Offset(self._offsets[found]), self._positions[found]) if found >= 0 else None

    def place_before(self, timestamp_us: int) -> tuple[Offset, int] | None:
        """Return the last entry with only older records before it than ``timestamp_us``, if any."""
        found = bisect_left(self._stamps_before, timestamp_us, 0, len(self._offsets)) - 1
        return (Offset(self._offsets[found]), self._positions[found]) if found >= 0 else None

    def entries(self) -> IndexEntries:
        """Return a copy for the index file. Writer only."""
        return IndexEntries.of(self._offsets, self._positions, self._stamps_before)

    def __len__(self) -> int:
        return len(self._offsets)

    def _add(self, offset: int, position: int, timestamp_us_before: int) -> None:
        self._positions.append(position)
        self._stamps_before.append(timestamp_us_before)
        self._offsets.append(offset)
