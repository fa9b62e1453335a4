"""What waits for a partition's owner: writes, taken in groups, and calls, in the order they came.

The owner is whichever thread takes the partition's turn; there is one at a time. Writes that follow
each other are one group, so whatever arrives during a turn's fdatasync shares the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.errors import HeadwaterError, OverloadedError, ShuttingDownError
from broker.runtime.commit_group import Write
from broker.runtime.commit_scheduler import CommitScheduler, Turn

GROUP_BYTES_MAX: Final = 16 * 1024 * 1024  # between two syncs; recovery relies on the bound
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024  # then submitters hear OverloadedError
_CALLS_MAX: Final = 64  # of one turn; others want the thread, too


@dataclass(slots=True)
class OwnerCall:
    """Something that another thread wants the owner to do between two groups."""

    function: Callable[[], Any]
    finished: threading.Event | None = None  # None: nobody waits
    result: Any = None
    error: HeadwaterError | None = None


@dataclass(slots=True)
class Work:
    """What one turn does: some calls, then a group of writes."""

    calls: list[OwnerCall] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


class Postponed:
    """What the owner does in a later turn. Owner only."""

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def add(self, at_ms: int, function: Callable[[], None]) -> None:
        """Keep a function until then."""
        self._waiting.append((at_ms, function))

    @property
    def due_ms(self) -> int | None:
        """When the first of them is due."""
        return min((at_ms for at_ms, _ in self._waiting), default=None)

    def due(self, now_ms: int) -> list[Callable[[], None]]:
        """Take out and return what it is time for."""
        due = [function for at_ms, function in self._waiting if at_ms <= now_ms]
        self._waiting = [one for one in self._waiting if one[0] > now_ms]
        return due


class TurnQueue:
    """Any thread puts, the owner takes."""

    def __init__(self, owner: Turn, scheduler: CommitScheduler, name: str) -> None:
        """Queue for ``owner``, whose turns ``scheduler`` runs; ``name`` is for messages."""
        self._owner = owner
        self._scheduler = scheduler
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[Write | OwnerCall] = deque()
        self._queued_bytes = 0
        self._scheduled = False
        self.closing = False

    def put(self, write: Write, *, may_block: bool) -> None:
        """Queue a write; with ``may_block`` an idle owner's turn is taken on this thread.

        Raises:
            ShuttingDownError, OverloadedError: nothing was taken.
        """
        with self._lock:
            if self.closing:
                raise ShuttingDownError(f"{self._name} is closing")
            if self._queued_bytes and self._queued_bytes + write.size_bytes > QUEUE_BYTES_MAX:
                raise OverloadedError(
                    f"{self._queued_bytes} bytes wait to be written to {self._name}",
                    queued_bytes=self._queued_bytes,
                )
            self._queued_bytes += write.size_bytes
            self._queue.append(write)
            here = may_block and not self._scheduled
            if here:
                self._scheduled = True
            else:
                self._schedule_locked()
        if here:
            self._scheduler.run_here(self._owner)

    def post(self, function: Callable[[], Any], *, may_block: bool = False) -> None:
        """Let the owner call ``function``; does not wait, and an error is the owner's."""
        self._add(OwnerCall(function), may_block=may_block)

    def call(self, function: Callable[[], Any]) -> Any:
        """Let the owner call ``function``; wait; return what it returned or raise what it did."""
        call = OwnerCall(function, threading.Event())
        self._add(call)
        return self.result_of(call)

    def begin(self, function: Callable[[], Any]) -> OwnerCall:
        """Begin a :meth:`call`; end it with :meth:`result_of`."""
        call = OwnerCall(function, threading.Event())
        self._add(call)
        return call

    def result_of(self, call: OwnerCall) -> Any:
        """Wait for a call that was begun."""
        assert call.finished is not None, "nobody said that somebody would wait"
        call.finished.wait()
        if call.error is not None:
            raise call.error
        return call.result

    def take(self) -> Work:
        """Return the oldest work; the owner, in its turn."""
        work = Work()
        with self._lock:
            while self._queue and len(work.calls) < _CALLS_MAX:
                first = self._queue[0]
                if not isinstance(first, OwnerCall):
                    break
                self._queue.popleft()
                work.calls.append(first)
            size = 0
            while self._queue:
                write = self._queue[0]
                if isinstance(write, OwnerCall):
                    break
                size += write.size_bytes
                if work.writes and size > GROUP_BYTES_MAX:
                    break
                self._queue.popleft()
                work.writes.append(write)
                self._queued_bytes -= write.size_bytes
        return work

    def end_turn(self) -> None:
        """Let the next turn be scheduled; the owner, last thing in its turn."""
        with self._lock:
            self._scheduled = False
            if self._queue:
                self._schedule_locked()

    def close(self) -> None:
        """Refuse writes from now on; what is queued is still done."""
        with self._lock:
            self.closing = True

    def _add(self, call: OwnerCall, *, may_block: bool = False) -> None:
        with self._lock:
            self._queue.append(call)
            here = may_block and not self._scheduled
            if here:
                self._scheduled = True
            else:
                self._schedule_locked()
        if here:
            self._scheduler.run_here(self._owner)

    def _schedule_locked(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._scheduler.schedule(self._owner)
