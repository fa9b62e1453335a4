"""Few reads decode at a time, in the order in which they asked.

Decoding many small batches is Python, and one thread of a process runs Python at a time. Fifty
reads that decode at once are not faster than one after the other, but each publish would wait
behind all of them, and each read would hold its decoded batches meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets ``count`` threads at a time do something; the others wait, first come first served.

    A semaphore of Python lets a thread that comes again pass those that wait.
    """

    def __init__(self, count: int) -> None:
        self._free_count = count
        self._waiting: deque[threading.Lock] = deque()  # each is held until it is that one's turn
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for a turn, which lasts until the end of the block. Any thread."""
        mine = self._queue_up()
        if mine is not None:
            mine.acquire()
        try:
            yield
        finally:
            self._pass_on()

    def _queue_up(self) -> threading.Lock | None:
        """Take a free turn, or return what opens when it is this thread's turn."""
        with self._lock:
            if self._free_count:
                self._free_count -= 1
                return None
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
            return mine

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free_count += 1
