"""Bounded mailboxes of pumps: any thread puts, the pump takes in its turns.

``Inbox``: a message replaces an older message of the same kind from the same sender. So a slow
reader gets the newest of each, not a backlog. A message that does not fit is dropped and counted,
so only messages that their senders repeat may be offered.

``Mailbox``: every message, in the order of arrival. A full mailbox refuses, and ``put`` says so.
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
        """Hold at most ``waiting_max`` offered items; callers of ``put`` bound their own items.

        ``wake`` is called after each accepted item.
        """
        self._waiting_max = waiting_max
        self._wake = wake
        self._items: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: Hashable, item: Any) -> None:
        """Add an item, or replace the older item of this key; it is never dropped."""
        with self._lock:
            self._items[key] = item
        self._wake()

    def offer(self, key: Hashable, item: Any) -> None:
        """Add an item, or replace the older item of this key; drop it if too many wait."""
        with self._lock:
            if key not in self._items and len(self._items) >= self._waiting_max:
                self.dropped += 1
                return
            self._items[key] = item
        self._wake()

    def take(self) -> tuple[Hashable, Any] | None:
        """Take the oldest item; None if there is none."""
        with self._lock:
            return self._items.popitem(last=False) if self._items else None


class Mailbox(Generic[_T]):
    """Any thread puts, one takes, one closes. Nothing here blocks."""

    def __init__(self, *, waiting_max: int, wake: Callable[[], None]) -> None:
        """Hold at most ``waiting_max`` items; ``wake`` is called after each accepted item."""
        self._waiting_max = waiting_max
        self._wake = wake
        self._items: deque[_T] = deque()
        self._lock = threading.Lock()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _T) -> bool:
        """Add an item; False: the mailbox is full or closed, and the item is not in it."""
        with self._lock:
            if self.is_closed or len(self._items) >= self._waiting_max:
                return False
            self._items.append(item)
        self._wake()
        return True

    def take(self, count_max: int) -> list[_T]:
        """Take the oldest items, at most ``count_max``."""
        with self._lock:
            return [self._items.popleft() for _ in range(min(count_max, len(self._items)))]

    def close(self) -> list[_T]:
        """Refuse further items; return the items that no turn will take."""
        with self._lock:
            self.is_closed = True
            left = [*self._items]
            self._items.clear()
            return left
