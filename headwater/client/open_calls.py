"""The calls that a program left open are ended at its exit, while the interpreter still runs.

Their threads are inside Arrow and gRPC. A thread that comes back from there after the interpreter
was finalized, or a buffer in Python's memory that gRPC releases only then, ends the process by a
signal: a segmentation fault, or "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Final, Protocol
from weakref import WeakSet

_EXIT_MS: Final = 2_000  # a broker answers within milliseconds; one that does not delays no exit


class OpenCall(Protocol):
    """A call with a thread of its own."""

    def leave(self) -> None:
        """Begin to end the call; does not block."""

    def join(self, timeout_ms: int) -> bool:
        """Wait for the call's thread; tell whether it has ended."""


_calls: Final[WeakSet[OpenCall]] = WeakSet()
_guard: Final = threading.Lock()


def note(call: OpenCall) -> None:
    """Note a call whose thread begins. Any thread."""
    with _guard:
        _calls.add(call)


def end_all(timeout_ms: int = _EXIT_MS) -> None:
    """End the calls that are open, and wait for their threads, for ``timeout_ms`` in all."""
    with _guard:
        calls = list(_calls)
    for call in calls:
        call.leave()
    deadline_s = time.monotonic() + timeout_ms / 1000
    for call in calls:
        call.join(max(0, round((deadline_s - time.monotonic()) * 1000)))


atexit.register(end_all)
