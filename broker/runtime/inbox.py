"""A bounded inbox of one pump: news replaces older news of the same kind from the same sender.

Whoever reads it late meets the newest of each, not a backlog. What would make it longer than it may
be is dropped and counted: only messages that are sent again by themselves may be offered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Inbox:
    """Any thread puts, one takes. Nothing here blocks."""

    def __init__(self, *, waiting_max: int, wake: Callable[[], None] = lambda: None) -> None:
        """Hold at most ``waiting_max`` offers; what is put is bounded by whoever puts it.

        ``wake`` is called after each that was taken in.
        """
        self._waiting_max = waiting_max
        self._wake = wake
        self._items: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: Hashable, item: Any) -> None:
        """Leave an item in the place of an older one of this key; it is never dropped."""
        with self._lock:
            self._items[key] = item
        self._wake()

    def offer(self, key: Hashable, item: Any) -> None:
        """Leave an item, or drop it when there are too many."""
        with self._lock:
            if key not in self._items and len(self._items) >= self._waiting_max:
                self.dropped += 1
                return
            self._items[key] = item
        self._wake()

    def take(self) -> tuple[Hashable, Any] | None:
        """Take the item that waits longest; None when there is none."""
        with self._lock:
            return self._items.popitem(last=False) if self._items else None
