"""What waits for a partition's owner: writes, taken in groups, and calls, in the order they came.

The owner is whichever thread takes the partition's turn; there is one at a time. Writes that follow
each other are one group, so whatever arrives during a turn's fdatasync shares the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    OverloadedError,
    ShuttingDownError,
)
from broker.runtime.partition.commit_scheduler import Turn, TurnScheduler
from broker.runtime.partition.groups import Write

_T = TypeVar("_T")

GROUP_BYTES_MAX: Final = 16 * 1024 * 1024  # between two syncs; recovery relies on the bound
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024  # then submitters hear OverloadedError
_CALLS_MAX: Final = 64  # of one turn; others want the thread, too
CALLS_QUEUED_MAX: Final = 1024  # of threads that wait; then they hear OverloadedError
MESSAGES_MAX: Final = 1024  # of other replicas; then they are lost, as on a network
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
CALL_S_MAX: Final = 600.0  # nothing that is well takes so long


@dataclass(slots=True, eq=False)
class OwnerCall:
    """Something that another thread wants the owner to do between two groups."""

    function: Callable[[], Any]
    finished: threading.Event | None = None  # None: nobody waits
    result: Any = None
    error: HeadwaterError | None = None
    message_bytes: int = 0  # of a message; else 0
    _then: Callable[[], None] | None = None

    def finish(self) -> None:
        """Let whoever waits go on."""
        if self.finished is not None:
            self.finished.set()
            if self._then is not None:
                self._then()

    def is_over(self, timeout_s: float = 0.0) -> bool:
        """Wait for its end, so long at most; tell whether it has come."""
        assert self.finished is not None, "nobody said that somebody would wait"
        return self.finished.wait(timeout_s)

    def afterwards(self, then: Callable[[], None]) -> None:
        """Call ``then``, which is quick, at the end, or now; it may be called twice."""
        self._then = then
        if self.is_over():
            then()


@dataclass(slots=True)
class Work:
    """What one turn does: some calls, then a group of writes."""

    calls: list[OwnerCall] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


class Deferred:
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

    def __init__(self, owner: Turn, scheduler: TurnScheduler, name: str) -> None:
        """Queue for ``owner``, whose turns ``scheduler`` runs; ``name`` is for messages."""
        self._owner = owner
        self._scheduler = scheduler
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[Write | OwnerCall] = deque()
        self._queued_bytes = 0
        self._messages = self._message_bytes = 0  # that wait
        self._scheduled = False
        self.closing = False
        self._poison: HeadwaterError | None = None

    @property
    def poisoned(self) -> bool:
        """Whether a turn crashed: nothing is done here any more."""
        return self._poison is not None

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
            self._queue.append(write)
            self._queued_bytes += write.size_bytes
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

    def offer(self, function: Callable[[], Any], size_bytes: int) -> bool:
        """Let the owner take a message that may be lost; False: too many wait, and it is."""
        with self._lock:
            size_bytes = max(1, size_bytes)
            size = self._message_bytes + size_bytes
            if self._messages >= MESSAGES_MAX or (self._messages and size > MESSAGE_BYTES_MAX):
                return False
            self._messages, self._message_bytes = self._messages + 1, size
        self._add(OwnerCall(function, message_bytes=size_bytes))
        return True

    def call(self, function: Callable[[], Any]) -> Any:
        """Let the owner call ``function``; wait; return what it returned or raise what it did.

        Raises:
            OverloadedError: too many threads wait already.
        """
        if len(self._queue) >= CALLS_QUEUED_MAX and self._waiting_calls() >= CALLS_QUEUED_MAX:
            raise OverloadedError(f"{CALLS_QUEUED_MAX} calls wait for {self._name}")
        return self.result_of(self.begin(function))

    def _waiting_calls(self) -> int:
        with self._lock:
            calls = (one for one in self._queue if isinstance(one, OwnerCall))
            return sum(one.finished is not None for one in calls)

    def begin(self, function: Callable[[], Any]) -> OwnerCall:
        """Begin a :meth:`call`; end it with :meth:`result_of`."""
        call = OwnerCall(function, threading.Event())
        self._add(call)
        return call

    def result_of(self, call: OwnerCall, timeout_s: float = CALL_S_MAX) -> Any:
        """Wait for a call that was begun.

        Raises:
            CommitTimeoutError: the owner hangs; the call may still be done.
        """
        if not call.is_over(timeout_s):
            raise CommitTimeoutError(f"{self._name} has not answered for {timeout_s:g} s")
        if call.error is not None:
            raise call.error
        return call.result

    def take(self, work: Work, *, held: bool = False) -> None:
        """Move the oldest work to ``work``; the owner, in its turn. Writes that are held stay."""
        with self._lock:
            if held:
                self._take_calls_locked(work)
                return
            while self._queue and len(work.calls) < _CALLS_MAX:
                first = self._queue[0]
                if not isinstance(first, OwnerCall):
                    break
                work.calls.append(first)  # at no moment in neither: a crash tells those it finds
                self._queue.popleft()
                self._count_out_locked(first)
            size = 0
            while self._queue:
                write = self._queue[0]
                if isinstance(write, OwnerCall):
                    break
                size += write.size_bytes
                if work.writes and size > GROUP_BYTES_MAX:
                    break
                work.writes.append(write)
                self._queue.popleft()
                self._queued_bytes -= write.size_bytes

    def _take_calls_locked(self, work: Work) -> None:
        """Take calls alone, past the writes that wait: one of them will let these go."""
        for one in [one for one in self._queue if isinstance(one, OwnerCall)][:_CALLS_MAX]:
            work.calls.append(one)
            self._queue.remove(one)
            self._count_out_locked(one)

    def _count_out_locked(self, call: OwnerCall) -> None:
        if call.message_bytes:
            self._messages -= 1
            self._message_bytes -= call.message_bytes

    def end_turn(self, *, held: bool = False) -> None:
        """Let the next turn be scheduled; the owner, last thing in its turn."""
        with self._lock:
            self._scheduled = False
            if any(isinstance(one, OwnerCall) for one in self._queue) if held else self._queue:
                self._schedule_locked()

    def close(self) -> None:
        """Refuse writes from now on; what is queued is still done."""
        with self._lock:
            self.closing = True

    def poison(self, work: Work, error: HeadwaterError) -> None:
        """Do nothing more, ever: the owner crashed while it did ``work``.

        Calls are told ``error``, those of ``work`` that were not finished among them.
        """
        with self._lock:
            self.closing, self._scheduled, self._poison = True, True, error
            calls = [*work.calls, *(one for one in self._queue if isinstance(one, OwnerCall))]
            self._queue.clear()
        for call in calls:
            if call.finished is not None and not call.finished.is_set():
                call.error = error
                call.finish()

    def _add(self, call: OwnerCall, *, may_block: bool = False) -> None:
        with self._lock:
            if self._poison is not None:
                call.error = self._poison
                call.finish()
                return
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
            try:
                self._scheduler.schedule(self._owner)
            except BaseException:  # there was no memory for it: the next caller tries again
                self._scheduled = False
                raise


class Newest(Generic[_T]):
    """Values of which the newest alone counts, on their way to the owner. Any thread."""

    def __init__(self, queue: TurnQueue, take: Callable[[_T], None]) -> None:
        """Let the owner ``take`` them."""
        self._queue = queue
        self._take = take
        self._lock = threading.Lock()
        self._values: list[_T] = []  # one, while a call waits
        self._call: OwnerCall | None = None

    def begin(self, value: _T) -> OwnerCall:
        """Let ``value`` be the newest; return the call that will take it, or a newer one."""
        with self._lock:
            self._values = [value]
            if self._call is None:
                self._call = self._queue.begin(self._take_newest)
            return self._call

    def _take_newest(self) -> None:
        with self._lock:
            (value,), self._call = self._values, None
        self._take(value)
