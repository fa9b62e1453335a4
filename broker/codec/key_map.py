"""The offset of each key's last record, by the key's hash, in bounded memory.

A table with open addresses, as NumPy arrays: adding and finding work on many keys at once. A map
knows one part of the keys of several, chosen by bits of the hash. If the keys of its part do not
fit, the caller reads the log in more passes, each for a smaller part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from broker.codec.key_hash import Hashes

_SLOT_BYTES: Final = 24
_SLOTS_MIN: Final = 1024
_LOAD: Final = 2  # slots for each key, at least
_PART_SHIFT: Final = np.uint64(40)  # bits of the second lane; the first lane chooses the slot

Offsets = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
_T = TypeVar("_T")


class KeyMapFullError(Exception):
    """The keys of this part do not fit into the memory that the map may take."""


class KeyMap:
    """Grows as needed, up to ``bytes_max``. Single thread."""

    def __init__(self, *, bytes_max: int, part: int = 0, parts: int = 1) -> None:
        """Know the keys of part ``part`` of ``parts``, a power of two."""
        assert parts & (parts - 1) == 0, "the number of parts is a power of two"
        self._slots_max = max(_SLOTS_MIN, bytes_max // _SLOT_BYTES)
        self._part, self._mask = np.uint64(part), np.uint64(parts - 1)
        self.count = 0
        self._allocate(_SLOTS_MIN)

    def _allocate(self, slots: int) -> None:
        self._first = np.zeros(slots, np.uint64)
        self._second = np.zeros(slots, np.uint64)
        self._last = np.full(slots, -1, np.int64)  # -1: an empty slot
        self._claims = np.zeros(slots, np.int64)
        self._slot_mask = np.uint64(slots - 1)

    def is_here(self, hashes: tuple[Hashes, Hashes]) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it is in this map's part."""
        here: npt.NDArray[np.bool_] = ((hashes[1] >> _PART_SHIFT) & self._mask) == self._part
        return here

    def add(self, hashes: tuple[Hashes, Hashes], offsets: Offsets) -> None:
        """Note records of this part, in any order; the highest offset of each key stays.

        Raises:
            KeyMapFullError: there is no room; the map is incomplete and must not be used any more.
        """
        while (self.count + len(offsets)) * _LOAD > len(self._last):
            if len(self._last) * 2 > self._slots_max:
                distinct = len(np.unique(hashes[0]))  # an upper bound of the new keys
                if (self.count + distinct) * _LOAD <= len(self._last):
                    break
                raise KeyMapFullError
            self._grow()
        self._add(hashes, offsets)

    def _grow(self) -> None:
        filled = np.flatnonzero(self._last >= 0)
        kept = self._first[filled], self._second[filled]
        last = self._last[filled]
        self._allocate(2 * len(self._last))
        self.count = 0
        self._add(kept, last)

    def _add(self, hashes: tuple[Hashes, Hashes], offsets: Offsets) -> None:
        first, second = hashes
        left = np.arange(len(offsets))
        slots = (first & self._slot_mask).astype(np.int64)
        while len(left):
            at = slots[left]
            empty = left[self._last[at] < 0]
            if len(empty):
                wanted = slots[empty]
                self._claims[wanted] = empty  # of several rows that want a slot, one gets it
                winners = empty[self._claims[wanted] == empty]
                taken = slots[winners]
                self._first[taken], self._second[taken] = first[winners], second[winners]
                self._last[taken] = 0
                self.count += len(winners)
            same = (self._first[at] == first[left]) & (self._second[at] == second[left])
            newer = same & (self._last[at] < offsets[left])
            self._raise(at[newer], offsets[left[newer]])
            left = left[~same]
            slots[left] = (slots[left] + 1) & np.int64(self._slot_mask)

    def _raise(self, slots: Rows, offsets: Offsets) -> None:
        """Give each slot the highest of its offsets; NumPy leaves open which one is set last."""
        while len(slots):
            self._last[slots] = offsets
            lower = self._last[slots] < offsets
            slots, offsets = slots[lower], offsets[lower]

    def last_of(self, hashes: tuple[Hashes, Hashes]) -> Offsets:
        """Return the highest offset of each key; -1 if no record of it was added."""
        first, second = hashes
        found = np.full(len(first), -1, np.int64)
        left = np.arange(len(first))
        slots = (first & self._slot_mask).astype(np.int64)
        while len(left):
            at = slots[left]
            last = self._last[at]
            same = (self._first[at] == first[left]) & (self._second[at] == second[left])
            same &= last >= 0
            found[left[same]] = last[same]
            left = left[~same & (last >= 0)]
            slots[left] = (slots[left] + 1) & np.int64(self._slot_mask)
        return found


def in_parts(
    bytes_max: int,
    note: Callable[[KeyMap], Iterator[_T]],
    use: Callable[[KeyMap], Iterator[_T]],
    *,
    split: Callable[[], None] = lambda: None,
) -> Iterator[_T]:
    """Note all keys in a map, then use it; in as many parts as it takes, each in its own map.

    Yields the steps of both. ``split`` is called when the keys of a part did not fit.
    """
    left = [(0, 1)]  # parts of the keys, and of how many
    while left:
        part, parts = left.pop()
        known = KeyMap(bytes_max=bytes_max, part=part, parts=parts)
        try:
            yield from note(known)
        except KeyMapFullError:
            left += [(part + parts, 2 * parts), (part, 2 * parts)]
            split()
            continue
        yield from use(known)
