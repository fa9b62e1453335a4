"""Bounded mailboxes of pumps: any thread puts, the pump takes in its turns.

``Inbox``: news replaces older news of the same kind from the same sender. Whoever reads it late
meets the newest of each, not a backlog. What would make it longer than it may be is dropped and
counted: only messages that are sent again by themselves may be offered.

``Mailbox``: everything, in the order of arrival; whoever finds it full hears of that.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


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


class Mailbox(Generic[_T]):
    """Any thread puts, one takes, one closes. Nothing here blocks."""

    def __init__(self, *, waiting_max: int, wake: Callable[[], None]) -> None:
        """Hold at most ``waiting_max`` items; ``wake`` is called after each that was taken in."""
        self._waiting_max = waiting_max
        self._wake = wake
        self._items: deque[_T] = deque()
        self._lock = threading.Lock()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _T) -> bool:
        """Leave an item; False: there are too many, or nobody will take it any more."""
        with self._lock:
            if self.is_closed or len(self._items) >= self._waiting_max:
                return False
            self._items.append(item)
        self._wake()
        return True

    def take(self, count_max: int) -> list[_T]:
        """Take the items that wait longest, at most so many."""
        with self._lock:
            return [self._items.popleft() for _ in range(min(count_max, len(self._items)))]

    def close(self) -> list[_T]:
        """Take in nothing any more; return what nobody will take in a turn."""
        with self._lock:
            self.is_closed = True
            left = [*self._items]
            self._items.clear()
            return left
