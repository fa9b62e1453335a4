"""No thread of a program is inside Arrow's Flight when the interpreter ends.

A thread that comes back from there after the interpreter was finalized, or a buffer in Python's
memory that gRPC releases only then, ends the process by a signal: a segmentation fault, or
"terminate called without an active exception". So at the program's exit the calls that it left
open are ended while the interpreter still runs, the threads that are inside are waited for, and no
other thread goes in again.

Exit handlers that were registered before this module was imported run later. They may ask actions
of a broker. A read or a producer's connection that begins there ends with an error.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol
from weakref import WeakSet

from broker.errors import InvalidRequestError

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
        self._guard = threading.RLock()  # a signal handler may call the client, too
        self._calls: WeakSet[OpenCall] = WeakSet()
        self._inside: set[threading.Thread] = set()
        self._ending_thread: threading.Thread | None = None  # it runs the exit handlers
        self._lets_none_in = False

    def note(self, call: OpenCall) -> None:
        """Note a call whose thread has begun; it is ended at once if the program ends."""
        with self._guard:
            self._calls.add(call)
            ends = self._ending_thread is not None
        if ends:
            call.leave()

    @contextmanager
    def inside(self, *, begins: bool = False) -> Iterator[None]:
        """Mark the time that this thread spends inside Flight; not nested.

        ``begins``: a call begins here, which is refused as soon as the program's exit has begun.
        Steps of an open call are refused when its threads have been waited for, or time is up. The
        thread that runs the exit handlers is not refused: the interpreter does not end before it.

        Raises:
            InvalidRequestError: the program ends.
        """
        thread = threading.current_thread()
        with self._guard:
            ends = self._ending_thread is not None and self._ending_thread is not thread
            if ends and (begins or self._lets_none_in):
                raise InvalidRequestError(
                    "the program ends, so this call to a broker is not made. Close clients and "
                    "producers before the program's end; what was sent and has no answer may be "
                    "stored or not"
                )
            self._inside.add(thread)
        try:
            yield
        finally:
            with self._guard:
                self._inside.discard(thread)

    def end(self, timeout_ms: int = _EXIT_MS) -> bool:
        """End the calls, and wait for ``timeout_ms`` in all; tell whether no thread is inside."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        with self._guard:
            self._ending_thread = threading.current_thread()
            calls = list(self._calls)
        try:
            for call in calls:
                call.leave()
            for call in calls:
                call.join(max(0, round((deadline_s - time.monotonic()) * 1000)))
            while not (done := self._shut_behind_the_last()) and time.monotonic() < deadline_s:
                time.sleep(_LOOK_S)
            return done
        finally:
            self._lets_none_in = True

    def _shut_behind_the_last(self) -> bool:
        """Let no thread in again if none is inside; return whether none is."""
        with self._guard:
            self._lets_none_in = not self._inside - {self._ending_thread}
            return self._lets_none_in


process: Final = OpenCalls()
atexit.register(process.end)
# A forked child has none of these threads, and the calls are its parent's.
os.register_at_fork(after_in_child=process.__init__)  # type: ignore[misc]
