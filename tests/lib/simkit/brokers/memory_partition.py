"""A partition in memory: PartitionHandle as broker/ports states it, no files.

Commits happen on one thread per partition, in the order of submission, like the real one; tests
may hold them back (:meth:`MemoryPartition.hold`), make them fail, or move the oldest records to
the cold tier (:meth:`MemoryPartition.make_cold`). Everything is lost at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from broker.codec.nats.conditions import wrong_last_sequence
from broker.codec.record_batch import (
    PreparedBatch,
    decode_body,
    decode_header,
    encode_header,
    offsets_of,
    prepare,
)
from broker.codec.sparse import Survivors, encode_sparse
from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow, digests_of, find_repeats
from broker.errors import (
    HeadwaterError,
    OffsetOutOfRangeError,
    OverloadedError,
    ShuttingDownError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import (
    NO_PRODUCER,
    PartitionId,
    PartitionNumber,
    ProducerId,
)
from broker.model.offsets import Offset
from broker.model.purge import purged_error
from broker.model.records import AckPolicy, AppendResult
from broker.model.stopped import stopped_error
from broker.model.stream import Stream
from broker.ports.partition import RecordsOutcome, StoredBatch, WriteOrder
from broker.ports.system import Clock
from broker.runtime.partition.groups import placed_by_fewer

_EPOCH = LeaderEpoch(1)


@dataclass(frozen=True, slots=True)
class _Pending:
    """One call of submit or submit_records, waiting for its commit."""

    commit: Callable[[], Callable[[], None]]  # appends; returns what tells the caller
    fail: Callable[[HeadwaterError], None]
    batches_count: int


class MemoryPartition:
    """A PartitionHandle over a list of encoded batches.

    The class is not split: it has the methods of the ports that it stands for.
    """

    def __init__(self, stream: Stream, number: int, clock: Clock, queue_batches_max: int) -> None:
        self.config = stream.config
        self._stream_name = stream.name
        self._clock = clock
        self._queue_batches_max = queue_batches_max
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        self.subject = stream.config.partition_subject(number)
        self.leader_epoch = _EPOCH
        self.leads = True
        self.keeps_order = False
        self.lost_leadership: HeadwaterError | None = None
        self.is_paused = self.is_readonly = self.resumes_all = False
        self.received_us = 0, 0
        self.pause_us = self.readonly_us = (0, 0)
        self.followers_count = 0
        self.log_start = self.purged_end = Offset(0)
        self.remote_start = Offset(0)  # only LakeBroker lets records expire
        self.submits_count = 0
        self.policies: list[AckPolicy] = []  # of each submission; all are committed alike
        self._batches: list[StoredBatch] = []
        self._sparse_end = Offset(0)
        self._thinned: list[StoredBatch] = []  # batches as they were before key compaction
        self._end = Offset(0)
        self._known_end: Offset | None = None
        self.told_end: Offset | HeadwaterError | None = None  # what the leader tells, if another
        self.is_fenced = False  # a leader whose lease has ended
        self._producers = ProducerTable()
        self._window = MessageIdWindow(
            window_us=stream.config.dedup_window_ms * 1000, ids_max=stream.config.dedup_ids_max
        )
        self._changed = threading.Condition()
        self._queue: list[_Pending] = []
        self._held = False
        self._closed = False
        self._failures: list[HeadwaterError] = []
        self._thread = threading.Thread(target=self._commit_all, name="memory-commit", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what tests do to it

    def hold(self) -> None:
        """Let nothing be committed until :meth:`release`."""
        with self._changed:
            self._held = True

    def release(self) -> None:
        """Commit again."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def know(self, end: Offset | None) -> None:
        """Let the high watermark stay at an offset; None: at the end of the log again."""
        with self._changed:
            self._known_end = end
            self._changed.notify_all()

    def fail_next(self, error: HeadwaterError) -> None:
        """Answer the next queued call with ``error``; nothing of it is stored."""
        with self._changed:
            self._failures.append(error)

    def make_cold(self, below: Offset) -> None:
        """Take ``[log_start, below)`` from the local log; it is served by ``read_cold`` only."""
        assert any(batch.header.end_offset == below for batch in self._batches), "batch border only"
        self.log_start = below

    def compact(self, below: Offset, left: Collection[int]) -> None:
        """Leave, of the records of whole batches below an offset, those at the offsets ``left``."""
        with self._changed:
            thinned = [one for one in self._batches if one.header.end_offset <= below]
            self._thinned += [one for one in thinned if not one.header.sparse]
            self._sparse_end = thinned[-1].header.end_offset
            kept = []
            for one in thinned:
                body = decode_body(one.header, one.body)
                offsets = offsets_of(one.header, body)
                stays = np.isin(offsets, list(left))
                kept.append(Survivors(offsets[stays], body.filter(pa.array(stays))))
            sparse = encode_sparse(thinned[0].header, self._sparse_end, kept)
            self._batches[: len(thinned)] = [StoredBatch(*sparse)]

    def purge(self, before: Offset) -> Offset:
        """Delete the records below an offset; return where the deleted ones began."""
        start, self.purged_end = self.purged_end, max(self.purged_end, before)
        self.log_start = max(self.log_start, self.purged_end)
        return start

    def rewrite_last(self, epoch: LeaderEpoch) -> None:
        """Put another leader's batch where the last one was, as after an unclean election."""
        with self._changed:
            last = self._batches[-1]
            self._batches[-1] = replace(last, header=replace(last.header, leader_epoch=epoch))
            self.leader_epoch = epoch

    def close(self) -> None:
        """Fail what waits and end the commit thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=10)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """See ``PartitionHandle.followed``."""
        self.followers_count += 1
        try:
            yield
        finally:
            self.followers_count -= 1

    @property
    def reads(self) -> MemoryPartition:
        """See ``PartitionHandle.reads``."""
        return self

    @property
    def writes(self) -> MemoryPartition:
        """See ``PartitionHandle.writes``."""
        return self

    # ------------------------------------------------------------------ PartitionReader

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed, as far as this replica knows."""
        return self._end if self._known_end is None else self._known_end

    @property
    def whole_start(self) -> Offset:
        """See ``PartitionReader.whole_start``."""
        return max(self.log_start, self._sparse_end)

    @property
    def log_end(self) -> Offset:
        """First offset not written; :meth:`know` parts it from the high watermark."""
        return self._end

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return whole batches that overlap ``[start, end)``."""
        if start < self.purged_end:
            raise purged_error("memory", start, start=self.purged_end, end=self._end)
        if start < self.log_start or end > self._end:
            raise OffsetOutOfRangeError(
                f"[{start}, {end}) is outside [{self.log_start}, {self._end})",
                offset=start if start < self.log_start else end,
                start=self.log_start,
                end=self._end,
            )
        return self._overlapping(start, end, bytes_max)

    def read_cold(self, start: Offset, end: Offset) -> list[StoredBatch]:
        """Return what a table has: the batches as they were written."""
        dense = [one for one in self._batches if not one.header.sparse]
        return self._overlapping(start, end, 1 << 62, [*self._thinned, *dense])

    def _overlapping(
        self,
        start: Offset,
        end: Offset,
        bytes_max: int,
        batches: Sequence[StoredBatch] | None = None,
    ) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        size = 0
        for batch in self._batches if batches is None else batches:
            if batch.header.end_offset <= start:
                continue
            if batch.header.base_offset >= end or (found and size + batch.header.size > bytes_max):
                break
            found.append(batch)
            size += batch.header.size
        return found

    def offset_at(self, timestamp_us: int) -> Offset:
        """Return the first local offset whose batch reaches the time, else the log end."""
        for batch in self._batches:
            local = batch.header.end_offset > self.log_start
            if local and batch.header.max_timestamp_us >= timestamp_us:
                return max(batch.header.base_offset, self.log_start)
        return self._end

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """Block until the high watermark exceeds ``above`` or time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.high_watermark > above or self._closed, timeout_ms / 1000
            )
            if self._closed and self.high_watermark <= above:
                raise ShuttingDownError("the broker is closing")
            return self.high_watermark

    # ------------------------------------------------------------------ PartitionWriter

    def submit(
        self,
        batches: Sequence[PreparedBatch],
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],
        *,
        may_block: bool = False,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """Queue batches for the commit thread, also for a caller that would wait."""
        self.policies.append(policy)

        def commit() -> Callable[[], None]:
            outcomes = [self._append_once(batch) for batch in batches]
            return lambda: done(outcomes)

        def fail(error: HeadwaterError) -> None:
            done([error] * len(batches))

        self._enqueue(_Pending(commit, fail, len(batches)))

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Callable[[RecordsOutcome | HeadwaterError], None],
        *,
        policy: AckPolicy = AckPolicy.ALL,
        expected_end: Offset | None = None,
        order: WriteOrder | None = None,
    ) -> None:
        """Queue rows for the commit thread, repeated message ids left out."""
        self.policies.append(policy)
        ids: Sequence[str | None] = message_ids or [None] * batch.num_rows

        def commit() -> Callable[[], None]:
            outcome: RecordsOutcome | HeadwaterError
            if expected_end not in (None, self._end):
                outcome = wrong_last_sequence(self._end)
            else:
                outcome = self._append_records(batch, ids)
            return lambda: done(outcome)

        self._enqueue(_Pending(commit, done, 1))

    def _enqueue(self, pending: _Pending) -> None:
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the broker is closing")
            stopped = stopped_error(
                self._stream_name,
                self.partition_id.number,
                paused=self.is_paused,
                readonly=self.is_readonly,
            )
            if stopped is not None:
                raise stopped
            waiting = sum(other.batches_count for other in self._queue)
            if waiting + pending.batches_count > self._queue_batches_max:
                raise OverloadedError("the commit queue is full", limit=self._queue_batches_max)
            self.submits_count += 1
            self._queue.append(pending)
            self._changed.notify_all()

    def _commit_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._queue and not self._held))
                queue, self._queue = self._queue, []
                if self._closed:
                    break
                tells = [self._commit_one(pending) for pending in queue]
                self._changed.notify_all()
            for tell in tells:
                tell()
        for pending in queue:
            pending.fail(ShuttingDownError("the broker is closing"))

    def _commit_one(self, pending: _Pending) -> Callable[[], None]:
        if self._failures:
            error = self._failures.pop(0)
            return lambda: pending.fail(error)
        return pending.commit()

    def _append_once(self, batch: PreparedBatch) -> AppendResult | HeadwaterError:
        late = placed_by_fewer(batch, self.config.partitions)
        if batch.producer_id == NO_PRODUCER:
            return late or AppendResult(self._append(batch), batch.records_count, _EPOCH)
        producer = ProducerId(batch.producer_id)
        try:
            known = self._producers.find(producer, batch.base_sequence, batch.records_count)
        except HeadwaterError as error:
            return late or error
        if known is not None:
            return AppendResult(known, batch.records_count, _EPOCH, duplicate=True)
        if late is not None:
            return late
        offset = self._append(batch)
        self._producers.add(producer, batch.base_sequence, batch.records_count, offset)
        return AppendResult(offset, batch.records_count, _EPOCH)

    def _append(self, batch: PreparedBatch) -> Offset:
        base = self._end
        header = encode_header(
            batch, base_offset=base, leader_epoch=self.leader_epoch, synced_end=base
        )
        self._batches.append(StoredBatch(decode_header(header), bytes(batch.body)))
        self._end = Offset(base + batch.records_count)
        now_us = self._clock.now_us()
        self.received_us = self.received_us[0] or now_us, now_us
        return base

    def _append_records(self, batch: pa.RecordBatch, ids: Sequence[str | None]) -> RecordsOutcome:
        now_us = self._clock.now_us()
        digests = digests_of(ids)
        repeats = find_repeats(self._window, digests, now_us)
        fresh = [
            row for row in range(batch.num_rows) if row not in {**repeats.stored, **repeats.inside}
        ]
        offsets: dict[int, Offset] = dict(repeats.stored)
        if fresh:
            rows = batch.take(pa.array(fresh)) if repeats else batch
            base = self._append(prepare(rows, now_us=now_us, codec=self.config.compression))
            offsets.update({row: Offset(base + place) for place, row in enumerate(fresh)})
        for row, first in repeats.inside.items():
            offsets[row] = offsets[first]
        for row in fresh:
            digest = digests[row]
            if digest is not None:
                self._window.add(digest, offsets[row], now_us)
        self._window.expire(now_us)
        return RecordsOutcome(
            [offsets[row] for row in range(batch.num_rows)],
            frozenset({**repeats.stored, **repeats.inside}),
            self.leader_epoch,
        )
