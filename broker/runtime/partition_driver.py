"""The shell of one partition that this broker leads: group commit, reads, tiering's view.

One turn = take what is queued, plan it, append, sync, move the high watermark, answer. All writing
happens in turns, so one thread at a time; everything else takes the queue's lock for an instant.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from broker.codec.record_batch import PreparedBatch, prepare
from broker.core.dedup import MessageIdWindow, ProducerTable
from broker.core.leader import LogSynced, PartitionLeader
from broker.core.retention import LocalRetention, plan_local_frees
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    LogFailedError,
    OverloadedError,
    RecordTooLargeError,
    SegmentCorruptError,
    ShuttingDownError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.model.stream import Stream
from broker.ports import Clock, RecordsOutcome, SegmentInfo, StoredBatch
from broker.runtime.commit_group import BatchesWrite, CommitGroup, RecordsWrite, Write
from broker.runtime.commit_scheduler import CommitScheduler
from broker.runtime.dedup_recovery import rebuild_producers, rebuild_window
from broker.storage.partition_log import PartitionLog

GROUP_BYTES_MAX: Final = 16 * 1024 * 1024  # between two syncs; recovery relies on the bound
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024  # then submitters hear OverloadedError


OnCommit = Callable[[float, int], None]  # seconds and records of one group commit; quick


def ignore_commit(seconds: float, records_count: int) -> None:
    """Do nothing; the daemon counts commits instead."""


@dataclass(slots=True)
class PartitionCounters:
    """What a partition has done since it was opened; plain numbers, read without a lock."""

    appended_records: int = 0
    appended_bytes: int = 0
    duplicate_records: int = 0
    refused_writes: int = 0
    syncs: int = 0
    freed_segments: int = 0


@dataclass(slots=True)
class _OwnerCall:
    """Something another thread asks the owner to do between two groups."""

    function: Callable[[], Any]
    finished: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: HeadwaterError | None = None


class PartitionDriver:
    """Implements ``PartitionHandle`` and ``TierSource`` over a local log."""

    def __init__(
        self,
        *,
        log: PartitionLog,
        stream: Stream,
        number: int,
        leader_epoch: LeaderEpoch,
        broker_id: BrokerId,
        clock: Clock,
        scheduler: CommitScheduler,
        record_cold_end: Callable[[int, Offset], None],
        on_sealed: Callable[[Stream], None],
        on_commit: OnCommit = ignore_commit,
    ) -> None:
        """Take over an open log and rebuild what is derived from it. Blocks on disk reads."""
        self.stream = stream
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        self.subject = stream.config.partition_subject(number)
        self.leader_epoch = leader_epoch
        self.counters = PartitionCounters()
        self.cold_end = Offset(0)
        self._log = log
        self._clock = clock
        self._scheduler = scheduler
        self._record_cold_end = record_cold_end
        self._on_sealed = on_sealed
        self._on_commit = on_commit
        self._leader = PartitionLeader(broker_id, leader_epoch, log.synced_end)
        config = stream.config
        self._window = MessageIdWindow(
            window_us=config.dedup_window_ms * 1000, ids_max=config.dedup_ids_max
        )
        self._producers = ProducerTable()
        self.failure: HeadwaterError | None = None
        self._rebuild_tables()
        self._lock = threading.Lock()
        self._queue: deque[Write | _OwnerCall] = deque()
        self._queued_bytes = 0
        self._scheduled = False
        self._closing = False
        self._maintenance_queued = False  # a busy queue is never empty, and must not starve it
        self._committed = threading.Condition()
        self._synced_ms = clock.monotonic_ms()
        self._sealed_count = 0
        self._unshipped_bytes = 0
        self._watch_segments()

    # ------------------------------------------------------------------ what readers ask

    @property
    def log_start(self) -> Offset:
        """First offset still on local disk."""
        return self._log.log_start

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed."""
        return self._leader.high_watermark

    @property
    def log_end(self) -> Offset:
        """First offset not written."""
        return self._log.log_end

    @property
    def unshipped_bytes(self) -> int:
        """Bytes on local disk that are not yet in the table."""
        return self._unshipped_bytes

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """See ``PartitionReader.read``."""
        return self._log.read(start, end, bytes_max=bytes_max)

    def offset_at(self, timestamp_us: int) -> Offset:
        """See ``PartitionReader.offset_at``."""
        return self._log.offset_at(timestamp_us)

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """See ``PartitionReader.wait_committed``; also returns when the partition closes."""
        if self._leader.high_watermark <= above:
            with self._committed:
                self._committed.wait_for(
                    lambda: self._leader.high_watermark > above or self._closing,
                    timeout_ms / 1000,
                )
        return self._leader.high_watermark

    # ------------------------------------------------------------------ what writers ask

    def submit(
        self,
        batches: Sequence[PreparedBatch],
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],
        *,
        may_block: bool = False,
    ) -> None:
        """See ``PartitionHandle.submit``."""
        write = BatchesWrite(batches, done, sum(one.size for one in batches))
        self._enqueue(write, may_block=may_block)

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Callable[[RecordsOutcome | HeadwaterError], None],
    ) -> None:
        """See ``PartitionHandle.submit_records``."""
        if message_ids is not None and not any(message_ids):
            message_ids = None
        prepared = self._encode(batch)
        self._enqueue(RecordsWrite(batch, prepared, message_ids, done, prepared.size))

    def _encode(self, batch: pa.RecordBatch) -> PreparedBatch:
        return prepare(batch, now_us=self._clock.now_us(), codec=self.stream.config.compression)

    def _enqueue(self, write: Write, *, may_block: bool = False) -> None:
        if write.size_bytes > self.stream.config.segment_bytes_max:
            raise RecordTooLargeError(
                f"a batch of {write.size_bytes} bytes does not fit a segment of "
                f"{self.stream.config.segment_bytes_max}",
                size_bytes=write.size_bytes,
                limit_bytes=self.stream.config.segment_bytes_max,
            )
        self._refuse_if_unable()
        with self._lock:
            if self._closing:
                raise ShuttingDownError(f"stream {self.stream.name!r} is closing")
            if self._queued_bytes and self._queued_bytes + write.size_bytes > QUEUE_BYTES_MAX:
                self.counters.refused_writes += 1
                raise OverloadedError(
                    f"{self._queued_bytes} bytes wait to be written to {self.partition_id}",
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
            self._scheduler.run_here(self)

    def _refuse_if_unable(self) -> None:
        if self.failure is not None:
            raise self.failure
        limit = self.stream.config.unshipped_bytes_max
        if limit is not None and self._unshipped_bytes > limit:
            self.counters.refused_writes += 1
            raise OverloadedError(
                f"{self._unshipped_bytes} bytes of {self.partition_id} wait to be tiered; the "
                f"stream allows {limit} (unshipped_bytes_max)",
                unshipped_bytes=self._unshipped_bytes,
                limit_bytes=limit,
            )

    # ------------------------------------------------------------------ what tiering asks

    def segments(self) -> list[SegmentInfo]:
        """See ``TierSource.segments``."""
        return self._log.segments()

    def seal_active(self) -> None:
        """See ``TierSource.seal_active``. Blocks until done."""
        self._call(lambda: self._log.seal_active(self._clock.now_us()))

    def record_cold_end(self, cold_end: Offset) -> None:
        """See ``TierSource.record_cold_end``. Blocks until the metadata log has it."""
        self._record_cold_end(self.partition_id.number, cold_end)
        self.cold_end = max(self.cold_end, cold_end)
        self._watch_segments()

    def restore_cold_end(self, cold_end: Offset) -> None:
        """Take the recorded cold end over at start; a log that ends below it takes no writes."""
        self.cold_end = cold_end
        self._watch_segments()
        if self._log.log_end < cold_end and self.failure is None:
            self.failure = SegmentCorruptError(
                f"the local log of {self.partition_id} ends at {self._log.log_end}, below the "
                f"{cold_end} already in its table: local files were lost or replaced",
                offset=self._log.log_end,
                expected=cold_end,
            )

    def free_local(self, lease_floor: Callable[[], Offset]) -> int:
        """Free what local retention gives up and no lease or retry needs; return how many segments.

        The cold end is looked at before the leases: a lease taken in between starts at or above
        that cold end, so it holds nothing of what is freed here.
        """
        cold_end = self.cold_end
        floor = min(cold_end, lease_floor())
        if self._closing or self.failure is not None:
            return 0
        config = self.stream.config
        keep_us = None if config.local_retention_ms is None else config.local_retention_ms * 1000
        plan = plan_local_frees(
            self._log.segments(),
            floor=floor,
            now_us=self._clock.now_us(),
            retention=LocalRetention(keep_bytes=config.local_retention_bytes, keep_us=keep_us),
        )
        if not plan:
            return 0
        freed_count: int = self._call(lambda: self._free(plan))
        return freed_count

    def _free(self, plan: Sequence[SegmentInfo]) -> int:
        """Free the part of a plan that no message id in the window lies in.

        The window is rebuilt from the local log: an id whose segment is gone would be forgotten by
        a restart, and a retry of its record stored again.
        """
        self._window.expire(self._clock.now_us())
        floor = self._window.oldest_offset()
        bases = [one.base_offset for one in plan if floor is None or one.end_offset <= floor]
        if bases:
            self._log.free(bases)
            self.counters.freed_segments += len(bases)
            self._watch_segments()
        return len(bases)

    # ------------------------------------------------------------------ the owner's turns

    def tick(self) -> None:
        """Give time a chance: roll by age, sync by interval, expire message ids. Any thread."""
        if self.failure is None:
            with self._lock:
                if not self._closing and not self._maintenance_queued:
                    self._maintenance_queued = True
                    self._queue.append(_OwnerCall(self._maintain))
                    self._schedule_locked()

    def close(self) -> None:
        """Refuse new writes, finish those queued, close the log. Blocks."""
        with self._lock:
            self._closing = True
        with self._committed:
            self._committed.notify_all()
        self._call(self._close_log)

    def run_turn(self) -> None:
        """Take one turn; called by the scheduler, on one thread at a time."""
        work = self._take()
        try:
            if isinstance(work, _OwnerCall):
                self._run_call(work)
            elif work:
                self._commit(work)
        finally:
            with self._lock:
                self._scheduled = False
                if self._queue:
                    self._schedule_locked()

    def _schedule_locked(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._scheduler.schedule(self)

    def _take(self) -> list[Write] | _OwnerCall:
        with self._lock:
            if self._queue and isinstance(self._queue[0], _OwnerCall):
                call = self._queue.popleft()
                assert isinstance(call, _OwnerCall)
                return call
            writes: list[Write] = []
            size = 0
            while self._queue and not isinstance(self._queue[0], _OwnerCall):
                size += self._queue[0].size_bytes
                if writes and size > GROUP_BYTES_MAX:
                    break
                write = self._queue.popleft()
                assert not isinstance(write, _OwnerCall)
                writes.append(write)
                self._queued_bytes -= write.size_bytes
            return writes

    def _commit(self, writes: Sequence[Write]) -> None:
        now_us = self._clock.now_us()
        group = CommitGroup(
            producers=self._producers,
            window=self._window,
            start=self._log.log_end,
            leader_epoch=self.leader_epoch,
            now_us=now_us,
            encode=self._encode,
        )
        for write in writes:
            group.add(write)
        started_s = time.perf_counter()
        failure = self._write(group, now_us) if group.batches else None
        self.counters.duplicate_records += group.duplicates_count
        if failure is not None:
            self.counters.refused_writes += len(writes)
        group.answer(failure)
        if group.batches and failure is None:
            self._on_commit(time.perf_counter() - started_s, group.end - group.start)
            self._watch_segments_if_rolled()

    def _write(self, group: CommitGroup, now_us: int) -> HeadwaterError | None:
        try:
            self._log.append(group.batches, leader_epoch=self.leader_epoch, now_us=now_us)
            assert self._log.log_end == group.end, "the log placed a batch where it was not planned"
            if self.stream.config.flush == "always":
                self._sync()
        except HeadwaterError as error:
            group.roll_back()
            if isinstance(error, LogFailedError | CorruptDataError):
                self._fail(error)
            return error
        size = sum(batch.size for batch in group.batches)
        self.counters.appended_records += group.end - group.start
        self.counters.appended_bytes += size
        self._unshipped_bytes += size
        self._advance()
        return None

    def _sync(self) -> None:
        self._log.sync()
        self.counters.syncs += 1
        self._synced_ms = self._clock.monotonic_ms()

    def _advance(self) -> None:
        interval = self.stream.config.flush == "interval"
        end = self._log.log_end if interval else self._log.synced_end
        if self._leader.step(LogSynced(end)):
            with self._committed:
                self._committed.notify_all()

    def _fail(self, error: HeadwaterError) -> None:
        self.failure = error
        with self._committed:
            self._committed.notify_all()

    def _maintain(self) -> None:
        with self._lock:
            self._maintenance_queued = False
        now_us = self._clock.now_us()
        self._window.expire(now_us)
        config = self.stream.config
        waited_ms = self._clock.monotonic_ms() - self._synced_ms
        if self._log.synced_end < self._log.log_end and waited_ms >= config.flush_interval_ms:
            self._sync()
        self._log.roll_if_due(now_us)
        self._watch_segments_if_rolled()

    def _close_log(self) -> None:
        if self.failure is None:
            self._log.write_producer_state(self._producers.to_state())
        self._log.close()

    # ------------------------------------------------------------------ helpers

    def _call(self, function: Callable[[], Any]) -> Any:
        """Run ``function`` between two groups on the owner's thread; wait; raise what it raised."""
        call = _OwnerCall(function)
        with self._lock:
            self._queue.append(call)
            self._schedule_locked()
        call.finished.wait()
        if call.error is not None:
            raise call.error
        return call.result

    def _run_call(self, call: _OwnerCall) -> None:
        try:
            call.result = call.function()
        except HeadwaterError as error:
            call.error = error
            if isinstance(error, LogFailedError):
                self._fail(error)
        finally:
            call.finished.set()
        self._watch_segments_if_rolled()

    def _watch_segments_if_rolled(self) -> None:
        sealed_count = self._log.sealed_count
        if sealed_count != self._sealed_count:
            self._sealed_count = sealed_count  # here alone: another thread would hide a roll
            self._watch_segments()
            if self.failure is None:
                try:
                    self._log.write_producer_state(self._producers.to_state())
                except LogFailedError as error:  # what was answered is durable; no more is taken
                    self._fail(error)
            self._on_sealed(self.stream)

    def _watch_segments(self) -> None:
        self._unshipped_bytes = sum(
            one.size_bytes for one in self._log.segments() if one.end_offset > self.cold_end
        )

    def _rebuild_tables(self) -> None:
        damaged = self._log.recovery.damaged
        if damaged:
            self.failure = damaged[0]
            return
        self._producers = rebuild_producers(self._log)
        rebuild_window(self._log, self._window, self._clock.now_us(), self.stream.config)
