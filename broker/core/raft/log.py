"""The log in memory: the entries after a base; a snapshot covers the base and all before it."""

from __future__ import annotations

from collections.abc import Sequence

from broker.model.raft import Entry, LogImage


class RaftLog:
    """The entries ``[base_index + 1, last_index + 1)``, without holes; terms never decrease."""

    __slots__ = ("_entries", "base_index", "base_term")

    def __init__(self, image: LogImage) -> None:
        self.base_index = image.base_index
        self.base_term = image.base_term
        self._entries: list[Entry] = list(image.entries)

    @property
    def last_index(self) -> int:
        """Index of the newest entry, or of the base."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the newest entry, or of the base."""
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """Return the term at ``index``; None above the end and below the base."""
        at = index - self.base_index - 1
        if 0 <= at < len(self._entries):
            return self._entries[at].term
        return self.base_term if at == -1 else None

    def entry_at(self, index: int) -> Entry:
        """Return the entry at ``index``, which the log has."""
        assert self.base_index < index <= self.last_index, f"{index} is not in the log"
        return self._entries[index - self.base_index - 1]

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow the last one."""
        assert entries[0].index == self.last_index + 1, "an append that leaves a hole"
        assert entries[0].term >= self.last_term, "an append of an older term"
        self._entries.extend(entries)

    def truncate(self, index: int) -> None:
        """Drop the entries from ``index`` on."""
        assert index > self.base_index, "a snapshot cannot be cut"
        del self._entries[index - self.base_index - 1 :]

    def compact(self, index: int) -> None:
        """Make ``index`` the new base; the log must have it."""
        term = self.term_at(index)
        assert term is not None, f"{index} is not in the log"
        del self._entries[: index - self.base_index]
        self.base_index = index
        self.base_term = term

    def reset(self, index: int, term: int) -> None:
        """Drop all entries: a snapshot replaces them."""
        self._entries.clear()
        self.base_index = index
        self.base_term = term

    def slice(self, start: int, end: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries of ``[start, end)`` that fit into ``bytes_max``, at least one."""
        first = start - self.base_index - 1
        assert first >= 0, f"{start} is compacted"
        found = self._entries[first : end - self.base_index - 1]
        weight = 0
        for count, entry in enumerate(found):
            weight += entry.weight
            if weight > bytes_max and count:
                return tuple(found[:count])
        return tuple(found)

    def weight(self, start: int) -> int:
        """Return the bytes of the entries from ``start`` on."""
        return sum(entry.weight for entry in self._entries[max(0, start - self.base_index - 1) :])

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """Return (index, term) of the last entry at or below both ``index`` and ``term``.

        Two logs that differ cannot be equal above this entry, because terms never decrease along a
        log. If there is no such entry above the base, the base is returned.
        """
        index = min(index, self.last_index)
        while index > self.base_index:
            found = self.term_at(index)
            assert found is not None
            if found <= term:
                return index, found
            index -= 1
        return self.base_index, self.base_term

    def image(self) -> LogImage:
        """Return the whole log as a value."""
        return LogImage(self.base_index, self.base_term, tuple(self._entries))
