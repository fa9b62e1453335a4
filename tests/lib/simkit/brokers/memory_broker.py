"""A broker in memory: BrokerApi and PartitionHandle as broker/ports states them, no files.

Commits happen on one thread per partition, in the order of submission, like the real one; tests
may hold them back (:meth:`MemoryPartition.hold`), make them fail, or move the oldest records to
the cold tier (:meth:`MemoryPartition.make_cold`). Everything is lost at the end.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from broker.codec.nats.conditions import wrong_last_sequence
from broker.codec.record_batch import (
    PreparedBatch,
    decode_body,
    decode_header,
    encode_header,
    prepare,
    to_rows,
)
from broker.codec.schema import ROW_SCHEMA
from broker.core.dedup import MessageIdWindow, ProducerTable, find_repeats
from broker.core.metadata.partition_rules import first_lineage
from broker.errors import (
    HeadwaterError,
    OffsetOutOfRangeError,
    OverloadedError,
    ShuttingDownError,
    StreamExistsError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.cut_positions import CutPosition, refusal
from broker.model.epochs import LeaderEpoch
from broker.model.ids import (
    NO_PRODUCER,
    BrokerId,
    LeaseId,
    PartitionId,
    PartitionNumber,
    ProducerId,
    StreamUuid,
)
from broker.model.lineage import first_lineage_id
from broker.model.offsets import Offset, OffsetRange
from broker.model.records import AckPolicy, AppendResult
from broker.model.stream import Stream, StreamConfig
from broker.ports.api import BrokerPlace, PartitionPlace, PartitionStanding
from broker.ports.partition import RecordsOutcome, StoredBatch
from broker.ports.tiering import HeldLease, TierStatus

_EPOCH = LeaderEpoch(1)
_BROKER = BrokerId("memory")


class FakeClock:
    """A wall clock that stands still until a test moves it; monotonic time follows it."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """Return the time that the test chose."""
        return self._now_us

    def monotonic_ms(self) -> int:
        """Return the same instant in milliseconds."""
        return self._now_us // 1000

    def advance(self, *, us: int) -> None:
        """Let time pass."""
        self._now_us += us


@dataclass(frozen=True, slots=True)
class _Pending:
    """One call of submit or submit_records, waiting for its commit."""

    commit: Callable[[], Callable[[], None]]  # appends; returns what tells the caller
    fail: Callable[[HeadwaterError], None]
    batches_count: int


class MemoryPartition:
    """A PartitionHandle over a list of encoded batches."""

    def __init__(
        self, stream: Stream, number: int, clock: FakeClock, queue_batches_max: int
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._queue_batches_max = queue_batches_max
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        self.subject = stream.config.partition_subject(number)
        self.leader_epoch = _EPOCH
        self.leads = True
        self.lost_leadership: HeadwaterError | None = None
        self.log_start = Offset(0)
        self.submits_count = 0
        self.policies: list[AckPolicy] = []  # of each submission; all are committed alike
        self._batches: list[StoredBatch] = []
        self._end = Offset(0)
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

    def fail_next(self, error: HeadwaterError) -> None:
        """Answer the next queued call with ``error``; nothing of it is stored."""
        with self._changed:
            self._failures.append(error)

    def make_cold(self, below: Offset) -> None:
        """Take ``[log_start, below)`` from the local log; it is served by ``read_cold`` only."""
        assert any(batch.header.end_offset == below for batch in self._batches), "batch border only"
        self.log_start = below

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
        """First offset not committed."""
        return self._end

    @property
    def log_end(self) -> Offset:
        """The same: one node has no uncommitted records to show."""
        return self._end

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return whole batches that overlap ``[start, end)``."""
        if start < self.log_start or end > self._end:
            raise OffsetOutOfRangeError(
                f"[{start}, {end}) is outside [{self.log_start}, {self._end})",
                offset=start if start < self.log_start else end,
                start=self.log_start,
                end=self._end,
            )
        return self._overlapping(start, end, bytes_max)

    def _overlapping(self, start: Offset, end: Offset, bytes_max: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        size = 0
        for batch in self._batches:
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
            local = batch.header.base_offset >= self.log_start
            if local and batch.header.max_timestamp_us >= timestamp_us:
                return batch.header.base_offset
        return self._end

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """Block until the high watermark exceeds ``above`` or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._end > above or self._closed, timeout_ms / 1000)
            return self._end

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
        if batch.producer_id == NO_PRODUCER:
            return AppendResult(self._append(batch), batch.records_count, _EPOCH)
        producer = ProducerId(batch.producer_id)
        try:
            known = self._producers.find(producer, batch.base_sequence, batch.records_count)
        except HeadwaterError as error:
            return error
        if known is not None:
            return AppendResult(known, batch.records_count, _EPOCH, duplicate=True)
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
        return base

    def _append_records(self, batch: pa.RecordBatch, ids: Sequence[str | None]) -> RecordsOutcome:
        now_us = self._clock.now_us()
        repeats = find_repeats(self._window, ids, now_us)
        fresh = [
            row for row in range(batch.num_rows) if row not in {**repeats.stored, **repeats.inside}
        ]
        offsets: dict[int, Offset] = dict(repeats.stored)
        if fresh:
            rows = batch.take(pa.array(fresh)) if repeats else batch
            base = self._append(prepare(rows, now_us=now_us, codec=self._stream.config.compression))
            offsets.update({row: Offset(base + place) for place, row in enumerate(fresh)})
        for row, first in repeats.inside.items():
            offsets[row] = offsets[first]
        for row in fresh:
            message_id = ids[row]
            if message_id is not None:
                self._window.add(message_id, offsets[row], now_us)
        self._window.expire(now_us)
        return RecordsOutcome(
            [offsets[row] for row in range(batch.num_rows)],
            frozenset({**repeats.stored, **repeats.inside}),
            self.leader_epoch,
        )


class MemoryBroker:
    """A BrokerApi whose streams, leases and tables are dictionaries."""

    def __init__(self, clock: FakeClock | None = None, *, queue_batches_max: int = 10_000) -> None:
        self.clock = clock or FakeClock()
        self.cluster = "memory"
        self.leases: dict[LeaseId, tuple[str, int]] = {}
        self._lease_owners: dict[LeaseId, tuple[str, int]] = {}
        self.cold_reads: list[OffsetRange] = []
        self._queue_batches_max = queue_batches_max
        self._streams: dict[str, Stream] = {}
        self._partitions: dict[str, list[MemoryPartition]] = {}

    def close(self) -> None:
        """End every commit thread."""
        for partitions in self._partitions.values():
            for partition in partitions:
                partition.close()

    def create_stream(self, name: str, config: StreamConfig) -> Stream:
        """Create a stream; the same name and configuration again is fine."""
        known = self._streams.get(name)
        if known is not None:
            if not config.is_kept_by(known.config):
                raise StreamExistsError(f"stream {name!r} has another configuration", stream=name)
            return known
        stream = Stream(
            name=name,
            uuid=StreamUuid(str(uuid.uuid4())),
            config=config,
            created_us=self.clock.now_us(),
            table_name=name,
        )
        self._partitions[name] = [
            MemoryPartition(stream, number, self.clock, self._queue_batches_max)
            for number in range(config.partitions)
        ]
        self._streams[name] = stream
        return stream

    def delete_stream(self, name: str) -> Stream:
        """Delete a stream and its records."""
        stream = self.stream(name)
        del self._streams[name]
        for partition in self._partitions.pop(name):
            partition.close()
        return stream

    def stream(self, name: str) -> Stream:
        """Return a stream."""
        if name not in self._streams:
            names = sorted(self._streams)
            raise UnknownStreamError(f"no stream {name!r}; there are {names}", stream=name)
        return self._streams[name]

    def streams(self) -> list[Stream]:
        """Return all streams by name."""
        return [self._streams[name] for name in sorted(self._streams)]

    def partition(self, name: str, partition: int) -> MemoryPartition:
        """Return a partition."""
        self.stream(name)
        partitions = self._partitions[name]
        if not 0 <= partition < len(partitions):
            raise UnknownPartitionError(
                f"stream {name!r} has {len(partitions)} partitions, no {partition}",
                stream=name,
                partition=partition,
            )
        return partitions[partition]

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """Take a lease."""
        self.stream(name)
        lease_id = LeaseId(f"{owner}-{len(self.leases)}")
        expires_us = self.clock.now_us() + ttl_ms * 1000
        self.leases[lease_id] = (name, expires_us)
        self._lease_owners[lease_id] = (owner, self.clock.now_us())
        return Lease(lease_id=lease_id, expires_us=expires_us)

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Extend a lease."""
        name, expires_us = self.leases.get(lease_id, ("", 0))
        if expires_us <= self.clock.now_us():
            raise UnknownLeaseError(f"lease {lease_id!r} has ended", lease_id=lease_id)
        expires_us = self.clock.now_us() + ttl_ms * 1000
        self.leases[lease_id] = (name, expires_us)
        return Lease(lease_id=lease_id, expires_us=expires_us)

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease."""
        self.leases.pop(lease_id, None)

    def live_leases(self, name: str) -> list[HeldLease]:
        """Return the leases on a stream that have not ended."""
        return [
            HeldLease(
                lease_id=lease_id,
                owner=self._lease_owners[lease_id][0],
                taken_us=self._lease_owners[lease_id][1],
                expires_us=expires_us,
            )
            for lease_id, (stream, expires_us) in self.leases.items()
            if stream == name and expires_us > self.clock.now_us()
        ]

    def cut(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """Take a cut under a new lease."""
        lease = self.take_lease(name, owner=owner, ttl_ms=ttl_ms)
        stream = self.stream(name)
        partitions = self._partitions[name]
        cold = any(partition.log_start for partition in partitions)
        return Cut(
            cluster=self.cluster,
            stream=name,
            stream_uuid=stream.uuid,
            subject=stream.config.subject,
            table_uri=f"memory://{stream.table_name}",
            table_version=1 if cold else None,
            partitions=tuple(
                PartitionCut(
                    partition=number,
                    start=Offset(0),
                    cold_end=partition.log_start,
                    hot_end=partition.high_watermark,
                    leader_epoch=partition.leader_epoch,
                    lineage_id=first_lineage_id(stream.uuid, number),
                )
                for number, partition in enumerate(partitions)
            ),
            taken_us=self.clock.now_us(),
            lease=lease,
        )

    def check_cut(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """Refuse cuts of other histories, as a broker does that never lost its own."""
        stream = self.stream(name)
        if stream.uuid != stream_uuid:
            raise StreamRecreatedError(f"{name!r} is now {stream.uuid}", expected=stream_uuid)
        lineages = [
            first_lineage(first_lineage_id(stream.uuid, number))
            for number in range(stream.config.partitions)
        ]
        refused = refusal(name, lineages, positions, believe_forgotten=believe_forgotten)
        if refused is not None:
            raise refused

    def cold_offset_at(
        self, name: str, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """Look through the rows: a table without statistics."""
        columns = pa.schema([ROW_SCHEMA.field("offset"), ROW_SCHEMA.field("timestamp")])
        for batch in self.read_cold(name, partition, start, end, columns):
            for offset, stamp in zip(*batch.to_pydict().values(), strict=True):
                if round(stamp.timestamp() * 1_000_000) >= timestamp_us:
                    return Offset(offset)
        return None

    def read_cold(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``[start, end)`` from before the local log's start."""
        handle = self.partition(name, partition)
        assert end <= handle.log_start, "a cold read of local records"
        self.cold_reads.append(OffsetRange(start, end))
        for batch in handle._overlapping(start, end, 1 << 62):
            header = batch.header
            low, high = max(start, header.base_offset), min(end, header.end_offset)
            body = decode_body(header, batch.body)
            part = body.slice(low - header.base_offset, high - low)
            yield to_rows(
                replace(header, base_offset=low),
                part,
                partition=partition,
                subject=handle.subject,
                schema=schema,
            )

    def tier_status(self, name: str) -> list[TierStatus]:
        """Return how much of each partition is cold."""
        self.stream(name)
        return [
            TierStatus(
                partition=number,
                cold=OffsetRange(Offset(0), partition.log_start),
                local_start=partition.log_start,
                high_watermark=partition.high_watermark,
                unshipped_bytes=0,
                last_error=None,
                last_shipped_us=None,
            )
            for number, partition in enumerate(self._partitions[name])
        ]

    def table_start(self, name: str, partition: int) -> Offset | None:
        """Return where the cold part begins, if there is one."""
        return Offset(0) if self._partitions[name][partition].log_start else None

    def brokers(self) -> list[BrokerPlace]:
        """Return this one."""
        return [BrokerPlace(broker=_BROKER, flight=None, alive=True)]

    def places(self, name: str) -> list[PartitionPlace]:
        """Return that everything is here."""
        self.stream(name)
        return [
            PartitionPlace(
                partition=number,
                leader=_BROKER,
                leader_epoch=partition.leader_epoch,
                replicas=(_BROKER,),
                isr=(_BROKER,),
            )
            for number, partition in enumerate(self._partitions[name])
        ]

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """Return what is committed."""
        found = self.partition(name, partition)
        return PartitionStanding(found.log_start, found.high_watermark, found.leader_epoch)

    def history_position(self, name: str, partition: int) -> CutPosition:
        """Return what is committed; there was one leadership only."""
        found = self.partition(name, partition)
        lineage_id = first_lineage_id(self.stream(name).uuid, partition)
        return CutPosition(lineage_id, found.high_watermark)

    def tier_flush(self, name: str, *, timeout_ms: int) -> list[TierStatus]:
        """Make everything that is committed cold."""
        self.stream(name)
        for partition in self._partitions[name]:
            partition.log_start = partition.high_watermark
        return self.tier_status(name)


def records(values: Sequence[bytes | None], **columns: Any) -> pa.RecordBatch:
    """Return a producer's batch of these values, and of further columns by name."""
    arrays = {"value": pa.array(values, pa.binary()), **columns}
    return pa.RecordBatch.from_pydict(arrays)


def numbered(start: int, count: int, *, value_bytes: int = 16) -> pa.RecordBatch:
    """Return ``count`` records whose values are their numbers, padded with zeros on the left."""
    texts = np.char.zfill(np.arange(start, start + count).astype(str), value_bytes)
    return records([text.encode() for text in texts.tolist()])
