"""Recognise messages that were stored before by their message ids, within a window of time.

A message id has up to a kibibyte. The window keeps its digest of 128 bits instead, with the offset
of the record and the time, in flat memory: 32 bytes an entry, and 8 bytes a slot in an index that
has 1.4 to 3.2 slots an id. So an id takes 43 to 58 bytes, whatever its length; a few hundred
kilobytes of it may be unused.

Two different ids with one digest would be taken for one message, and the second record would be
acknowledged and not stored. The digest is BLAKE2b, so no publisher can construct such a pair, and
by accident a new id meets one of a million others with a probability of 3e-33: at a million ids a
second, once in 1e19 years. So the ids themselves are not compared.

The entries are in the order of arrival. So entries leave the window at the front, and their memory
is returned at once. Slots of entries that left stay in the index until it is rebuilt. New ids are
first in a dictionary, until they are moved, many at once, into the flat memory. The window is
derived from the log; nothing of it is on a disk.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, NewType, Protocol, cast

import numpy as np
import numpy.typing as npt

from broker.model.offsets import Offset

Digest = NewType("Digest", bytes)  # of a message id: 16 bytes

NO_BOUND: Final = 1 << 62  # bytes

_DIGEST_BYTES: Final = 16
_NUMBER_BYTES: Final = 8  # of an offset, and of a time
_ENTRY_BYTES: Final = _DIGEST_BYTES + 2 * _NUMBER_BYTES
_SLOT_BYTES: Final = 8  # a tag and the number of an entry
_HOME_AND_TAG: Final = Struct("=II8x")  # of a digest: the place of its slot, and the tag in it
_GONE_US: Final = -(1 << 63)  # marks an entry whose id came again: the newer entry counts
_NEW_MAX: Final = 1024  # ids in the dictionary; `expire` moves them, too
_CHUNK_BITS: Final = 11
_CHUNK_ENTRIES: Final = 1 << _CHUNK_BITS
_CHUNK_ENTRIES_MIN: Final = 64  # of a window with few ids
_FEW: Final = 100  # entries that are placed one by one
_SLOTS_MIN: Final = 128
_SLOTS_AN_ID: Final = 2.5  # in an index that was just built
_SLOTS_AN_ID_MAX: Final = 3.2  # with more, the index is rebuilt
_USED_MAX: Final = 0.7  # of the slots: with more, the index is rebuilt
_MAPPED_BYTES_MIN: Final = 64 * 1024  # from this size on, memory is mapped and unmapped by itself

_Memory = bytearray | mmap.mmap
_Numbers = npt.NDArray[np.uint32]


def digest_of(message_id: str) -> Digest:
    """Return what the window keeps of a message id."""
    return Digest(blake2b(message_id.encode(), digest_size=_DIGEST_BYTES).digest())


def digests_of(message_ids: Iterable[str | None]) -> list[Digest | None]:
    """Return the digest of each message id; None for a record without an id."""
    size = _DIGEST_BYTES  # as `digest_of`, without two calls for each
    digests = [
        None if one is None else blake2b(one.encode(), digest_size=size).digest()
        for one in message_ids
    ]
    return cast("list[Digest | None]", digests)


class Room(Protocol):
    """How much memory a window may have; all windows of a broker share one budget."""

    def resized(self, size_bytes: int) -> int:
        """Note the size of the window, and return the size that it may have now."""


class Unbounded:
    """Implements ``Room`` for a window without a limit."""

    def resized(self, size_bytes: int) -> int:  # noqa: ARG002 - every size is allowed
        """See ``Room.resized``."""
        return NO_BOUND


class _Chunk:
    """Neighbouring entries, in the order in which they came: digests, then offsets, then times."""

    __slots__ = ("capacity", "count", "digests", "live", "newest_us", "offsets", "stamps_us")

    def __init__(self, capacity: int) -> None:
        self.count = 0  # entries that came
        self.live = 0  # entries that did not leave and were not replaced
        self.newest_us = _GONE_US
        self._hold(capacity)

    def _hold(self, capacity: int) -> None:
        memory = memoryview(_take(capacity * _ENTRY_BYTES))
        self.capacity = capacity
        offsets, stamps = capacity * _DIGEST_BYTES, capacity * (_DIGEST_BYTES + _NUMBER_BYTES)
        self.digests = memory[:offsets]
        self.offsets = memory[offsets:stamps].cast("q")
        self.stamps_us = memory[stamps:].cast("q")

    def grow(self) -> None:
        """Take twice the room."""
        before = (self.digests, self.offsets, self.stamps_us)
        self._hold(2 * self.capacity)
        for old, new in zip(before, (self.digests, self.offsets, self.stamps_us), strict=True):
            new[: len(old)] = old

    def append(
        self, digests: bytes, offsets: npt.NDArray[np.int64], stamps_us: npt.NDArray[np.int64]
    ) -> None:
        """Add entries for which there is room."""
        at, end = self.count, self.count + len(offsets)
        self.digests[at * _DIGEST_BYTES : end * _DIGEST_BYTES] = digests
        np.frombuffer(self.offsets, dtype=np.int64)[at:end] = offsets
        np.frombuffer(self.stamps_us, dtype=np.int64)[at:end] = stamps_us
        self.count = end
        self.live += len(offsets)
        self.newest_us = max(self.newest_us, int(stamps_us.max()))

    def digest(self, at: int) -> bytes:
        """Return the digest of an entry."""
        return bytes(self.digests[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES])


class MessageIdWindow:
    """Message ids of the last ``window_us``, and the offsets of their records."""

    def __init__(self, *, window_us: int, ids_max: int, room: Room | None = None) -> None:
        """Remember at most ``ids_max`` ids, in as much memory as ``room`` allows.

        ``window_us`` 0 turns the window off.
        """
        self._window_us = window_us
        self._ids_max = ids_max
        self._room: Room = room or Unbounded()
        self.forgotten_early = 0  # ids that left within the window: too many, or no room
        self.size_bytes = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything and return the memory."""
        self._new: dict[Digest, Offset] = {}
        self._new_times: list[tuple[int, int]] = []  # (time, number of ids) of the new, in order
        self._new_since_us = NO_BOUND  # the earliest of these times
        self._live = 0
        self._chunks: list[_Chunk] = []
        self._base = 0  # the number of the first chunk's first entry
        self._head = 0  # the number of the oldest entry
        self._set_index(0)

    def __len__(self) -> int:
        """Number of ids in the window; an id that came again may be counted twice for a moment."""
        return self._live + len(self._new)

    # ------------------------------------------------------------------ looking up, adding

    def find(self, digest: Digest, now_us: int) -> Offset | None:
        """Return the offset of the record with this id within the window, or None."""
        return self.find_all([digest], now_us).get(0)

    def find_all(self, digests: Sequence[Digest | None], now_us: int) -> dict[int, Offset]:
        """Return the offsets of the records with these ids within the window, by place."""
        found: dict[int, Offset] = {}
        horizon_us = now_us - self._window_us
        if self._new_since_us <= horizon_us:
            self._settle()
        new = self._new  # all of them are in the window
        tags, slots, parts = self._tags, self._slots, _HOME_AND_TAG.unpack
        for row, digest in enumerate(digests):
            if digest is None:
                continue
            if digest in new:
                found[row] = new[digest]
                continue
            if not slots:
                continue
            home, tag = parts(digest)
            slot = home % slots
            tag |= 1
            while there := tags[slot]:
                if there == tag:
                    place = self._entry(slot, digest)
                    if place is not None:
                        chunk, at = place
                        if chunk.stamps_us[at] > horizon_us:
                            found[row] = Offset(chunk.offsets[at])
                        break
                slot += 1
                if slot == slots:
                    slot = 0
        return found

    def _entry(self, slot: int, digest: bytes) -> tuple[_Chunk, int] | None:
        """Return the entry of a slot if it is of this digest, and has not left."""
        number = self._numbers[slot]
        if number < self._head:
            return None
        at = number - self._base
        chunk, at = self._chunks[at >> _CHUNK_BITS], at % _CHUNK_ENTRIES
        return (chunk, at) if chunk.digest(at) == digest else None

    def add(self, digest: Digest, offset: Offset, now_us: int) -> None:
        """Remember an id whose record was stored at ``offset``."""
        self.add_all({digest: offset}, now_us)

    def add_all(self, ids: Mapping[Digest, Offset], now_us: int) -> None:
        """Remember ids whose records were stored at these offsets, in their order."""
        if not self._window_us:
            return
        if not self._new.keys().isdisjoint(ids):
            self._settle()  # an id that comes again is the newest
        self._new.update(ids)
        self._new_times.append((now_us, len(ids)))
        self._new_since_us = min(self._new_since_us, now_us)
        if len(self._new) >= _NEW_MAX:
            self._settle()
            if self.size_bytes > self._allowed:
                self._fit(now_us)

    # ------------------------------------------------------------------ from new to settled

    def _settle(self) -> None:
        """Move the new ids into the flat memory, many at once."""
        if not self._new:
            return
        digests, count = b"".join(self._new), len(self._new)
        offsets = np.fromiter(self._new.values(), np.int64, count)
        times = np.array(self._new_times, dtype=np.int64)
        stamps = np.repeat(times[:, 0], times[:, 1])
        self._new, self._new_times, self._new_since_us = {}, [], NO_BOUND
        done = 0
        if self._used + count > self._used_max:
            self._build_index(count)
        own = np.arange(self._end, self._end + count, dtype=np.uint32)
        while done < count:
            chunk = self._last_chunk()
            end = min(count, done + chunk.capacity - chunk.count)
            part = digests[done * _DIGEST_BYTES : end * _DIGEST_BYTES]
            chunk.append(part, offsets[done:end], stamps[done:end])
            done = end
        self._live += count
        self._place(np.frombuffer(digests, dtype=np.uint32).reshape(-1, 4), own)

    @property
    def _end(self) -> int:
        """The number of the next entry."""
        full = max(0, len(self._chunks) - 1) << _CHUNK_BITS
        return self._base + full + (self._chunks[-1].count if self._chunks else 0)

    def _last_chunk(self) -> _Chunk:
        """Return a chunk that has room for an entry."""
        if not self._chunks or self._chunks[-1].count == _CHUNK_ENTRIES:
            self._chunks.append(_Chunk(_CHUNK_ENTRIES if self._chunks else _CHUNK_ENTRIES_MIN))
            self._resized()
        chunk = self._chunks[-1]
        if chunk.count == chunk.capacity:
            chunk.grow()
            self._resized()
        return chunk

    def _place(self, digests: _Numbers, own: _Numbers) -> None:
        """Give each entry a slot: the first from its home on that is empty or has the same id.

        If two entries want one empty slot, one gets it and the other tries the next slot.
        """
        tags = np.frombuffer(self._tags, dtype=np.uint32)
        numbers = np.frombuffer(self._numbers, dtype=np.uint32)
        slots, one = np.uint32(self._slots), np.uint32(1)
        places, own_tags = digests[:, 0] % slots, digests[:, 1] | one
        while len(own) > _FEW:
            there = tags[places]
            empty = there == 0
            numbers[places[empty]] = own[empty]
            placed = empty & (numbers[places] == own)
            tags[places[placed]] = own_tags[placed]
            self._used += int(np.count_nonzero(placed))
            for row in np.flatnonzero(there == own_tags).tolist():
                if self._forget(int(places[row]), digests[row].tobytes()):
                    numbers[places[row]] = own[row]
                    placed[row] = True
            left = ~placed
            places = (places[left] + one) % slots
            own, own_tags, digests = own[left], own_tags[left], digests[left]
        for row, number in enumerate(own.tolist()):
            self._place_one(int(places[row]), int(own_tags[row]), digests[row].tobytes(), number)

    def _place_one(self, slot: int, tag: int, digest: bytes, number: int) -> None:
        """Give one entry a slot, as :meth:`_place` does, beginning at ``slot``."""
        tags, slots = self._tags, self._slots
        while there := tags[slot]:
            if there == tag and self._forget(slot, digest):
                break
            slot += 1
            if slot == slots:
                slot = 0
        else:
            tags[slot] = tag
            self._used += 1
        self._numbers[slot] = number

    def _forget(self, slot: int, digest: bytes) -> bool:
        """Mark the slot's entry as replaced if it has this digest; return whether it has."""
        place = self._entry(slot, digest)
        if place is None:
            return False
        chunk, at = place
        chunk.stamps_us[at] = _GONE_US
        chunk.live -= 1
        self._live -= 1
        return True

    # ------------------------------------------------------------------ leaving

    def oldest_offset(self) -> Offset | None:
        """Return the offset of the id that leaves next; None if there is no id."""
        self._settle()
        for chunk in self._chunks:
            first = max(0, self._head - self._base) if chunk is self._chunks[0] else 0
            for at in range(first, chunk.count):
                if chunk.stamps_us[at] != _GONE_US:
                    return Offset(chunk.offsets[at])
        return None

    def expire(self, now_us: int) -> None:
        """Forget ids that are older than the window, and the oldest ids if memory is short."""
        self._settle()
        self._expire(now_us)
        self._allowed = self._room.resized(self.size_bytes)
        if self.size_bytes > self._allowed:
            self._fit(now_us)

    def _expire(self, now_us: int) -> None:
        horizon_us = now_us - self._window_us
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.newest_us > horizon_us and not self._leave(chunk, horizon_us):
                break
            self._drop_chunk()

    def _leave(self, chunk: _Chunk, horizon_us: int) -> bool:
        """Forget the chunk's oldest ids that are expired or too many; tell whether none is left."""
        for at in range(self._head - self._base, chunk.count):
            stamp_us = chunk.stamps_us[at]
            if stamp_us != _GONE_US:
                if stamp_us > horizon_us:
                    if self._live <= self._ids_max:
                        self._head = self._base + at
                        return False
                    self.forgotten_early += 1
                self._live -= 1
                chunk.live -= 1
        return True

    def _drop_chunk(self) -> None:
        """Forget the oldest chunk, and return its memory."""
        self._live -= self._chunks.pop(0).live
        self._base += _CHUNK_ENTRIES
        self._head = self._base
        if not self._chunks:
            self.clear()
        elif self._slots > max(_SLOTS_MIN, self._live * _SLOTS_AN_ID_MAX):
            self._build_index()
        else:
            self._resized()

    def _fit(self, now_us: int) -> None:
        """Forget the oldest ids until the window takes no more than it may."""
        self._expire(now_us)
        while self._chunks and self.size_bytes > self._allowed:
            self.forgotten_early += self._chunks[0].live
            self._drop_chunk()

    # ------------------------------------------------------------------ the index, the size

    def _build_index(self, coming: int = 0) -> None:
        """Rebuild the index without the slots of entries that left; entries get new numbers.

        There will be room for ``coming`` entries.
        """
        self._head -= self._base
        self._base = 0
        self._set_index(0)  # the old one's memory is free before the new one takes some
        self._set_index(max(_SLOTS_MIN, int((self._live + coming) * _SLOTS_AN_ID)))
        for number, chunk in enumerate(self._chunks):
            digests = np.frombuffer(chunk.digests, dtype=np.uint32).reshape(-1, 4)[: chunk.count]
            own = np.arange(chunk.count, dtype=np.uint32) + np.uint32(number << _CHUNK_BITS)
            stamps = np.frombuffer(chunk.stamps_us, dtype=np.int64)[: chunk.count]
            live = (stamps != _GONE_US) & (own >= self._head)
            self._place(digests[live], own[live])

    def _set_index(self, slots: int) -> None:
        self._slots = slots
        self._tags = memoryview(_take(slots * _SLOT_BYTES // 2)).cast("I")  # 0: the slot is empty
        self._numbers = memoryview(_take(slots * _SLOT_BYTES // 2)).cast("I")
        self._used = 0  # slots that are not empty
        self._used_max = int(slots * _USED_MAX)
        self._resized()

    def _resized(self) -> None:
        """Tell ``room`` the size of the window; note the size that the window may have."""
        entries = 0
        if self._chunks:
            entries = (len(self._chunks) - 1) * _CHUNK_ENTRIES + self._chunks[-1].capacity
        self.size_bytes = entries * _ENTRY_BYTES + self._slots * _SLOT_BYTES
        self._allowed = self._room.resized(self.size_bytes)


def _take(size_bytes: int) -> _Memory:
    """Return zeroed memory. A large piece is a mapping of its own, which the system gets back."""
    if size_bytes < _MAPPED_BYTES_MIN:
        return bytearray(size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class IdLookup(Protocol):
    """A table in which message ids are looked up."""

    def find_all(self, digests: Sequence[Digest | None], now_us: int) -> dict[int, Offset]:
        """Return the offsets of the records with these ids, by place."""


class IdPlan:
    """The message ids of a group of batches, added to the window once the group is written."""

    def __init__(self, window: MessageIdWindow) -> None:
        """Plan on top of ``window``."""
        self._window = window
        self._planned: dict[Digest, Offset] = {}

    def find_all(self, digests: Sequence[Digest | None], now_us: int) -> dict[int, Offset]:
        """See :meth:`MessageIdWindow.find_all`."""
        found = self._window.find_all(digests, now_us)
        if self._planned:
            for row, digest in enumerate(digests):
                if digest in self._planned:
                    found[row] = self._planned[digest]
        return found

    def add_all(self, ids: Iterable[tuple[Digest | None, Offset]]) -> None:
        """Plan ids; records without one are left out."""
        self._planned.update(ids)  # type: ignore[arg-type]  # None is taken out again
        self._planned.pop(None, None)  # type: ignore[call-overload]

    def apply(self, now_us: int) -> None:
        """Put all planned ids into the window: the group is in the log."""
        if self._planned:
            self._window.add_all(self._planned, now_us)


@dataclass(slots=True)  # one for each publish: a frozen one takes three times as long to make
class Repeats:
    """Rows of a batch whose message id was stored before, or occurs earlier in the batch.

    ``stored`` maps a row to the offset of the stored record. ``inside`` maps a row to the earlier
    row.
    """

    stored: dict[int, Offset]
    inside: dict[int, int]

    def __bool__(self) -> bool:
        return bool(self.stored or self.inside)


def find_repeats(window: IdLookup, digests: Sequence[Digest | None], now_us: int) -> Repeats:
    """Compare a batch's ids with the window and with each other."""
    stored = window.find_all(digests, now_us)
    inside: dict[int, int] = {}
    if not stored and len(set(digests)) == len(digests):
        return Repeats(stored, inside)
    first_rows: dict[Digest, int] = {}
    for row, digest in enumerate(digests):
        if digest is not None and row not in stored:
            first_row = first_rows.setdefault(digest, row)
            if first_row != row:
                inside[row] = first_row
    return Repeats(stored, inside)
