"""One costly answer for all who ask at the same time, and a rest after it.

A scrape of a broker with a thousand partitions takes half a second of CPU and of Python's lock,
whoever asks for it and however often. So callers who wait at the same time get the same bytes, and
a rest that is nine times as long as the making keeps scrapes below a tenth of a processor. Nobody
gets an answer whose making began before the question: a scrape shows what was there when it asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_REST_TIMES: Final = 9  # as long as the making took of the processor, so that it is a tenth of it
_REST_S_MAX: Final = 2.0  # a scraper waits for some seconds only


class SharedAnswer:
    """The answers of one function. Any thread."""

    def __init__(
        self,
        make: Callable[[], bytes],
        *,
        now_s: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """Answer with what ``make`` returns; it is never called by two threads at once.

        ``used_s`` is the CPU time that the calling thread has used: what waits for a busy
        processor makes no rest longer.
        """
        self._make = make
        self._now_s = now_s
        self._used_s = used_s
        self._changed = threading.Condition()
        self._making = False
        self._begun = 0  # answers whose making has begun
        self._made = 0  # number of the newest answer that is there
        self._answer = b""
        self._rested_s = 0.0  # no answer is begun before
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many callers wait for an answer or for its turn."""
        return self._waiting

    def rest_s(self) -> float:
        """Return the time until the next answer may begin."""
        return max(0.0, self._rested_s - self._now_s())

    def get(self) -> bytes:
        """Return an answer that was begun after this call; waits for its turn.

        Raises whatever ``make`` raises, to the caller on whose thread it ran; the others try
        themselves.
        """
        with self._changed:
            wanted = self._begun + 1
            while self._making or self.rest_s() > 0:
                self._wait(None if self._making else self.rest_s())
                if self._made >= wanted:
                    return self._answer
            self._making = True
            self._begun += 1
            number = self._begun
        return self._made_now(number)

    def _wait(self, timeout_s: float | None) -> None:
        self._waiting += 1
        try:
            self._changed.wait(timeout_s)
        finally:
            self._waiting -= 1

    def _made_now(self, number: int) -> bytes:
        before_s = self._used_s()
        answer = None
        try:
            answer = self._make()
        finally:
            with self._changed:
                if answer is not None:
                    self._answer, self._made = answer, number
                rest_s = min(_REST_S_MAX, _REST_TIMES * (self._used_s() - before_s))
                self._rested_s = self._now_s() + rest_s
                self._making = False
                self._changed.notify_all()
        return answer
