"""A broker in memory: BrokerApi as broker/ports states it, no files; all is lost at the end.

The file is not split: it is one class, and the clock and partitions that the class is made of.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from broker.codec.record_batch import (
    decode_body,
    to_rows,
)
from broker.codec.schema import ROW_SCHEMA
from broker.core.metadata.partition_rules import first_lineage
from broker.core.metadata.stream_alter import refused_change
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    NotShippedError,
    OffsetOutOfRangeError,
    StreamExistsError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.cut_positions import CutPosition, refusal
from broker.model.ids import (
    BrokerId,
    LeaseId,
    StreamUuid,
)
from broker.model.lineage import first_lineage_id
from broker.model.offsets import Offset, OffsetRange
from broker.model.purge import Purged
from broker.model.stream import AlteredStream, Stream, StreamConfig
from broker.model.tiering import HeldLease, StreamRemains, TierStatus
from broker.ports.api import BrokerPlace, PartitionPlace, PartitionStanding
from broker.ports.partition import PartitionWriter
from broker.ports.tiering import ColdRows
from broker.runtime.api.groups import Cursors, Groups
from broker.runtime.api.members import Members
from broker.runtime.stream_keys import StreamKeys
from simkit.brokers.memory_partition import MemoryPartition
from simkit.memory_metadata import MemoryMetadata

_BROKER = BrokerId("memory")


class FakeClock:
    """A wall clock that stands still until a test moves it; monotonic time follows it."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._set_forward_us = 0

    def now_us(self) -> int:
        """Return the time that the test chose."""
        return self._now_us

    def monotonic_ms(self) -> int:
        """Return the same instant in milliseconds."""
        return (self._now_us - self._set_forward_us) // 1000

    def advance(self, *, us: int) -> None:
        """Let time pass."""
        self._now_us += us

    def set_forward(self, *, us: int) -> None:
        """Set the time of day forward, or back (negative): no time passes."""
        self._now_us += us
        self._set_forward_us += us


class MemoryBroker:
    """A BrokerApi whose streams, leases and tables are dictionaries.

    The class is not split: it has a method for each one of the ports that ``BrokerApi`` joins, over
    the same dictionaries.
    """

    def __init__(self, clock: FakeClock | None = None, *, queue_batches_max: int = 10_000) -> None:
        self.clock = clock or FakeClock()
        self.cluster = "memory"
        self.leases: dict[LeaseId, tuple[str, int]] = {}
        self._lease_owners: dict[LeaseId, tuple[str, int]] = {}
        self.cold_reads: list[OffsetRange] = []
        self.refuses_purges: dict[int, HeadwaterError] = {}  # by partition
        self._queue_batches_max = queue_batches_max
        self.keys: StreamKeys | None = None  # data keys of encrypted streams; records stay plain
        self._streams: dict[str, Stream] = {}
        self._partitions: dict[str, list[MemoryPartition]] = {}
        self.metadata = MemoryMetadata(_BROKER)
        self.cursors = Cursors(self.metadata)
        self.groups = Groups(_BROKER, self.metadata, self.clock)
        self.members = Members(_BROKER, self.metadata, self.clock, self.groups)

    @property
    def streams(self) -> Self:
        """See ``BrokerApi.streams``; this broker plays all its parts itself."""
        return self

    @property
    def partitions(self) -> Self:
        """See ``BrokerApi.partitions``."""
        return self

    @property
    def pauses(self) -> Self:
        """See ``BrokerApi.pauses``."""
        return self

    @property
    def cuts(self) -> Self:
        """See ``BrokerApi.cuts``."""
        return self

    @property
    def cold(self) -> Self:
        """See ``BrokerApi.cold``."""
        return self

    def close(self) -> None:
        """End every commit thread."""
        for partitions in self._partitions.values():
            for partition in partitions:
                partition.close()

    def create(self, name: str, config: StreamConfig, *, exclusive: bool = False) -> Stream:
        """Create a stream; the same again is fine, unless ``exclusive``."""
        known = self._streams.get(name)
        if known is not None:
            if exclusive:
                raise StreamExistsError(f"stream {name!r} already exists", stream=name)
            if not config.is_kept_by(known.config):
                raise StreamExistsError(f"stream {name!r} has another configuration", stream=name)
            return known
        stream_uuid = StreamUuid(str(uuid.uuid4()))
        encrypts = self.keys is not None and config.encryption != "none"
        stream = Stream(
            name=name,
            uuid=stream_uuid,
            data_keys=self.keys.first(stream_uuid) if self.keys is not None and encrypts else (),
            config=config,
            created_us=self.clock.now_us(),
            table_name=name,
        )
        self._partitions[name] = [
            MemoryPartition(stream, number, self.clock, self._queue_batches_max)
            for number in range(config.partitions)
        ]
        self._streams[name] = stream
        self.metadata.note(name, stream)
        return stream

    def alter(
        self, name: str, changes: Mapping[str, Any], *, dry_run: bool = False
    ) -> AlteredStream:
        """Change the settings of a stream."""
        before = self.get(name)
        config = StreamConfig.from_dict({**before.config.to_dict(), **changes})
        after = replace(before.grown(config.partitions), config=config)
        refused = refused_change(before, after)
        if refused is not None:
            raise refused
        if not dry_run:
            for number in range(before.config.partitions, config.partitions):
                added = MemoryPartition(after, number, self.clock, self._queue_batches_max)
                self._partitions[name].append(added)
            self._streams[name] = after  # last: other threads read as many partitions as it says
            for partition in self._partitions[name]:
                partition.config = config
        return AlteredStream(before, after)

    def rotate_key(self, name: str, version: int) -> Stream:
        """Refuse: no stream is encrypted here."""
        raise InvalidRequestError(f"stream {name!r} has no version {version} of a key", stream=name)

    def purge(
        self,
        name: str,
        partition: int,
        *,
        before: Offset | None = None,
        before_us: int | None = None,
        operator: str,
    ) -> Purged:
        """Delete the records of a partition below an offset."""
        if partition in self.refuses_purges:
            raise self.refuses_purges[partition]
        one, tiering = self.handle(name, partition), self.get(name).config.tiering
        end = before if before_us is None else one.offset_at(before_us)
        if end is None:
            raise InvalidRequestError("a purge needs an offset or a time")
        if end > one.high_watermark:
            raise OffsetOutOfRangeError("above the high watermark", offset=end)
        if tiering and end > one.log_start:  # here the cold records are those that are not local
            raise NotShippedError("not in the table", start=one.log_start, end=end)
        start = one.purge(end)
        end = max(start, end)
        return Purged(partition=partition, start=start, end=end, in_table=tiering, purged_end=end)

    def pause(self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False) -> None:
        """Pause partitions."""
        for one in self._named(name, partitions):
            one.is_paused, one.pause_us = True, self._now(one.pause_us)
        for one in self._partitions[name]:
            one.resumes_all = resume_all

    def resume(self, name: str, partitions: Sequence[int] = ()) -> None:
        """Resume partitions, all of them if they were paused so."""
        whole = any(one.resumes_all for one in self._named(name, ()))
        for one in self._named(name, () if whole else partitions):
            if one.is_paused:
                one.pause_us = self._now(one.pause_us)
            one.is_paused = one.resumes_all = False

    def set_readonly(
        self, name: str, partitions: Sequence[int] = (), *, readonly: bool = True
    ) -> None:
        """Make partitions read-only, or not."""
        for one in self._named(name, partitions):
            one.is_readonly, one.readonly_us = readonly, self._now(one.readonly_us)

    def rests(self, name: str, partition: int) -> bool:
        """Tell whether a publish resumes a partition."""
        try:
            one = self.handle(name, partition)
        except HeadwaterError:
            return False
        return not one.is_readonly and (one.is_paused or one.resumes_all)

    def wake(self, name: str, partition: int) -> None:
        """Resume a paused partition."""
        if self.rests(name, partition):
            self.resume(name, (partition,))

    def _named(self, name: str, partitions: Sequence[int]) -> list[MemoryPartition]:
        self.get(name)
        return [self.handle(name, one) for one in partitions] or self._partitions[name]

    def _now(self, times_us: tuple[int, int]) -> tuple[int, int]:
        now_us = self.clock.now_us()
        return times_us[0] or now_us, now_us

    def delete(self, name: str) -> Stream:
        """Delete a stream and its records."""
        stream = self.get(name)
        del self._streams[name]
        self.metadata.note(name, None)
        for partition in self._partitions.pop(name):
            partition.close()
        return stream

    def get(self, name: str) -> Stream:
        """Return a stream."""
        if name not in self._streams:
            raise UnknownStreamError(f"no stream is named {name!r}", stream=name)
        return self._streams[name]

    def all(self) -> list[Stream]:
        """Return all streams by name."""
        return [self._streams[name] for name in sorted(self._streams)]

    def handle(self, name: str, partition: int) -> MemoryPartition:
        """Return a partition."""
        self.get(name)
        partitions = self._partitions[name]
        if not 0 <= partition < len(partitions):
            raise UnknownPartitionError(
                f"stream {name!r} has {len(partitions)} partitions, no {partition}",
                stream=name,
                partition=partition,
            )
        return partitions[partition]

    def writer(self, name: str, partition: int) -> PartitionWriter:
        """Return a partition's writer: everything is led here."""
        return self.handle(name, partition).writes

    def led_here(self, name: str, partition: int) -> tuple[Stream, PartitionWriter] | None:
        """Return a partition of a stream that exists, and its stream."""
        if name not in self._streams or not 0 <= partition < len(self._partitions[name]):
            return None
        return self._streams[name], self._partitions[name][partition].writes

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """Take a lease."""
        self.get(name)
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

    def take(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """Take a cut under a new lease."""
        lease = self.take_lease(name, owner=owner, ttl_ms=ttl_ms)
        stream = self.get(name)
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
            keys_from=stream.keys_from,
        )

    def check(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """Refuse cuts of other histories, as a broker does that never lost its own."""
        stream = self.get(name)
        if stream.uuid != stream_uuid:
            raise StreamRecreatedError(f"{name!r} is now {stream.uuid}", expected=stream_uuid)
        lineages = [
            first_lineage(first_lineage_id(stream.uuid, number))
            for number in range(stream.config.partitions)
        ]
        refused = refusal(
            name,
            lineages,
            positions,
            believe_forgotten=believe_forgotten,
            partitions_min=stream.grown_from,
        )
        if refused is not None:
            raise refused

    def offset_at(
        self, name: str, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """Look through the rows: a table without statistics."""
        columns = pa.schema([ROW_SCHEMA.field("offset"), ROW_SCHEMA.field("timestamp")])
        for batch in self.read(name, partition, start, end, columns).rows:
            for offset, stamp in zip(*batch.to_pydict().values(), strict=True):
                if round(stamp.timestamp() * 1_000_000) >= timestamp_us:
                    return Offset(offset)
        return None

    def read(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> ColdRows:
        """Return the rows of ``[start, end)`` from before the local log's start."""
        handle = self.handle(name, partition)
        assert end <= handle.whole_start, "a cold read of local records"
        self.cold_reads.append(OffsetRange(start, end))
        return ColdRows(self._cold_rows(handle, partition, start, end, schema))

    def _cold_rows(
        self,
        handle: MemoryPartition,
        partition: int,
        start: Offset,
        end: Offset,
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        for batch in handle.read_cold(start, end):
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

    def remains(self, name: str, stream_uuid: StreamUuid) -> StreamRemains:
        """Return whether the stream is here."""
        present = name in self._streams and self._streams[name].uuid == stream_uuid
        return StreamRemains(present=present, deleted=not present, shipping=False)

    def status(self, name: str) -> list[TierStatus]:
        """Return how much of each partition is cold."""
        self.get(name)
        return [
            TierStatus(
                partition=number,
                cold=OffsetRange(Offset(0), partition.whole_start),
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
        self.get(name)
        return [
            PartitionPlace(
                partition=number,
                leader=_BROKER,
                leader_epoch=partition.leader_epoch,
                replicas=(_BROKER,),
                isr=(_BROKER,),
                purged_end=partition.purged_end,
                remote_start=partition.remote_start,
                paused=partition.is_paused,
                readonly=partition.is_readonly,
                pause_us=partition.pause_us,
                readonly_us=partition.readonly_us,
            )
            for number, partition in enumerate(self._partitions[name])
        ]

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """Return the committed range."""
        found = self.handle(name, partition)
        end = found.high_watermark if found.told_end is None else found.told_end
        if isinstance(end, HeadwaterError):
            raise end
        return PartitionStanding(found.log_start, end, found.leader_epoch)

    def leaders_end(self, name: str, partition: int) -> Offset | None:
        """Return where the log ends."""
        found = self.handle(name, partition)
        return None if found.is_fenced or not found.leads else found.log_end

    def history_position(self, name: str, partition: int) -> CutPosition:
        """Return the committed end; there was one leadership only."""
        found = self.handle(name, partition)
        lineage_id = first_lineage_id(self.get(name).uuid, partition)
        return CutPosition(lineage_id, found.high_watermark)

    def flush(
        self, name: str, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[TierStatus]:
        """Make everything that is committed cold."""
        self.get(name)
        for partition in self._partitions[name]:
            partition.log_start = partition.high_watermark
        return self.status(name)


def records(values: Sequence[bytes | None], **columns: Any) -> pa.RecordBatch:
    """Return a producer's batch of these values, and of further columns by name."""
    arrays = {"value": pa.array(values, pa.binary()), **columns}
    return pa.RecordBatch.from_pydict(arrays)


def numbered(start: int, count: int, *, value_bytes: int = 16) -> pa.RecordBatch:
    """Return ``count`` records whose values are their numbers, padded with zeros on the left."""
    texts = np.char.zfill(np.arange(start, start + count).astype(str), value_bytes)
    return records([text.encode() for text in texts.tolist()])
