"""The workers of tiering, and the queue of partitions that are due.

Workers take partitions in the order of their due times; two workers never have the same partition.
A sealed segment makes its stream due at once. A timer makes every partition due regularly. After a
failure its partition waits, twice as long each time, with jitter. So after an outage of the store
shipping resumes without an operator.

The workers are threads. With a ``drive`` there is one worker instead, a pump that performs one
effect a turn (docs/decisions/0021): the simulation drives it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    HistoryClaimedError,
    RemoteTierUnavailableError,
    UnknownStreamError,
)
from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.pumps import NEVER_MS, Drive
from broker.ports.system import Clock
from broker.ports.tiering import TierCatalog, TierSource
from tiering.config import Observer, TieringConfig
from tiering.ship.shipper import CycleProgress, PartitionShipper

ShipperOf = Callable[[Stream, TierSource], PartitionShipper]

_FLUSH_POLL_MS: Final = 50


@dataclass(slots=True, eq=False)
class _UploadTask:
    """One partition's place in the queue. The uploader's lock guards all but ``shipper``."""

    stream: Stream
    shipper: PartitionShipper
    due_ms: int
    busy_since_ms: int | None = None
    failures: int = 0  # in a row
    error: HeadwaterError | None = None
    cycles_total: int = 0
    again: bool = False  # woken while a worker was busy with the partition


@dataclass(slots=True)
class _Cycle:
    """A cycle under way, and the times for its metrics."""

    task: _UploadTask
    started_ms: int
    bytes_before: int


class Uploader:
    """A bounded pool of worker threads over all partitions that this broker leads."""

    def __init__(
        self,
        catalog: TierCatalog,
        shipper_of: ShipperOf,
        *,
        clock: Clock,
        config: TieringConfig,
        observer: Observer,
        on_scan: Callable[[Mapping[PartitionId, tuple[Stream, TierSource]]], None],
        drive: Drive | None = None,
    ) -> None:
        """Create the pool; nothing runs before :meth:`start`.

        ``on_scan`` is called after every scan of the catalog, with all partitions that this broker
        leads and tiers.
        """
        self._on_scan = on_scan
        self._catalog = catalog
        self._shipper_of = shipper_of
        self._clock = clock
        self._config = config
        self._observer = observer
        self._changed = threading.Condition()
        self._tasks: dict[PartitionId, _UploadTask] = {}
        self._busy: list[_UploadTask] = []  # also those that are no longer among the tasks
        self._next_scan_ms = 0
        self._scanning = False
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._driven = None if drive is None else drive("tiering", self._turn)
        self._cycle: _Cycle | None = None  # under way; used by the pump only
        catalog.on_sealed(self.wake)

    def start(self) -> None:
        """Start the workers."""
        assert not self._threads, "an uploader starts once"
        if self._driven is not None:
            self._driven.start()
            return
        for number in range(self._config.workers_count):
            thread = threading.Thread(target=self._work, name=f"tiering-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Start no new work; wait for the work in progress, up to ``stop_timeout_ms``."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        timeout_s = self._config.stop_timeout_ms / 1000
        if self._driven is not None:
            self._driven.stop(timeout_s)
        for thread in self._threads:
            thread.join(timeout_s)

    def wake(self, partition: PartitionId) -> None:
        """Make a partition due now. Quick; any thread."""
        now = self._clock.monotonic_ms()
        with self._changed:
            task = self._tasks.get(partition)
            if task is None:
                self._next_scan_ms = now
            else:
                task.again = task.busy_since_ms is not None
                if task.failures == 0:  # after a failure the partition waits out its pause
                    task.due_ms = min(task.due_ms, now)
            self._changed.notify_all()
        if self._driven is not None:
            self._driven.wake()

    def flush(
        self, stream: Stream, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Seal and ship all records committed now; return when their cold ends are recorded.

        Raises:
            CorruptDataError, HistoryClaimedError: a partition cannot be shipped; repeating will
                not help.
            RemoteTierUnavailableError: ``timeout_ms`` is over, or nobody waits for the answer.
            UnknownStreamError: the stream or a partition is not tiered here.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        sources = self._catalog.sources(stream)
        targets: dict[PartitionId, tuple[TierSource, Offset]] = {}
        begun: dict[PartitionId, int] = {}
        for source in sources:
            targets[source.partition_id] = (source, source.reads.high_watermark)
            source.seal_active()
        self._scan(only=stream)
        with self._changed:
            for partition in targets:
                task = self._tasks.get(partition)
                if task is None:
                    raise UnknownStreamError(f"{stream.name!r} is not tiered by this broker")
                begun[partition] = task.cycles_total
                task.due_ms = self._clock.monotonic_ms()  # even if it waits after a failure
                task.again = task.busy_since_ms is not None
            self._changed.notify_all()
            while waiting := [part for part, (source, target) in targets.items()
                              if source.cold_end < target]:  # fmt: skip
                for partition in waiting:
                    self._raise_if_hopeless(partition, begun[partition])
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0 or self._stopping or not is_wanted():
                    raise self._flush_timed_out(stream, waiting)
                self._changed.wait(min(left_ms, _FLUSH_POLL_MS) / 1000)

    def task_of(
        self, partition: PartitionId
    ) -> tuple[PartitionShipper, HeadwaterError | None] | None:
        """Return a partition's shipper and last error; None if it is not tiered here."""
        with self._changed:
            task = self._tasks.get(partition)
            return None if task is None else (task.shipper, task.error)

    def shippers(self) -> list[tuple[Stream, PartitionShipper]]:
        """Return all partitions that are tiered here."""
        with self._changed:
            return [(task.stream, task.shipper) for task in self._tasks.values()]

    def is_shipping(self, stream_uuid: StreamUuid) -> bool:
        """Tell whether a worker is busy with a partition of a stream, or may begin to be."""
        with self._changed:
            waiting = (partition.stream_uuid for partition in self._tasks)
            busy = (task.shipper.source.partition_id.stream_uuid for task in self._busy)
            return stream_uuid in waiting or stream_uuid in busy

    def unreachable(self) -> RemoteTierUnavailableError | None:
        """Return the error if the store did not answer the last cycle of some partition."""
        with self._changed:
            errors = [task.error for task in self._tasks.values()]
        return next((one for one in errors if isinstance(one, RemoteTierUnavailableError)), None)

    # ------------------------------------------------------------------------------ the workers

    def _work(self) -> None:
        """Run cycles until stopped; the body of each thread."""
        while True:
            scan, task = self._next()
            if scan:
                self._scan()
            elif task is None:
                return
            else:
                cycle = self._begin(task)
                while not self._step(cycle):
                    pass

    def _turn(self, now_ms: int) -> int:
        """Do one thing: a scan, or one effect of one cycle; return when the next is due."""
        if self._cycle is None:
            with self._changed:
                if self._stopping:
                    return NEVER_MS
                scan, task, due_ms = self._choose(now_ms)
            if not scan and task is None:
                return due_ms
            if task is None:
                self._scan()
                return now_ms
            self._cycle = self._begin(task)
        if self._step(self._cycle):
            self._cycle = None
        return now_ms

    def _next(self) -> tuple[bool, _UploadTask | None]:
        """Wait for work: (True, None) is a scan, (False, task) a cycle, (False, None) the end."""
        with self._changed:
            while not self._stopping:
                now = self._clock.monotonic_ms()
                scan, task, due_ms = self._choose(now)
                if scan or task is not None:
                    return scan, task
                self._changed.wait(max(1, due_ms - now) / 1000)
            return False, None

    def _choose(self, now: int) -> tuple[bool, _UploadTask | None, int]:
        """Take a scan or a task that is due, or return when the next one is; the lock is held."""
        if now >= self._next_scan_ms and not self._scanning:
            self._scanning = True
            self._next_scan_ms = now + self._config.check_interval_ms
            return True, None, now
        free = [task for task in self._tasks.values() if task.busy_since_ms is None]
        first = min(free, key=lambda task: task.due_ms, default=None)
        if first is None:
            return False, None, self._next_scan_ms
        if first.due_ms > now:
            return False, None, min(self._next_scan_ms, first.due_ms)
        first.busy_since_ms = now
        first.again = False
        self._busy.append(first)
        return False, first, now

    def _scan(self, only: Stream | None = None) -> None:
        """Bring the tasks in line with the catalog."""
        found: dict[PartitionId, tuple[Stream, TierSource]] = {}
        try:
            for stream in [only] if only is not None else self._catalog.streams():
                for source in self._catalog.sources(stream):
                    found[source.partition_id] = (stream, source)
        except HeadwaterError as error:  # a stream was deleted meanwhile; the next scan drops it
            self._observer("tier_scan_failed", {"error": str(error)})
        if only is None:
            self._on_scan(found)
        with self._changed:
            now = self._clock.monotonic_ms()
            for partition, (stream, source) in found.items():
                task = self._tasks.get(partition)
                if task is None or task.shipper.source is not source:
                    shipper = self._shipper_of(stream, source)
                    self._tasks[partition] = _UploadTask(stream, shipper, due_ms=now)
            if only is None:
                self._scanning = False
                for partition in [key for key in self._tasks if key not in found]:
                    del self._tasks[partition]
            self._changed.notify_all()

    def _begin(self, task: _UploadTask) -> _Cycle:
        return _Cycle(task, self._clock.monotonic_ms(), task.shipper.counters.bytes_total)

    def _step(self, cycle: _Cycle) -> bool:
        """Perform one effect of a cycle; tell whether the cycle is over."""
        task = cycle.task
        try:
            progress = task.shipper.take_step()
        except HeadwaterError as error:
            self._end(cycle, error)
            return True
        except Exception as bug:  # noqa: BLE001 - see CATCH_ALL in tests/tidy
            self._observer("tier_crashed", {**self._keys(task), "exc_info": bug})
            self._end(cycle, HeadwaterError(f"{type(bug).__name__}: {bug}"))
            return True
        if progress is CycleProgress.UNDER_WAY:
            return False
        self._end(cycle, None, more=progress is CycleProgress.MORE_TO_SHIP)
        return True

    def _end(self, cycle: _Cycle, error: HeadwaterError | None, *, more: bool = False) -> None:
        task = cycle.task
        shipped = task.shipper.counters.bytes_total - cycle.bytes_before
        if shipped and not more:  # the next object would fill the same memory again
            pa.default_memory_pool().release_unused()  # frees buffers of about one object's size
        with self._changed:
            now = self._clock.monotonic_ms()
            task.cycles_total += 1
            task.busy_since_ms = None
            self._busy.remove(task)
            task.error = error
            task.failures = 0 if error is None else task.failures + 1
            task.again = task.again or more
            task.due_ms = now + self._pause_ms(task)
            self._changed.notify_all()
        self._report(task, error, shipped, now - cycle.started_ms)

    def _pause_ms(self, task: _UploadTask) -> int:
        if task.failures == 0:
            return 0 if task.again else self._config.check_interval_ms
        ceiling = min(
            self._config.backoff_ms_max,
            self._config.backoff_ms_min * 2 ** min(task.failures - 1, 30),
        )
        return int(ceiling * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    def _report(
        self, task: _UploadTask, error: HeadwaterError | None, shipped: int, elapsed_ms: int
    ) -> None:
        if error is not None:
            self._observer(
                "tier_failed",
                {
                    **self._keys(task),
                    "error": type(error).__name__,
                    "reason": str(error),
                    "failures": task.failures,
                },
            )
        elif shipped:
            facts = {
                "cold_end": int(task.shipper.machine.cold_end),
                "object_bytes": shipped,
                "elapsed_ms": elapsed_ms,
            }
            self._observer("segments_shipped", {**self._keys(task), **facts})

    def _keys(self, task: _UploadTask) -> dict[str, object]:
        number = task.shipper.source.partition_id.number
        return {"stream": task.stream.name, "partition": int(number)}

    def _raise_if_hopeless(self, partition: PartitionId, cycles_before: int) -> None:
        task = self._tasks.get(partition)
        if task is None:
            raise UnknownStreamError(
                f"partition {partition} was deleted, or its leader moved, while it was flushed"
            )
        tried = task.cycles_total > cycles_before
        if tried and isinstance(task.error, CorruptDataError | HistoryClaimedError):
            raise task.error

    def _flush_timed_out(self, stream: Stream, waiting: list[PartitionId]) -> HeadwaterError:
        errors = [str(task.error) for part in waiting if (task := self._tasks.get(part)) is not None
                  and task.error is not None]  # fmt: skip
        reason = errors[0] if errors else "shipping takes longer than the time given"
        return RemoteTierUnavailableError(
            f"not all records of {stream.name!r} are in the table yet: {reason}",
            stream=stream.name,
            partitions=[int(part.number) for part in waiting],
        )
