"""The sparse index of one segment in memory: offset or time → position of a batch at or before it.

One thread writes, any thread reads. Entries are only appended, and the offset column grows last. So
a reader that takes the length of the offset column sees whole entries.

The places of the newest batches are kept as well, each of them: most readers want what was written
a moment ago, and would parse the headers of up to ``interval_bytes`` to find it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from broker.codec.disk.index_format import IndexEntries
from broker.model.offsets import Offset

_NEWEST_MAX: Final = 64  # with the 64 before them 2 KiB, for each segment that is written


class _Places:
    """The places of batches that follow each other."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")

    def add(self, offset: Offset, position: int) -> None:
        self.positions.append(position)
        self.offsets.append(offset)

    def place_of(self, offset: Offset) -> tuple[Offset, int] | None:
        """Return the last place at or below ``offset``; None if none is."""
        found = bisect_right(self.offsets, offset) - 1
        return (Offset(self.offsets[found]), self.positions[found]) if found >= 0 else None


class SegmentIndex:
    """Holds the first batch of every ``interval_bytes``, and each of the newest.

    An entry takes 24 bytes.
    """

    __slots__ = ("_interval_bytes", "_newer", "_newest", "_places", "_stamps_before")

    def __init__(self, interval_bytes: int, entries: IndexEntries | None = None) -> None:
        self._interval_bytes = interval_bytes
        self._places = _Places()
        self._stamps_before = array("q")
        self._newer, self._newest = _Places(), _Places()  # the second continues the first
        if entries is not None:
            self._places.positions.frombytes(entries.positions.tobytes())
            self._stamps_before.frombytes(entries.timestamps_us_before.tobytes())
            self._places.offsets.frombytes(entries.offsets.tobytes())

    def note(
        self, offset: Offset, position: int, timestamp_us_before: int, *, force: bool = False
    ) -> None:
        """Add an entry for the batch if the last entry is ``interval_bytes`` away, or if forced."""
        positions = self._places.positions
        if force or not positions or position - positions[-1] >= self._interval_bytes:
            self._stamps_before.append(timestamp_us_before)
            self._places.add(offset, position)
        newest = self._newest
        if len(newest.offsets) == _NEWEST_MAX:
            self._newer, self._newest = newest, (newest := _Places())
        newest.add(offset, position)

    def forget_newest(self) -> None:
        """Keep the entries only: the segment is sealed. Writer only; readers may go on."""
        self._newer, self._newest = _Places(), _Places()

    def place_of(self, offset: Offset) -> tuple[Offset, int] | None:
        """Return offset and position of the last known batch at or below ``offset``; None: none."""
        newest, newer = self._newest, self._newer  # in this order: the writer replaces both
        return newest.place_of(offset) or newer.place_of(offset) or self._places.place_of(offset)

    def place_before(self, timestamp_us: int) -> tuple[Offset, int] | None:
        """Return the last entry with only older records before it than ``timestamp_us``, if any."""
        offsets, positions = self._places.offsets, self._places.positions
        found = bisect_left(self._stamps_before, timestamp_us, 0, len(offsets)) - 1
        return (Offset(offsets[found]), positions[found]) if found >= 0 else None

    def entries(self) -> IndexEntries:
        """Return a copy for the index file. Writer only."""
        places = self._places
        return IndexEntries.of(places.offsets, places.positions, self._stamps_before)

    def __len__(self) -> int:
        return len(self._places.offsets)
