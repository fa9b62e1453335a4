"""The memory that message ids may take on this broker, shared by all partitions that it leads."""

from __future__ import annotations

import threading
from typing import Final

from broker.core.id_budget import fair_level
from broker.core.message_ids import NO_BOUND, Room

BYTES_MAX: Final = 64 * 1024 * 1024  # the default: about 1.2 million ids
SLICE_BYTES: Final = 128 * 1024  # the default: 600 small batches, which take 25 ms to read
_GIVE_WAY: Final = 7 / 8  # of the budget: above it the largest windows give way


class IdBudget:
    """Any thread; each partition's turns use the partition's own :class:`Room`.

    A window is told of its new size when it asks: when it grows, and four times a second. So that
    all of them stay within the budget meanwhile, the largest give way before it is used up. If that
    is too late, who grows gives way.
    """

    def __init__(self, bytes_max: int = BYTES_MAX, *, slice_bytes: int = SLICE_BYTES) -> None:
        """Share ``bytes_max`` bytes. A new leader reads ``slice_bytes`` of its log in a turn."""
        self.bytes_max = bytes_max
        self.slice_bytes = slice_bytes
        self._give_way = int(bytes_max * _GIVE_WAY)
        self._lock = threading.Lock()
        self._sizes: dict[_Share, int] = {}
        self._total = 0
        self._level = NO_BOUND

    @property
    def size_bytes(self) -> int:
        """Bytes that all windows take."""
        return self._total

    def share(self) -> Room:
        """Return the room of one more window, which is empty."""
        return _Share(self)

    def resized(self, share: _Share, size_bytes: int) -> int:
        """Note the size of a window, and return the size that it may have."""
        with self._lock:
            before = self._sizes.get(share, 0)
            if size_bytes != before:
                self._note(share, size_bytes, grown=size_bytes > before)
            excess = self._total - self.bytes_max
            return self._level if excess <= 0 else min(self._level, max(0, size_bytes - excess))

    def _note(self, share: _Share, size_bytes: int, *, grown: bool) -> None:
        self._total += size_bytes - self._sizes.get(share, 0)
        if size_bytes:
            self._sizes[share] = size_bytes
        else:
            self._sizes.pop(share, None)
        if self._total <= self._give_way:
            self._level = NO_BOUND
        elif grown:
            self._level = fair_level(self._sizes.values(), self._give_way)


class _Share:
    """Implements ``Room`` for one partition."""

    def __init__(self, budget: IdBudget) -> None:
        self._budget = budget

    def resized(self, size_bytes: int) -> int:
        """See ``Room.resized``."""
        return self._budget.resized(self, size_bytes)
