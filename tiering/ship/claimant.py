"""The threads that claim this broker's leaderships, and check regularly that they still hold.

A claim is made as soon as a leadership begins; the partition's gate waits for the claim a bounded
time. While the store does not answer, the claim is tried again, with a doubled wait each time.

A settled claim is checked again and again. While the partition takes writes, each check looks for a
claim of the next leader epoch; every 30th check looks for all newer claims. So two processes are
fenced soon, and not only at their next commit: one that was suspended while another broker replaced
it, and one whose data folder was copied and started a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from broker.errors import (
    ForeignHistoryError,
    HeadwaterError,
    HistoryClaimedError,
    RemoteTierUnavailableError,
)
from broker.model.ids import PartitionId, StreamUuid
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.pumps import NEVER_MS, Drive
from broker.ports.system import Clock
from broker.ports.tiering import TierSource
from tiering.config import Observer, TieringConfig
from tiering.ship.claims import ClaimBook, claim_of
from tiering.table.table import Table

_T = TypeVar("_T")
_THREADS: Final = 8
_THOROUGH_EVERY: Final = 30  # checks between two that look for all newer claims
_IDLE_EVERY: Final = 30  # check intervals between two checks while a partition takes no writes


@dataclass(slots=True, eq=False)
class _HeldLeadership:
    """One leadership of this broker. Guarded by the lock; one thread works on it at a time."""

    stream: Stream
    source: TierSource
    lineage_id: str
    due_ms: int
    settled: bool = False
    error: HeadwaterError | None = None  # set when the leadership is lost, for good
    busy: bool = False
    failures: int = 0
    checks_count: int = 0  # checks since the claim was settled
    log_end: Offset = Offset(-1)  # noqa: RUF009 - a plain number


class Claimant:
    """A bounded pool of threads over all partitions that this broker leads and tiers."""

    def __init__(
        self,
        table_of: Callable[[Stream], Table],
        *,
        cluster: str,
        clock: Clock,
        config: TieringConfig,
        observer: Observer,
        source_of: Callable[[PartitionId], tuple[Stream, TierSource] | None],
        is_replaced: Callable[[PartitionId, str], bool] = lambda _partition, _lineage_id: False,
        drive: Drive | None = None,
    ) -> None:
        """Create the pool; its threads start with the first claim. With a ``drive`` it is a pump.

        ``source_of`` looks a partition of this broker up, quickly. ``is_replaced`` asks for fresh
        metadata whether another leadership followed the one with this lineage id; then a newer
        claim belongs to that successor. It may block, and may raise HeadwaterError.
        """
        self._table_of = table_of
        self._source_of = source_of
        self._is_replaced = is_replaced
        self._cluster = cluster
        self._clock = clock
        self._config = config
        self._observer = observer
        self._changed = threading.Condition()
        self._held: dict[PartitionId, _HeldLeadership] = {}
        self._busy: list[_HeldLeadership] = []  # also those that are no longer held
        self._threads: list[threading.Thread] = []
        self._driven = None if drive is None else drive("claims", self._turn)
        self._reads: Executor = (  # runs the requests that a claim sends in parallel
            ThreadPoolExecutor(_THREADS, thread_name_prefix="claims-reads")
            if drive is None
            else _Inline()
        )
        self._started = self._stopping = False

    def begin(self, partition: PartitionId, lineage: Lineage) -> bool:
        """Queue the claim of a leadership that begins, or an immediate check of a known one; quick.

        ``lineage`` are the starts of leadership up to this one. Returns True if the partition's
        source will later get a call of ``admit`` or ``refuse_writes``.
        """
        known = self._source_of(partition)
        if known is None or not lineage:
            return False
        stream, source = known
        with self._changed:
            if self._stopping:
                return False
            now, found = self._clock.monotonic_ms(), self._held.get(partition)
            same = found is not None and found.source is source
            if found is not None and same and found.lineage_id == lineage[-1].lineage_id:
                found.due_ms = now
                found.checks_count = 0
            else:
                self._held[partition] = _HeldLeadership(stream, source, lineage[-1].lineage_id, now)
            if not self._started:
                self._start_locked()
            self._changed.notify()
        if self._driven is not None:
            self._driven.wake()
        return True

    def error_of(self, partition: PartitionId) -> HeadwaterError | None:
        """Return why this broker's leadership of a partition is lost; None if it is not lost."""
        held = self._held.get(partition)
        return None if held is None else held.error

    def lose(self, partition: PartitionId, error: ForeignHistoryError) -> None:
        """Mark a leadership as lost, because the table belongs to another history. Blocks.

        A replaced leader that does not know its successor yet finds the successor's records in the
        table. So fresh metadata is asked first: clients of a replaced leader need to learn who
        leads, and must not get an error of corruption.
        """
        with self._changed:
            held = self._held.get(partition)
        if held is None or held.error is not None:
            return
        try:
            replaced = self._is_replaced(partition, held.lineage_id)
        except HeadwaterError:
            return  # a replaced leader stops when its lease ends; the next cycle asks again
        if not replaced:
            self._lost(held, error)

    def ensure(self, led: Mapping[PartitionId, tuple[Stream, TierSource]]) -> None:
        """Bring the leaderships in line with ``led``: drop ended ones, claim missing ones."""
        with self._changed:
            for partition, held in list(self._held.items()):
                if partition not in led or led[partition][1] is not held.source:
                    del self._held[partition]
        for partition, (_, source) in led.items():
            found, lineage = self._held.get(partition), source.lineage
            if found is None or (lineage and lineage[-1].lineage_id != found.lineage_id):
                self.begin(partition, lineage)

    def is_claiming(self, stream_uuid: StreamUuid) -> bool:
        """Tell whether a leadership of a stream is attended to, or may be."""
        with self._changed:
            held = (partition.stream_uuid for partition in self._held)
            busy = (one.source.partition_id.stream_uuid for one in self._busy)
            return stream_uuid in held or stream_uuid in busy

    def wait_settled(self, timeout_ms: int) -> None:
        """Wait until every claim is settled or lost, ``timeout_ms`` at most. Blocks."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(one.settled or one.error for one in self._held.values()),
                timeout_ms / 1000,
            )

    def stop(self) -> None:
        """Start no new work; work in progress ends by its own deadline."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        timeout_s = self._config.stop_timeout_ms / 1000
        if self._driven is not None:
            self._driven.stop(timeout_s)
        for thread in self._threads:
            thread.join(timeout_s)
        self._reads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ the workers

    def _start_locked(self) -> None:
        self._started = True
        if self._driven is not None:
            self._driven.start()
            return
        for number in range(_THREADS):
            thread = threading.Thread(target=self._work, name=f"claims-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (held := self._next()) is not None:
            self._attend(held)

    def _turn(self, now_ms: int) -> int:
        """Attend to one leadership that is due; return when the next one is."""
        with self._changed:
            held, due_ms = (None, NEVER_MS) if self._stopping else self._choose(now_ms)
        if held is None:
            return due_ms
        self._attend(held)
        return now_ms

    def _next(self) -> _HeldLeadership | None:
        with self._changed:
            while not self._stopping:
                now = self._clock.monotonic_ms()
                held, due_ms = self._choose(now)
                if held is not None:
                    return held
                self._changed.wait(None if due_ms == NEVER_MS else (due_ms - now) / 1000)
            return None

    def _choose(self, now: int) -> tuple[_HeldLeadership | None, int]:
        """Take a leadership that is due, or return when the next one is; the lock is held."""
        free = [one for one in self._held.values() if not one.busy and one.error is None]
        first = min(free, key=lambda one: one.due_ms, default=None)
        if first is None:
            return None, NEVER_MS
        if first.due_ms > now:
            return None, first.due_ms
        first.busy = True
        self._busy.append(first)
        return first, now

    def _attend(self, held: _HeldLeadership) -> None:
        """Make a leadership's claim, or check it; set the time of the next check."""
        pause_ms = self._config.check_interval_ms
        try:
            self._visit(held)
            held.failures = 0
        except HeadwaterError as error:
            pause_ms = self._refused(held, error)
        except Exception as bug:  # noqa: BLE001 - see CATCH_ALL in tests/tidy
            self._observer("claim_crashed", {**_keys(held), "exc_info": bug})
            pause_ms = self._failed(held, HeadwaterError(str(bug)))
        with self._changed:
            held.busy = False
            self._busy.remove(held)
            held.due_ms = self._clock.monotonic_ms() + pause_ms
            self._changed.notify_all()

    def _visit(self, held: _HeldLeadership) -> None:
        """Make the claim, or check that it still holds; raises the reason if it does not."""
        lineage = held.source.lineage
        if not lineage or lineage[-1].lineage_id != held.lineage_id:
            return  # this leadership has ended; a new one is another claim
        partition = held.source.partition_id
        book = ClaimBook(self._table_of(held.stream), partition)
        if not held.settled:
            claim = claim_of(
                lineage,
                partition,
                cluster=self._cluster,
                broker=self._config.broker,
                time_us=self._clock.now_us(),
            )
            cold_end = int(held.source.cold_end)
            book.settle(lineage, claim, self._reads, cold_end=cold_end)
            held.settled = True
            self._observer("leadership_claimed", {**_keys(held), "lineage_id": held.lineage_id})
        else:
            log_end, number = held.source.reads.log_end, held.checks_count
            held.checks_count += 1
            if log_end == held.log_end and number % _IDLE_EVERY:
                return
            held.log_end = log_end
            book.look(lineage, thorough=number % _THOROUGH_EVERY == 0)
        held.source.admit(held.lineage_id)

    def _refused(self, held: _HeldLeadership, error: HeadwaterError) -> int:
        """Fence a leadership that is lost, unless the metadata ended it.

        Returns the pause in milliseconds before the next visit.
        """
        if not isinstance(error, HistoryClaimedError | ForeignHistoryError):
            return self._failed(held, error)
        try:
            replaced = self._is_replaced(held.source.partition_id, held.lineage_id)
        except HeadwaterError as unknown:  # if it was replaced, its lease ends anyhow
            return self._failed(held, unknown)
        if not replaced:
            self._lost(held, error)
        return self._config.check_interval_ms

    def _failed(self, held: _HeldLeadership, error: HeadwaterError) -> int:
        """Note that the store did not answer or a claim was unreadable; return the pause in ms."""
        held.failures += 1
        if not isinstance(error, RemoteTierUnavailableError) or held.failures == 1:
            facts = {"error": type(error).__name__, "reason": str(error)}
            self._observer("claim_delayed", {**_keys(held), **facts})
        pause_ms = self._config.backoff_ms_min * 2 ** min(held.failures - 1, 20)
        return int(min(pause_ms, self._config.backoff_ms_max))

    def _lost(self, held: _HeldLeadership, error: HeadwaterError) -> None:
        held.error = error
        held.source.refuse_writes(held.lineage_id, error)
        facts = {"error": type(error).__name__, "reason": str(error)}
        self._observer("leadership_lost", {**_keys(held), **facts})


class _Inline(Executor):
    """Runs each task at once, on the caller's thread."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """See ``Executor.submit``."""
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - see CATCH_ALL in tests/tidy
            done.set_exception(error)
        return done


def _keys(held: _HeldLeadership) -> dict[str, object]:
    return {"stream": held.stream.name, "partition": int(held.source.partition_id.number)}
