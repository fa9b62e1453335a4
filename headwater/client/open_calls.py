"""No thread of a program is inside Arrow's Flight when the interpreter goes.

A thread that comes back from there after the interpreter was finalized, or a buffer in Python's
memory that gRPC releases only then, ends the process by a signal: a segmentation fault, or
"terminate called without an active exception". So at the program's exit the calls that it left
open are ended while the interpreter still runs, the threads that are inside are waited for, and no
thread goes in again.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol
from weakref import WeakSet

from broker.errors import NoAnswerError

_EXIT_MS: Final = 2_000  # a broker answers within milliseconds; one that does not delays no exit
_LOOK_S: Final = 0.001


class OpenCall(Protocol):
    """A call with a thread of its own."""

    def leave(self) -> None:
        """Begin to end the call; does not block."""

    def join(self, timeout_ms: int) -> bool:
        """Wait for the call's thread; tell whether it has ended."""


class OpenCalls:
    """The open calls of a process, and its threads that are inside Flight."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: WeakSet[OpenCall] = WeakSet()
        self._inside: set[threading.Thread] = set()
        self._ends: threading.Thread | None = None  # the thread that runs the exit handlers
        self._over = False

    def note(self, call: OpenCall) -> None:
        """Note a call whose thread begins; it is ended at once if the program is. Any thread."""
        with self._guard:
            self._calls.add(call)
            ending = self._ends is not None
        if ending:
            call.leave()

    @contextmanager
    def inside(self, *, begins: bool = False) -> Iterator[None]:
        """Mark the time that this thread spends inside Flight; not nested.

        ``begins``: a call begins here, which is refused as soon as the program's exit has begun.
        What belongs to an open call goes on until all threads have been waited for. The thread that
        runs the exit handlers is not refused, because the interpreter does not go without it.

        Raises:
            NoAnswerError: the program ends.
        """
        thread = threading.current_thread()
        with self._guard:
            ending = self._ends is not None and self._ends is not thread
            if ending and (begins or self._over):
                raise NoAnswerError("no call to a broker begins while the program ends")
            self._inside.add(thread)
        try:
            yield
        finally:
            self._inside.discard(thread)

    def end(self, timeout_ms: int = _EXIT_MS) -> bool:
        """End the calls, and wait for ``timeout_ms`` in all; tell whether no thread is inside."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        with self._guard:
            self._ends = threading.current_thread()
            calls = list(self._calls)
        for call in calls:
            call.leave()
        for call in calls:
            call.join(max(0, round((deadline_s - time.monotonic()) * 1000)))
        while True:
            with self._guard:  # after a fork the threads of the parent are not alive
                left = any(thread.is_alive() for thread in self._inside)
                self._over = not left or time.monotonic() > deadline_s
                if self._over:
                    return not left
            time.sleep(_LOOK_S)


process: Final = OpenCalls()
atexit.register(process.end)
