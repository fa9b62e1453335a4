"""The threads that claim what this broker leads, and look now and then whether it still does.

A claim is made at once when a leadership begins; the partition's gate waits for it a bounded time.
While the store is away it is tried again, twice as late each time. Once settled, the next epoch's
claim is asked for at every check, as long as the partition takes writes, and all of them now and
then: a process that slept through its replacement, or the original of a copy, is fenced soon, and
not only at its next commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from broker.errors import (
    ForeignHistoryError,
    HeadwaterError,
    HistoryClaimedError,
    RemoteTierUnavailableError,
)
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.ports.tiering import TierSource
from tiering.config import Observer, TieringConfig
from tiering.ship.claims import ClaimBook, claim_of
from tiering.table.table import Table

_THREADS: Final = 8
_THOROUGH_EVERY: Final = 30  # looks
_IDLE_EVERY: Final = 30  # check intervals between looks at a partition that takes no writes


@dataclass(slots=True)
class _Held:
    """One leadership of this broker. Guarded by the lock; worked on by one thread at a time."""

    stream: Stream
    source: TierSource
    lineage_id: str
    due_ms: int
    settled: bool = False
    error: HeadwaterError | None = None  # lost: for good
    busy: bool = False
    failures: int = 0
    looks: int = 0
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
        is_replaced: Callable[[PartitionId, str], bool] = lambda _partition, _lineage_id: False,
    ) -> None:
        """Make the pool; its threads start with the first claim.

        ``is_replaced`` asks the metadata anew whether a leadership of this id was followed by
        another one; then a newer claim is that successor's. It may block, and raise HeadwaterError.
        """
        self._table_of = table_of
        self._is_replaced = is_replaced
        self._cluster = cluster
        self._clock = clock
        self._config = config
        self._observer = observer
        self._changed = threading.Condition()
        self._held: dict[PartitionId, _Held] = {}
        self._threads: list[threading.Thread] = []
        self._beside = ThreadPoolExecutor(_THREADS, thread_name_prefix="claims-beside")
        self._stopping = False

    def begin(self, stream: Stream, source: TierSource) -> bool:
        """Claim a leadership that begins, or look at once whether it still stands; quick.

        Returns whether the source will hear of it: ``admit`` or ``refuse_writes``.
        """
        lineage = source.lineage
        if not lineage:
            return False
        with self._changed:
            if self._stopping:
                return False
            now, found = self._clock.monotonic_ms(), self._held.get(source.partition_id)
            same = found is not None and found.source is source
            if found is not None and same and found.lineage_id == lineage[-1].lineage_id:
                found.due_ms = now
                found.looks = 0
            else:
                self._held[source.partition_id] = _Held(stream, source, lineage[-1].lineage_id, now)
            if not self._threads:
                self._start_locked()
            self._changed.notify()
        return True

    def error_of(self, partition: PartitionId) -> HeadwaterError | None:
        """Return why this broker's leadership of a partition does not stand, if it is lost."""
        held = self._held.get(partition)
        return None if held is None else held.error

    def lose(self, partition: PartitionId, error: ForeignHistoryError) -> None:
        """Hear that the table is of another history: the leadership is lost."""
        with self._changed:
            held = self._held.get(partition)
        if held is not None and held.error is None:
            self._lost(held, error)

    def ensure(self, led: Mapping[PartitionId, tuple[Stream, TierSource]]) -> None:
        """Forget what is not led here any more; claim what nobody told of."""
        with self._changed:
            for partition, held in list(self._held.items()):
                if partition not in led or led[partition][1] is not held.source:
                    del self._held[partition]
        for partition, (stream, source) in led.items():
            found, lineage = self._held.get(partition), source.lineage
            if found is None or (lineage and lineage[-1].lineage_id != found.lineage_id):
                self.begin(stream, source)

    def wait_settled(self, timeout_ms: int) -> None:
        """Wait until every claim is settled or lost, at most so long. Blocks."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(one.settled or one.error for one in self._held.values()),
                timeout_ms / 1000,
            )

    def stop(self) -> None:
        """Take up nothing new; what is under way ends with its deadline."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._config.stop_timeout_ms / 1000)
        self._beside.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ the workers

    def _start_locked(self) -> None:
        for number in range(_THREADS):
            thread = threading.Thread(target=self._work, name=f"claims-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (held := self._next()) is not None:
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
                held.due_ms = self._clock.monotonic_ms() + pause_ms
                self._changed.notify_all()

    def _next(self) -> _Held | None:
        with self._changed:
            while not self._stopping:
                now = self._clock.monotonic_ms()
                free = [one for one in self._held.values() if not one.busy and one.error is None]
                first = min(free, key=lambda one: one.due_ms, default=None)
                if first is not None and first.due_ms <= now:
                    first.busy = True
                    return first
                self._changed.wait(None if first is None else (first.due_ms - now) / 1000)
            return None

    def _visit(self, held: _Held) -> None:
        """Claim, or look; raises what stands against it."""
        lineage = held.source.lineage
        if not lineage or lineage[-1].lineage_id != held.lineage_id:
            return  # it leads no more, or anew: that is another claim
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
            book.settle(lineage, claim, self._beside, cold_end=cold_end)
            held.settled = True
            self._observer("leadership_claimed", {**_keys(held), "lineage_id": held.lineage_id})
        else:
            log_end, number = held.source.log_end, held.looks
            held.looks += 1
            if log_end == held.log_end and number % _IDLE_EVERY:
                return
            held.log_end = log_end
            book.look(lineage, thorough=number % _THOROUGH_EVERY == 0)
        held.source.admit(held.lineage_id)

    def _refused(self, held: _Held, error: HeadwaterError) -> int:
        """Fence a leadership that is lost, unless the metadata ended it; return when to go on."""
        if not isinstance(error, HistoryClaimedError | ForeignHistoryError):
            return self._failed(held, error)
        try:
            replaced = self._is_replaced(held.source.partition_id, held.lineage_id)
        except HeadwaterError as unknown:  # its lease ends all the same, if it was replaced
            return self._failed(held, unknown)
        if not replaced:
            self._lost(held, error)
        return self._config.check_interval_ms

    def _failed(self, held: _Held, error: HeadwaterError) -> int:
        """The store is away, or a claim is unreadable: go on, and try again later."""
        held.failures += 1
        if not isinstance(error, RemoteTierUnavailableError) or held.failures == 1:
            facts = {"error": type(error).__name__, "reason": str(error)}
            self._observer("claim_delayed", {**_keys(held), **facts})
        pause_ms = self._config.backoff_ms_min * 2 ** min(held.failures - 1, 20)
        return int(min(pause_ms, self._config.backoff_ms_max))

    def _lost(self, held: _Held, error: HeadwaterError) -> None:
        held.error = error
        held.source.refuse_writes(held.lineage_id, error)
        facts = {"error": type(error).__name__, "reason": str(error)}
        self._observer("leadership_lost", {**_keys(held), **facts})


def _keys(held: _Held) -> dict[str, object]:
    return {"stream": held.stream.name, "partition": int(held.source.partition_id.number)}
