"""A bounded inbox of one thread: news replaces older news of the same kind from the same sender.

Whoever reads it late meets the newest of each, not a backlog. What would make it longer than it may
be is dropped and counted: only messages that are sent again by themselves may be offered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class Inbox:
    """Any thread puts, one takes."""

    def __init__(self, *, waiting_max: int) -> None:
        """Hold at most ``waiting_max`` offers; what is put is bounded by whoever puts it."""
        self._waiting_max = waiting_max
        self._items: OrderedDict[Hashable, Any] = OrderedDict()
        self._changed = threading.Condition()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: Hashable, item: Any) -> None:
        """Leave an item in the place of an older one of this key; it is never dropped."""
        with self._changed:
            self._items[key] = item
            self._changed.notify()

    def offer(self, key: Hashable, item: Any) -> None:
        """Leave an item, or drop it when there are too many."""
        with self._changed:
            if key not in self._items and len(self._items) >= self._waiting_max:
                self.dropped += 1
                return
            self._items[key] = item
            self._changed.notify()

    def get(self, timeout_s: float) -> tuple[Hashable, Any] | None:
        """Take the item that waits longest; None when nothing came."""
        with self._changed:
            if not self._items:
                self._changed.wait(timeout_s)
            return self._items.popitem(last=False) if self._items else None
