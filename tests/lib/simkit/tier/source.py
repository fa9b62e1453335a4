"""A partition's log and a broker's catalog as tiering sees them, in memory.

The log outlives a "crash" of what ships it, like a disk. It keeps the truth: every row it ever
held, also after its segments were freed. Records are a function of the seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa

from broker.codec.record_batch import decode_body, decode_header, encode_header, prepare, to_rows
from broker.codec.schema import HEADERS_TYPE, ROW_SCHEMA
from broker.errors import HeadwaterError, HeldByLeaseError, OffsetOutOfRangeError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.lineage import Leadership, Lineage, begun, first_lineage_id
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import SegmentInfo, StoredBatch
from broker.ports.tiering import RetentionStanding, TierSource

UUID = StreamUuid("0b5e0f3e-5a0c-4c7c-9a54-1f1f5a6b7c8d")
FIRST_US = 1_700_000_000_000_000
TIMESTAMP_US_LAST = 253_402_300_799_999_999  # the last microsecond of the year 9999


def make_stream(
    *, name: str = "orders", partitions: int = 1, uuid: str = UUID, table_name: str | None = None
) -> Stream:
    """Return a stream that listens to a subject of its own name."""
    return Stream(
        name=name,
        uuid=StreamUuid(uuid),
        config=StreamConfig(subject=name, partitions=partitions),
        created_us=FIRST_US,
        table_name=table_name or name,
    )


@dataclass
class _Segment:
    base: int
    batches: list[StoredBatch] = field(default_factory=list)
    sealed: bool = False

    @property
    def end(self) -> int:
        return self.batches[-1].header.end_offset if self.batches else self.base


class MemoryRemoteStarts:
    """Implements ``RemoteStarts`` for one partition: the metadata's part of an expiry."""

    def __init__(self, source: MemoryTierSource, config: StreamConfig) -> None:
        self.source = source
        self.config = config
        self.remote_start = Offset(0)
        self.lease_us: int | None = None  # when the oldest lease was taken
        self.held_at: int | None = None  # the lowest offset that a lease holds
        self.decided: list[tuple[int, bool]] = []  # every decision: remote start, done already
        self.deleted = False  # the stream is gone

    def is_there(self, partition: PartitionId) -> bool:
        """See the port."""
        return partition == self.source.partition_id and not self.deleted

    def standing(self, partition: PartitionId) -> RetentionStanding | None:
        """See the port."""
        assert partition == self.source.partition_id
        cold_end = self.source.cold_end
        held = cold_end if self.held_at is None else Offset(min(self.held_at, cold_end))
        return RetentionStanding(
            config=self.config, cold_end=cold_end, remote_start=self.remote_start, limit=held
        )

    def oldest_lease_us(self, partition: PartitionId) -> int | None:
        """See the port."""
        assert partition == self.source.partition_id
        return self.lease_us

    def expire(
        self, partition: PartitionId, before: Offset, leader_epoch: LeaderEpoch, *, is_done: bool
    ) -> Offset:
        """See the port."""
        assert (partition, leader_epoch) == (self.source.partition_id, self.source.epoch)
        if self.held_at is not None and before > self.held_at and not is_done:
            raise HeldByLeaseError("held", owners=["o"], lease_ids=[], floor=self.held_at)
        if before > self.remote_start:
            self.remote_start = before
            self.decided.append((int(before), is_done))
        return self.remote_start


class MemoryTierSource:
    """Implements ``TierSource``; any thread.

    The class is not split: it has a method for each one of the port ``TierSource``, and a few by
    which a test fills and damages it.
    """

    def __init__(self, stream: Stream, partition: int = 0, *, seed: int = 1) -> None:
        self.stream = stream
        self._partition_id = PartitionId(stream.uuid, PartitionNumber(partition))
        self._subject = stream.config.partition_subject(partition)
        self._random = random.Random(f"{seed}/{partition}")
        self._lock = threading.RLock()
        self._segments = [_Segment(0)]
        self._truth: list[pa.RecordBatch] = []
        self._committed: int | None = None
        self.recorded: list[int] = []  # every cold end the metadata was told, in order
        self.epoch = 1
        self.refused: HeadwaterError | None = None
        self.admitted: list[str] = []
        self.learned = Offset(0)  # the remote start that the replica was told
        self.starts = MemoryRemoteStarts(self, stream.config)
        first = first_lineage_id(self._partition_id.stream_uuid, self._partition_id.number)
        self.lineage: Lineage = (
            Leadership(leader_epoch=LeaderEpoch(1), lineage_id=first, start=Offset(0)),
        )

    # ------------------------------------------------------------------------------ the test's

    def append(self, records_count: int, *, batch_records: int = 7) -> None:
        """Append records in small batches of various shapes."""
        with self._lock:
            left = records_count
            while left > 0:
                count = min(left, batch_records)
                self._append_batch(count)
                left -= count

    def fill(self, segments: int, records_each: int) -> None:
        """Append whole sealed segments."""
        for _ in range(segments):
            self.append(records_each)
            self.seal_active()

    def hold_committed_at(self, offset: int | None) -> None:
        """Keep the high watermark at an offset; None lets it follow the log's end again."""
        self._committed = offset

    def lead_again(self) -> None:
        """Begin a new leadership, as a restart does."""
        self.epoch += 1
        leadership = Leadership(
            leader_epoch=LeaderEpoch(self.epoch), lineage_id=uuid4().hex, start=self.log_end
        )
        self.lineage = begun(self.lineage, leadership)

    def copied(self, *, seed: int = 2) -> MemoryTierSource:
        """Return a copy of all of it, as of a data folder; what either appends is its own."""
        twin = copy(self)
        twin._random = random.Random(f"{seed}/{self._partition_id.number}")
        twin._lock = threading.RLock()
        twin._segments = [replace(one, batches=list(one.batches)) for one in self._segments]
        twin._truth = list(self._truth)
        twin.recorded = list(self.recorded)
        twin.admitted = []
        twin.starts = copy(self.starts)
        twin.starts.source = twin
        return twin

    def free_local(self) -> None:
        """Drop all sealed segments below the recorded cold end, as local retention would."""
        with self._lock:
            self._segments = [
                one for one in self._segments if not (one.sealed and one.end <= self.cold_end)
            ]

    def damage(self, offset: int) -> None:
        """Flip one bit in the body of the batch that holds an offset."""
        with self._lock:
            for segment in self._segments:
                for at, batch in enumerate(segment.batches):
                    if batch.header.base_offset <= offset < batch.header.end_offset:
                        body = bytearray(batch.body)
                        body[len(body) // 2] ^= 1
                        segment.batches[at] = StoredBatch(batch.header, bytes(body))

    def truth(self, start: int = 0, end: int | None = None) -> pa.Table:
        """Return the rows as they must be read, of ROW_SCHEMA."""
        rows = pa.Table.from_batches(self._truth, ROW_SCHEMA)
        return rows.slice(start, (len(rows) if end is None else end) - start)

    # ------------------------------------------------------------------------------ TierSource

    @property
    def reads(self) -> MemoryTierSource:
        """See ``TierSource.reads``."""
        return self

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition."""
        return self._partition_id

    @property
    def subject(self) -> str:
        """The partition's subject."""
        return self._subject

    @property
    def purged_end(self) -> Offset:
        """See ``PartitionReader.purged_end``."""
        return Offset(0)

    @property
    def remote_start(self) -> Offset:
        """See ``PartitionReader.remote_start``."""
        return self.starts.remote_start

    @property
    def log_start(self) -> Offset:
        """First offset still here."""
        with self._lock:
            return Offset(self._segments[0].base)

    @property
    def whole_start(self) -> Offset:
        """See ``PartitionReader.whole_start``."""
        return self.log_start

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed."""
        return self.log_end if self._committed is None else Offset(self._committed)

    @property
    def log_end(self) -> Offset:
        """First offset not written."""
        with self._lock:
            return Offset(self._segments[-1].end)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Current leader epoch."""
        return LeaderEpoch(self.epoch)

    @property
    def cold_end(self) -> Offset:
        """The cold end that was recorded last."""
        return Offset(self.recorded[-1] if self.recorded else 0)

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, the last one active."""
        with self._lock:
            return [
                SegmentInfo(
                    base_offset=Offset(one.base),
                    end_offset=Offset(one.end),
                    size_bytes=sum(batch.header.size for batch in one.batches),
                    max_timestamp_us=0,
                    sealed=one.sealed,
                )
                for one in self._segments
            ]

    def seal_active(self) -> None:
        """Seal the active segment if it holds records."""
        with self._lock:
            active = self._segments[-1]
            if active.batches:
                active.sealed = True
                self._segments.append(_Segment(active.end))

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return whole batches that overlap a range."""
        with self._lock:
            if not self.log_start <= start <= end <= self.log_end:
                raise OffsetOutOfRangeError("not here", offset=start)
            found: list[StoredBatch] = []
            size = 0
            for segment in self._segments:
                for batch in segment.batches:
                    if batch.header.end_offset <= start or batch.header.base_offset >= end:
                        continue
                    if found and size + batch.header.size > bytes_max:
                        return found
                    found.append(batch)
                    size += batch.header.size
            return found

    def offset_at(self, timestamp_us: int) -> Offset:
        """Not needed by tiering."""
        raise NotImplementedError

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """Return at once."""
        return self.high_watermark

    def learn_expired(self, remote_start: Offset) -> None:
        """See ``TierSource.learn_expired``."""
        self.learned = remote_start

    def admit(self, lineage_id: str) -> None:
        """Remember the admitted lineage."""
        self.admitted.append(lineage_id)

    def refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        """Remember why, if it is about the present leadership."""
        if self.lineage and self.lineage[-1].lineage_id == lineage_id:
            self.refused = error

    def record_cold_end(self, cold_end: Offset) -> None:
        """Record a cold end by the metadata's rules: only forward, only committed."""
        assert self.cold_end < cold_end <= self.high_watermark, "a cold end that is not allowed"
        self.recorded.append(int(cold_end))

    # ------------------------------------------------------------------------------ inside

    def _append_batch(self, count: int) -> None:
        dice = self._random
        base = int(self.log_end)
        columns: dict[str, pa.Array] = {
            "timestamp": pa.array(
                [FIRST_US + 1_000 * (base + at) + dice.randrange(1_500) for at in range(count)]
            ),
            "value": pa.array(
                [None if dice.random() < 0.1 else dice.randbytes(dice.randrange(40))
                 for _ in range(count)], pa.binary(),
            ),
        }  # fmt: skip
        if dice.random() < 0.7:
            columns["key"] = pa.array(
                [dice.choice([None, b"", b"a", b"bb"]) for _ in range(count)], pa.binary()
            )
        if dice.random() < 0.5:
            entries = [None, [], [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]]
            columns["headers"] = pa.array(
                [dice.choice(entries) for _ in range(count)], HEADERS_TYPE
            )
        if dice.random() < 0.3:
            columns["subject"] = pa.array([dice.choice([None, "else.where"]) for _ in range(count)])
            columns["subject"] = columns["subject"].cast(pa.string())
        prepared = prepare(pa.RecordBatch.from_pydict(columns), now_us=FIRST_US)
        header = decode_header(
            encode_header(prepared, base_offset=base, leader_epoch=self.epoch, synced_end=base)
        )
        body = bytes(prepared.body)
        self._segments[-1].batches.append(StoredBatch(header, body))
        self._truth.append(
            to_rows(
                header,
                decode_body(header, body),
                partition=self._partition_id.number,
                subject=self._subject,
            )
        )


class MemoryTierCatalog:
    """Implements ``TierCatalog``."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[Stream, list[MemoryTierSource]]] = {}
        self._callbacks: list[Callable[[PartitionId], None]] = []

    def add(self, stream: Stream, *, seed: int = 1) -> list[MemoryTierSource]:
        """Add a stream with empty logs; return its partitions."""
        sources = [
            MemoryTierSource(stream, number, seed=seed)
            for number in range(stream.config.partitions)
        ]
        self._streams[stream.uuid] = (stream, sources)
        return sources

    def copied(self) -> MemoryTierCatalog:
        """Return a copy of all logs, as of a data folder."""
        twin = MemoryTierCatalog()
        for uuid, (stream, sources) in self._streams.items():
            twin._streams[uuid] = (stream, [one.copied() for one in sources])
        return twin

    def of(self, stream: Stream) -> list[MemoryTierSource]:
        """Return a stream's partitions."""
        return self._streams[stream.uuid][1]

    def remove(self, stream: Stream) -> None:
        """Forget a stream, as after its deletion."""
        del self._streams[stream.uuid]

    def seal(self, stream: Stream) -> None:
        """Seal every partition's active segment and say so."""
        for source in self._streams[stream.uuid][1]:
            source.seal_active()
            for callback in self._callbacks:
                callback(source.partition_id)

    def streams(self) -> list[Stream]:
        """Return the streams."""
        return [stream for stream, _ in self._streams.values()]

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return a stream's partitions."""
        found = self._streams.get(stream.uuid)
        return [] if found is None else list(found[1])

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return the lineages of the partition's log."""
        assert refreshed in (False, True)
        source = self._streams[partition.stream_uuid][1][partition.number]
        return source.lineage, source.cold_end

    def cold_ends(self, stream: StreamUuid) -> Mapping[int, Offset]:
        """Return the recorded cold ends of a stream's partitions."""
        found = self._streams.get(stream)
        return {} if found is None else {n: one.cold_end for n, one in enumerate(found[1])}

    @property
    def remote_starts(self) -> MemoryTierCatalog:
        """See ``TierCatalog.remote_starts``."""
        return self

    def is_there(self, partition: PartitionId) -> bool:
        """See ``RemoteStarts.is_there``."""
        return self._starts(partition).is_there(partition)

    def standing(self, partition: PartitionId) -> RetentionStanding | None:
        """See ``RemoteStarts.standing``."""
        return self._starts(partition).standing(partition)

    def oldest_lease_us(self, partition: PartitionId) -> int | None:
        """See ``RemoteStarts.oldest_lease_us``."""
        return self._starts(partition).oldest_lease_us(partition)

    def expire(
        self, partition: PartitionId, before: Offset, leader_epoch: LeaderEpoch, *, is_done: bool
    ) -> Offset:
        """See ``RemoteStarts.expire``."""
        return self._starts(partition).expire(partition, before, leader_epoch, is_done=is_done)

    def _starts(self, partition: PartitionId) -> MemoryRemoteStarts:
        return self._streams[partition.stream_uuid][1][partition.number].starts

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return a partition."""
        found = self._streams.get(partition.stream_uuid)
        return None if found is None else (found[0], found[1][partition.number])

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Leaderships are found by looking."""

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Register a callback."""
        self._callbacks.append(callback)
