"""The queue of a partition's owner: writes, taken in groups, and calls, in the order of arrival.

The owner is the thread that runs the partition's turn; there is one at a time. Neighbouring writes
are one group. So all writes that arrive during the fdatasync of a turn share the next fdatasync.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar, cast

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
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024  # above it submitters get OverloadedError
_CALLS_MAX: Final = 64  # calls of one turn; other partitions need the thread too
CALLS_QUEUED_MAX: Final = 1024  # waiting threads; above it callers get OverloadedError
MESSAGES_MAX: Final = 1024  # messages of other replicas; above it they are lost, as on a network
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
CALL_S_MAX: Final = 600.0  # no healthy call takes so long


@dataclass(slots=True, eq=False)
class OwnerCall:
    """A function that the owner calls for another thread, between two groups."""

    function: Callable[[], object]
    finished: threading.Event | None = None  # None: no thread waits
    result: object = None
    error: HeadwaterError | None = None
    message_bytes: int = 0  # size of a replica's message; 0 for other calls
    _then: Callable[[], None] | None = None

    def finish(self) -> None:
        """Wake the waiting thread, if any."""
        if self.finished is not None:
            self.finished.set()
            if self._then is not None:
                self._then()

    def is_over(self, timeout_s: float = 0.0) -> bool:
        """Wait at most ``timeout_s`` for the end of the call; return whether it has ended."""
        assert self.finished is not None, "this call was queued without a waiting thread"
        return self.finished.wait(timeout_s)

    def afterwards(self, then: Callable[[], None]) -> None:
        """Call the quick ``then`` at the end of the call, or now; it may be called twice."""
        self._then = then
        if self.is_over():
            then()


@dataclass(slots=True)
class Work:
    """The work of one turn: some calls, then a group of writes."""

    calls: list[OwnerCall] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


class Deferred:
    """Functions that the owner calls in a later turn. Owner only."""

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def add(self, at_ms: int, function: Callable[[], None]) -> None:
        """Keep a function until ``at_ms``."""
        self._waiting.append((at_ms, function))

    @property
    def due_ms(self) -> int | None:
        """When the first function is due; None if there is none."""
        return min((at_ms for at_ms, _ in self._waiting), default=None)

    def due(self, now_ms: int) -> list[Callable[[], None]]:
        """Take out and return the functions that are due."""
        due = [function for at_ms, function in self._waiting if at_ms <= now_ms]
        self._waiting = [one for one in self._waiting if one[0] > now_ms]
        return due


class TurnQueue:
    """Any thread puts, only the owner takes."""

    def __init__(self, owner: Turn, scheduler: TurnScheduler, name: str) -> None:
        """Queue for ``owner``, whose turns ``scheduler`` runs; ``name`` is for messages."""
        self._owner = owner
        self._scheduler = scheduler
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[Write | OwnerCall] = deque()
        self._queued_bytes = 0
        self._messages = self._message_bytes = 0  # of the messages that wait
        self._scheduled = False
        self._turns = 0  # that have ended
        self.closing = False
        self._poison: HeadwaterError | None = None

    @property
    def poisoned(self) -> bool:
        """Whether a turn crashed: then no more work is done."""
        return self._poison is not None

    @property
    def waiting_turn(self) -> int | None:
        """The number of the turn that is queued or runs now; None if there is none."""
        return self._turns if self._scheduled else None

    def put(self, write: Write, *, may_block: bool) -> None:
        """Queue a write; with ``may_block`` an idle partition's turn runs on this thread.

        Raises:
            ShuttingDownError, OverloadedError: the write was not queued.
        """
        with self._lock:
            if self.closing:
                raise ShuttingDownError(f"partition {self._name} is closing")
            if self._queued_bytes and self._queued_bytes + write.size_bytes > QUEUE_BYTES_MAX:
                raise OverloadedError(
                    f"{self._queued_bytes} bytes wait to be written to partition {self._name}: "
                    "try again later",
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

    def post(self, function: Callable[[], object], *, may_block: bool = False) -> None:
        """Let the owner call ``function``. Does not wait; the owner handles an error."""
        self._add(OwnerCall(function), may_block=may_block)

    def offer(self, function: Callable[[], object], size_bytes: int) -> bool:
        """Queue a message that may be lost; return False if too many wait, so that it is lost."""
        with self._lock:
            size_bytes = max(1, size_bytes)
            size = self._message_bytes + size_bytes
            if self._messages >= MESSAGES_MAX or (self._messages and size > MESSAGE_BYTES_MAX):
                return False
            self._messages, self._message_bytes = self._messages + 1, size
        self._add(OwnerCall(function, message_bytes=size_bytes))
        return True

    def call(self, function: Callable[[], _T]) -> _T:
        """Let the owner call ``function`` and wait; return its result or raise its error.

        Raises:
            OverloadedError: too many threads wait already.
        """
        if len(self._queue) >= CALLS_QUEUED_MAX and self._waiting_calls() >= CALLS_QUEUED_MAX:
            raise OverloadedError(f"{CALLS_QUEUED_MAX} calls wait for partition {self._name}")
        return cast("_T", self.result_of(self.begin(function)))

    def _waiting_calls(self) -> int:
        with self._lock:
            calls = (one for one in self._queue if isinstance(one, OwnerCall))
            return sum(one.finished is not None for one in calls)

    def begin(self, function: Callable[[], object]) -> OwnerCall:
        """Begin a :meth:`call`; finish with :meth:`result_of`."""
        call = OwnerCall(function, threading.Event())
        self._add(call)
        return call

    def result_of(self, call: OwnerCall, timeout_s: float = CALL_S_MAX) -> object:
        """Wait for a call that was begun; return its result or raise its error.

        Raises:
            CommitTimeoutError: the owner did not answer in time; the call may still happen.
        """
        if not call.is_over(timeout_s):
            raise CommitTimeoutError(
                f"partition {self._name} has not answered for {timeout_s:g} s: perhaps its disk "
                "hangs"
            )
        if call.error is not None:
            raise call.error
        return call.result

    def take_calls(self, work: Work, *, held: bool = False) -> None:
        """Move the calls before the oldest write to ``work``; while ``held``, those behind it, too.

        Then :meth:`take_writes`: a call may be why writes have to wait. The owner calls both.
        """
        with self._lock:
            if held and not self.closing:  # the close of the log stays behind the writes
                self._take_calls_locked(work)
                return
            while self._queue and len(work.calls) < _CALLS_MAX:
                first = self._queue[0]
                if not isinstance(first, OwnerCall):
                    break
                work.calls.append(first)  # before popleft: after a crash `poison` must find it
                self._queue.popleft()
                self._count_out_locked(first)

    def take_writes(self, work: Work) -> None:
        """Move the writes before the oldest call to ``work``, as many as one group may have."""
        with self._lock:
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
        """Take calls only, past the waiting writes: one of the calls will end the waiting."""
        left: deque[Write | OwnerCall] = deque()
        for one in self._queue:  # one pass: many writes may wait
            if isinstance(one, OwnerCall) and len(work.calls) < _CALLS_MAX:
                work.calls.append(one)
                self._count_out_locked(one)
            else:
                left.append(one)
        self._queue = left

    def _count_out_locked(self, call: OwnerCall) -> None:
        if call.message_bytes:
            self._messages -= 1
            self._message_bytes -= call.message_bytes

    def end_turn(self, *, held: bool = False) -> None:
        """Let the next turn be scheduled; the owner calls it at the end of its turn."""
        with self._lock:
            self._scheduled = False
            self._turns += 1
            if any(isinstance(one, OwnerCall) for one in self._queue) if held else self._queue:
                self._schedule_locked()

    def close(self) -> None:
        """Refuse writes from now on; queued work is still done."""
        with self._lock:
            self.closing = True

    def poison(self, work: Work, error: HeadwaterError) -> None:
        """Do no more work: the owner crashed during ``work``.

        All waiting calls, and the unfinished calls of ``work``, end with ``error``.
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
            except BaseException:  # no memory: the next caller tries again
                self._scheduled = False
                raise


class Newest(Generic[_T]):
    """A value on its way to the owner; a newer value replaces a waiting one. Any thread."""

    def __init__(self, queue: TurnQueue, take: Callable[[_T], None]) -> None:
        """Let the owner call ``take`` with the newest value."""
        self._queue = queue
        self._take = take
        self._lock = threading.Lock()
        self._values: list[_T] = []  # one, while a call waits
        self._call: OwnerCall | None = None

    def begin(self, value: _T) -> OwnerCall:
        """Queue ``value``; return the call that will take it, or take a newer value."""
        with self._lock:
            self._values = [value]
            if self._call is None:
                self._call = self._queue.begin(self._take_newest)
            return self._call

    def _take_newest(self) -> None:
        with self._lock:
            (value,), self._call = self._values, None
        self._take(value)
