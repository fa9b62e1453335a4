"""The broker of one node: its streams, their partitions, leases and cuts.

Implements ``BrokerApi`` for the network services and ``TierCatalog`` for tiering. It knows ports,
storage and cores; the daemon gives it the adapters.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa
import structlog

from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    DropLease,
    RecordColdEnd,
    RegisterBroker,
    RenewLease,
    TakeLease,
    encode,
)
from broker.core.metadata.state import MetadataState
from broker.errors import (
    GapError,
    HeadwaterError,
    InvalidRequestError,
    RemoteTierUnavailableError,
    TableMismatchError,
    TableRolledBackError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.ids import BrokerId, LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports import (
    Clock,
    Files,
    HeldLease,
    RemoteLog,
    TableState,
    TierCatalog,
    TierSource,
    TierStatus,
)
from broker.runtime.commit_scheduler import CommitScheduler
from broker.runtime.partition_driver import OnCommit, PartitionDriver, ignore_commit
from broker.storage.partition_log import LogConfig, PartitionLog

_log = structlog.get_logger(__name__)

LEASE_TTL_MS_MIN: Final = 1_000
LEASE_TTL_MS_MAX: Final = 24 * 3600 * 1000
_TICK_S: Final = 0.25


class Metadata(Protocol):
    """The metadata log with the state it has reached."""

    state: MetadataState

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """See ``MetadataLog.propose``."""


class StreamListener(Protocol):
    """Somebody who must act before a created stream is answered, or a deleted one forgotten."""

    def stream_opened(self, stream: Stream, partitions: list[PartitionDriver]) -> None:
        """Start serving the stream, e.g. subscribe. Blocks until it is served."""

    def stream_closing(self, stream: Stream) -> None:
        """Stop serving it. Blocks."""


class Broker:
    """One broker that leads every partition it holds."""

    def __init__(
        self,
        *,
        cluster: str,
        broker_id: BrokerId,
        namespace: str,
        files: Files,
        metadata: Metadata,
        clock: Clock,
        scheduler: CommitScheduler,
        on_commit: OnCommit = ignore_commit,
    ) -> None:
        """Join the ports; nothing is opened before :meth:`start`."""
        self._on_commit = on_commit
        self.cluster = cluster
        self._broker_id = broker_id
        self._namespace = namespace
        self._files = files
        self._metadata = metadata
        self._clock = clock
        self._scheduler = scheduler
        self._remote: RemoteLog | None = None
        self._listeners: list[StreamListener] = []
        self._sealed_callbacks: list[Callable[[Stream], None]] = []
        self._partitions: dict[StreamUuid, list[PartitionDriver]] = {}
        self._change = threading.RLock()  # one stream is created or deleted at a time
        self._stopping = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="ticker", daemon=True)

    # ------------------------------------------------------------------ life

    def attach_remote(self, remote: RemoteLog) -> None:
        """Plug the cold tier in; before :meth:`start`."""
        self._remote = remote

    def add_listener(self, listener: StreamListener) -> None:
        """Add a listener; it hears of streams opened from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Take a new broker epoch, recover every log, start ticking. Blocks."""
        self._propose(RegisterBroker(broker=self._broker_id))
        for stream in self.streams():
            self._open(stream)
        self._ticker.start()

    def open_listeners(self) -> None:
        """Tell the listeners of the streams that were there at start. Blocks."""
        for stream in self.streams():
            for listener in self._listeners:
                listener.stream_opened(stream, self._partitions[stream.uuid])

    def stop(self) -> None:
        """Finish queued writes and close every log. Blocks; call after the services stopped."""
        self._stopping.set()
        if self._ticker.is_alive():
            self._ticker.join()
        for drivers in self._partitions.values():
            for driver in drivers:
                driver.close()

    # ------------------------------------------------------------------ streams

    def create_stream(self, name: str, config: StreamConfig) -> Stream:
        """See ``BrokerApi.create_stream``."""
        with self._change:
            present = self._metadata.state.streams.get(name)
            stream_uuid = StreamUuid(present.uuid if present else str(uuid.uuid4()))
            wanted = Stream(
                name=name,
                uuid=stream_uuid,
                config=config,
                created_us=self._clock.now_us(),
                table_name=present.table_name if present else self._table_name(name, stream_uuid),
                namespace=self._namespace,
            )
            reply = self._propose(CreateStream(stream=wanted, leader=self._broker_id))
            stream = self.stream(name)
            if reply["created"]:
                self._open(stream)
                for listener in self._listeners:
                    listener.stream_opened(stream, self._partitions[stream.uuid])
                _log.info("stream_created", stream=name, stream_uuid=stream.uuid)
            return stream

    def _table_name(self, name: str, stream_uuid: StreamUuid) -> str:
        if self._remote is None:
            return name
        return self._remote.table_name_for(name, stream_uuid, self._namespace)

    def delete_stream(self, name: str) -> Stream:
        """See ``BrokerApi.delete_stream``."""
        with self._change:
            stream = self.stream(name)
            for listener in self._listeners:
                listener.stream_closing(stream)
            self._propose(DeleteStream(name=name, expected_uuid=stream.uuid))
            for driver in self._partitions.pop(stream.uuid, []):
                driver.close()
            self._files.remove_folder(f"streams/{stream.uuid}")
            _log.info("stream_deleted", stream=name, stream_uuid=stream.uuid)
            return stream

    def stream(self, name: str) -> Stream:
        """See ``BrokerApi.stream``."""
        found = self._metadata.state.streams.get(name)
        if found is None:
            known = sorted(self._metadata.state.streams)
            hint = f"there are {', '.join(known[:20])}" if known else "there are none yet"
            raise UnknownStreamError(
                f"no stream is named {name!r}; {hint}", stream=name, known=known[:20]
            )
        return found

    def streams(self) -> list[Stream]:
        """Return all streams by name."""
        state = self._metadata.state
        return [state.streams[name] for name in sorted(state.streams)]

    def partition(self, name: str, partition: int) -> PartitionDriver:
        """See ``BrokerApi.partition``."""
        stream = self.stream(name)
        drivers = self._partitions.get(stream.uuid, [])
        if not 0 <= partition < len(drivers):
            raise UnknownPartitionError(
                f"stream {name!r} has partitions 0 to {stream.config.partitions - 1}, "
                f"not {partition}",
                stream=name,
                partition=partition,
                partitions_count=stream.config.partitions,
            )
        return drivers[partition]

    def drivers(self) -> list[PartitionDriver]:
        """Return every open partition, for metrics."""
        return [driver for drivers in list(self._partitions.values()) for driver in drivers]

    # ------------------------------------------------------------------ leases and cuts

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """See ``BrokerApi.take_lease``."""
        now_us = self._clock.now_us()
        lease = Lease(
            lease_id=LeaseId(uuid.uuid4().hex), expires_us=now_us + _checked_ttl_ms(ttl_ms) * 1000
        )
        self._propose(
            TakeLease(
                lease_id=lease.lease_id,
                stream_uuid=self.stream(name).uuid,
                owner=owner[:200],
                expires_us=lease.expires_us,
                now_us=now_us,
            )
        )
        return lease

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """See ``BrokerApi.renew_lease``."""
        now_us = self._clock.now_us()
        expires_us = now_us + _checked_ttl_ms(ttl_ms) * 1000
        reply = self._propose(RenewLease(lease_id=lease_id, expires_us=expires_us, now_us=now_us))
        return Lease(lease_id=lease_id, expires_us=reply["expires_us"])

    def drop_lease(self, lease_id: LeaseId) -> None:
        """See ``BrokerApi.drop_lease``."""
        self._propose(DropLease(lease_id=lease_id))

    def live_leases(self, name: str) -> list[HeldLease]:
        """See ``BrokerApi.live_leases``."""
        uuid_held, now_us = self.stream(name).uuid, self._clock.now_us()
        found = [
            HeldLease(
                lease_id=lease_id,
                owner=lease.owner,
                taken_us=lease.taken_us,
                expires_us=lease.expires_us,
            )
            for lease_id, lease in self._metadata.state.leases.items()
            if lease.stream_uuid == uuid_held and lease.expires_us > now_us
        ]
        return sorted(found, key=lambda lease: (lease.taken_us, lease.lease_id))

    def cut(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """See ``BrokerApi.cut``.

        Raises:
            TableRolledBackError: the table lost a commit that this broker had seen.
            GapError: records between the tiers are on neither side.
            TableMismatchError: the table is ahead of the log that feeds it.
        """
        stream = self.stream(name)
        lease = self.take_lease(name, owner=owner, ttl_ms=ttl_ms)
        try:
            table = self._table_state(stream)
            partitions = tuple(
                self._partition_cut(stream, driver, table)
                for driver in self._partitions[stream.uuid]
            )
        except BaseException:
            self.drop_lease(lease.lease_id)
            raise
        return Cut(
            cluster=self.cluster,
            stream=stream.name,
            stream_uuid=stream.uuid,
            subject=stream.config.subject,
            table_uri=table.table_uri,
            table_version=table.version,
            partitions=partitions,
            taken_us=self._clock.now_us(),
            lease=lease,
        )

    def _table_state(self, stream: Stream) -> TableState:
        if self._remote is None or not stream.config.tiering:
            return TableState(table_uri="", version=None, ranges={}, files_count=0, files_bytes=0)
        return self._remote.table_state(stream)

    def _partition_cut(
        self, stream: Stream, driver: PartitionDriver, table: TableState
    ) -> PartitionCut:
        number = driver.partition_id.number
        recorded = self._recorded_cold_end(stream.uuid, number)
        cold = table.ranges.get(number)
        start = cold.start if cold is not None else driver.log_start
        cold_end = cold.end if cold is not None else start
        facts = {"stream": stream.name, "partition": number}
        if cold_end < recorded:
            raise TableRolledBackError(
                f"the table of {stream.name!r} ends partition {number} at {cold_end}, but "
                f"{recorded} had been committed: a commit was removed from {table.table_uri}",
                expected=recorded,
                found=cold_end,
                **facts,
            )
        if cold_end < driver.log_start:
            raise GapError(
                f"records [{cold_end}, {driver.log_start}) of {stream.name!r} partition {number} "
                "are neither in the table nor on local disk",
                start=cold_end,
                end=driver.log_start,
                **facts,
            )
        hot_end = driver.high_watermark
        if hot_end < cold_end:
            raise TableMismatchError(
                f"the table of {stream.name!r} partition {number} ends at {cold_end}, above the "
                f"log's end {hot_end}: another writer feeds it, or the local log was replaced",
                expected=hot_end,
                found=cold_end,
                **facts,
            )
        return PartitionCut(
            partition=number,
            start=start,
            cold_end=cold_end,
            hot_end=hot_end,
            leader_epoch=driver.leader_epoch,
        )

    # ------------------------------------------------------------------ the cold tier

    def read_cold(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """See ``BrokerApi.read_cold``."""
        return self._tier().read(self.stream(name), partition, start, end, schema)

    def tier_status(self, name: str) -> list[TierStatus]:
        """See ``BrokerApi.tier_status``."""
        return self._tier().status(self.stream(name))

    def tier_flush(self, name: str, *, timeout_ms: int) -> list[TierStatus]:
        """See ``BrokerApi.tier_flush``."""
        stream = self.stream(name)
        if not stream.config.tiering:
            raise InvalidRequestError(f"tiering is off for stream {name!r}", stream=name)
        return self._tier().flush(stream, timeout_ms=timeout_ms)

    def _tier(self) -> RemoteLog:
        if self._remote is None:
            raise RemoteTierUnavailableError("this broker runs without a lake")
        return self._remote

    def catalog(self) -> TierCatalog:
        """Return this broker's streams as tiering sees them."""
        return _Catalog(self)

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the open partitions of a stream, by number."""
        return list(self._partitions.get(stream.uuid, []))

    def on_sealed(self, callback: Callable[[Stream], None]) -> None:
        """Register a callback for "a segment of this stream was sealed"."""
        self._sealed_callbacks.append(callback)

    # ------------------------------------------------------------------ helpers

    def _propose(self, command: Command) -> Mapping[str, Any]:
        return self._metadata.propose(encode(command))

    def _recorded_cold_end(self, stream_uuid: StreamUuid, number: int) -> Offset:
        rows = self._metadata.state.partitions.get(stream_uuid, ())
        return rows[number].cold_end if number < len(rows) else Offset(0)

    def _open(self, stream: Stream) -> None:
        config = stream.config
        log_config = LogConfig(
            segment_bytes_max=config.segment_bytes_max,
            segment_age_ms_max=config.segment_age_ms_max,
            index_interval_bytes=config.index_interval_bytes,
        )
        drivers = []
        for number, partition in enumerate(self._metadata.state.partitions[stream.uuid]):
            log = PartitionLog.open(
                self._files,
                f"streams/{stream.uuid}/{number}",
                PartitionId(stream.uuid, PartitionNumber(number)),
                log_config,
            )
            driver = PartitionDriver(
                log=log,
                stream=stream,
                number=number,
                leader_epoch=partition.leader_epoch,
                broker_id=self._broker_id,
                clock=self._clock,
                scheduler=self._scheduler,
                record_cold_end=self._cold_end_recorder(stream.uuid),
                on_sealed=self._sealed,
                on_commit=self._on_commit,
            )
            driver.restore_cold_end(partition.cold_end)
            drivers.append(driver)
            _log.info(
                "partition_recovered",
                stream=stream.name,
                partition=number,
                log_start=log.log_start,
                log_end=log.log_end,
                leader_epoch=partition.leader_epoch,
                recovery=str(log.recovery),
            )
        self._partitions[stream.uuid] = drivers

    def _cold_end_recorder(self, stream_uuid: StreamUuid) -> Callable[[int, Offset], None]:
        def record(number: int, cold_end: Offset) -> None:
            if cold_end > self._recorded_cold_end(stream_uuid, number):
                self._propose(
                    RecordColdEnd(stream_uuid=stream_uuid, partition=number, cold_end=cold_end)
                )

        return record

    def _sealed(self, stream: Stream) -> None:
        for callback in self._sealed_callbacks:
            callback(stream)

    def _tick(self) -> None:
        while not self._stopping.wait(_TICK_S):
            for driver in self.drivers():
                try:
                    driver.tick()
                    driver.free_local(partial(self._lease_floor, driver.partition_id))
                except HeadwaterError as error:
                    _log.warning(
                        "tick_failed", partition=str(driver.partition_id), error=str(error)
                    )

    def _lease_floor(self, partition: PartitionId) -> Offset:
        now_us = self._clock.now_us()
        floors = [
            lease.floors[partition.number]
            for lease in self._metadata.state.leases.values()
            if lease.stream_uuid == partition.stream_uuid and lease.expires_us > now_us
        ]
        return min(floors, default=Offset(2**63 - 1))


class _Catalog:
    """Implements ``TierCatalog`` over a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def streams(self) -> list[Stream]:
        """Return the streams whose tiering is on."""
        return [stream for stream in self._broker.streams() if stream.config.tiering]

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions that this broker leads, by number."""
        return self._broker.sources(stream)

    def on_sealed(self, callback: Callable[[Stream], None]) -> None:
        """Register a callback."""
        self._broker.on_sealed(callback)


def _checked_ttl_ms(ttl_ms: int) -> int:
    if not LEASE_TTL_MS_MIN <= ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequestError(
            f"a lease lasts {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}",
            ttl_ms=ttl_ms,
        )
    return ttl_ms
