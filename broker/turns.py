"""How long a thread runs Python before another one gets its turn: longer while many wait.

A short turn lets a commit interrupt a parser soon. But Python's waiting threads wake once in a turn
to ask for theirs. gRPC makes a thread for each call that clients send, thousands if they like:
these would use up all processors by waking, and none would be left for the thread that runs.

How many threads wait cannot be asked. It shows in how many calls have begun and not ended, and in
how late a thread is that wakes at fixed times. Among thousands that thread may not get a turn for
minutes, so each call looks as well.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TURN_S: Final = 0.0005  # decision 0011: between brokers, twice the throughput of Python's 5 ms
_TURN_S_MAX: Final = 0.064  # on an overloaded machine a lease has to be renewed in time, too
_CROWD_TURN_S_MAX: Final = 1.0  # 7,000 threads that wake every 64 ms take 1.6 processors
_LENGTHENED: Final = 8
_LOOK_INTERVAL_S: Final = 0.05
_LATE_S: Final = 0.02  # many threads wait, or the machine is overloaded
_LATE_TURNS: Final = 4  # a few others may have had their turns, however long these are
_CALLS_MAX: Final = 32  # more that have begun are a crowd: many others wait for their first turn


class TurnPace:
    """Decides the length of a turn by what it looks like at a moment. Any thread."""

    def __init__(self, now_s: float) -> None:
        """Begin with the shortest turn."""
        self.turn_s = _TURN_S
        self._due_s = now_s + _LOOK_INTERVAL_S
        self._calls_count = 0
        self._lock = threading.Lock()

    def begin_call(self) -> None:
        """Count a brief call: one that does not wait for its client."""
        with self._lock:
            self._calls_count += 1

    def end_call(self) -> None:
        """Count a brief call no longer."""
        with self._lock:
            self._calls_count -= 1

    def wants_look(self, now_s: float) -> bool:
        """Tell whether it cannot wait until the next look, which may be late."""
        return self._is_late(now_s) or (self._is_crowded and self.turn_s <= _TURN_S)

    def look(self, now_s: float) -> float:
        """Return the turn until the next look, which is due after the interval."""
        if self._is_crowded:
            self.turn_s = min(_CROWD_TURN_S_MAX, self.turn_s * _LENGTHENED)
        elif self._is_late(now_s):
            self.turn_s = min(_TURN_S_MAX, self.turn_s * _LENGTHENED)
        else:
            self.turn_s = max(_TURN_S, self.turn_s / 2)
        self._due_s = now_s + _LOOK_INTERVAL_S
        return self.turn_s

    @property
    def _is_crowded(self) -> bool:
        return self._calls_count > _CALLS_MAX

    def _is_late(self, now_s: float) -> bool:
        return now_s - self._due_s > max(_LATE_S, _LATE_TURNS * self.turn_s)


_pace: TurnPace | None = None  # of the process, as its turns are


@contextmanager
def paced_turns() -> Iterator[None]:
    """Adapt the turns of this process to its load until the end of the block."""
    global _pace  # noqa: PLW0603 - Python has one length of a turn for all threads
    if _pace is not None:  # another broker of this process does
        yield
        return
    before_s, over = sys.getswitchinterval(), threading.Event()
    pace = _pace = TurnPace(time.monotonic())
    sys.setswitchinterval(pace.turn_s)

    def run() -> None:
        while not over.wait(_LOOK_INTERVAL_S):
            sys.setswitchinterval(pace.look(time.monotonic()))

    thread = threading.Thread(target=run, name="turns", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _pace = None
        over.set()
        thread.join()
        sys.setswitchinterval(before_s)


@contextmanager
def brief_call() -> Iterator[None]:
    """Count a call until the end of the block, and look whether turns have to be longer for it.

    For calls that do not wait for their client; also a decorator of them.
    """
    pace = _pace
    if pace is None:
        yield
        return
    pace.begin_call()
    try:
        if pace.wants_look(now_s := time.monotonic()):
            sys.setswitchinterval(pace.look(now_s))
        yield
    finally:
        pace.end_call()
