"""The broker: the cluster's streams, the partitions that are here, leases and cuts.

Implements ``BrokerApi`` for the network services and ``TierCatalog`` for tiering. The daemon gives
it the adapters, and a ``Membership`` that says whether it is alone or one of several.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import structlog

from broker.core.cuts import partition_cut
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    DropLease,
    RecordColdEnd,
    RenewLease,
    TakeLease,
)
from broker.core.metadata.outcome import CommandReply
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.core.replication.view import view_of
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    RemoteTierUnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.cut_positions import CutPosition
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.api import BrokerPlace, PartitionPlace, PartitionStanding
from broker.ports.pumps import Drive
from broker.ports.system import Clock, Files
from broker.ports.tiering import (
    HeldLease,
    RemoteLog,
    TableState,
    TierCatalog,
    TierSource,
    TierStatus,
)
from broker.runtime.background import Background
from broker.runtime.broker_start import BrokerStart
from broker.runtime.cluster.directory import brokers_in, places_in
from broker.runtime.cluster.membership import CONFIRM_MS, Membership
from broker.runtime.cluster.opened_marks import marks_of
from broker.runtime.cluster.promise_keeper import PromiseKeeper
from broker.runtime.hosted_partitions import (
    HostedPartitions,
    LeadListener,
    LedPartitions,
    ReplicaSetting,
)
from broker.runtime.known_lineages import KnownLineages
from broker.runtime.leases import checked_ttl_ms, lease_floor, leases_on
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.commit_scheduler import TurnScheduler
from broker.runtime.partition.counters import OnCommit, ignore_commit
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.leadership_gate import SETTLE_MS, Claims
from broker.runtime.partition.replica_shell import not_leader
from broker.runtime.pumps import on_threads, wait_for_answer
from broker.runtime.tier_catalog import BrokerCatalog, TierListeners
from broker.storage.promises.promises import Promises

_log = structlog.get_logger(__name__)

_MAINTENANCE_MS: Final = 250
_TICK_MS: Final = 250  # of a broker alone; replicas have more to do on time
_START_S: Final = 10.0  # for replicas to lead, at the start of a broker or a stream


class Broker:
    """One broker."""

    def __init__(
        self,
        *,
        cluster: str,
        broker_id: BrokerId,
        namespace: str,
        files: Files,
        metadata: WaitingMetadata,
        clock: Clock,
        scheduler: TurnScheduler,
        membership: Membership,
        on_commit: OnCommit = ignore_commit,
        tick_ms: int = _TICK_MS,
        limits: LagLimits | None = None,
        timing: FollowerTiming | None = None,
        promises: Promises | None = None,
        claim_ms: int = SETTLE_MS,
        drive: Drive | None = None,
        patience_s: float = 1.0,
        start_s: float = _START_S,
    ) -> None:
        """Join the ports; nothing is opened before :meth:`start`.

        ``promises`` are closed by who made them; without them, the broker has its own. Whoever
        reconciles waits ``patience_s`` at most for a slow replica, at the start ``start_s``.
        """
        self.cluster = cluster
        self._broker_id = broker_id
        self._namespace = namespace
        self._metadata = metadata
        self._lineages = KnownLineages(metadata, confirm_ms=CONFIRM_MS)
        self._clock = clock
        self._membership = membership
        self._remote: RemoteLog | None = None
        self._listeners: list[LeadListener] = []
        self._start_s = start_s
        self._own_promises = promises is None
        self._promises = promises = promises or Promises(files)
        self._broker_epoch = BrokerEpoch(0)
        self.tier_listeners = TierListeners()
        drive = drive or on_threads(clock, scheduler.on_crash)
        self._background = Background(
            tick_ms=tick_ms, tick=self._tick, reconcile=self.reconcile, drive=drive
        )
        self._hosted = HostedPartitions(
            files,
            ReplicaSetting(
                me=broker_id,
                clock=clock,
                scheduler=scheduler,
                make_links=self._membership.make_links,
                record_cold_end=self._record_cold_end,
                mark_opened=self._mark_opened,
                on_sealed=self.tier_listeners.sealed,
                claims=Claims(self.tier_listeners.leading, claim_ms),
                on_commit=on_commit,
                on_late=self._background.reconcile_soon,
                patience_s=patience_s,
                limits=limits,
                timing=timing,
            ),
            promises,
        )
        self._keeper = PromiseKeeper(promises, self._open_what_waits, drive)
        self._reconciling, self._tick_ms = threading.Lock(), tick_ms
        self._change = threading.RLock()  # one stream is created or deleted at a time

    # ------------------------------------------------------------------ life

    def attach_remote(self, remote: RemoteLog) -> None:
        """Plug the cold tier in; before :meth:`start`."""
        self._remote = remote

    def add_listener(self, listener: LeadListener) -> None:
        """Add a listener; it hears of changes from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Take a new broker epoch, recover every log, start ticking. Blocks."""
        wait_for_answer(self._clock, lambda *ears: self.starting(*ears).turn)

    def starting(
        self, wake: Callable[[], None], answered: Callable[[BrokerEpoch], None]
    ) -> BrokerStart:
        """Return the pump that starts this broker; its answer is the broker epoch."""
        if self._promises.complaint is not None:
            _log.warning("promises_incomplete", reason=self._promises.complaint)

        def started(broker_epoch: BrokerEpoch) -> None:
            self._go_on()
            answered(broker_epoch)

        return BrokerStart(
            self,
            membership=self._membership,
            hosted=self._hosted,
            patience_s=self._start_s,
            wake=wake,
            answered=started,
        )

    def _go_on(self) -> None:
        """Let its pumps be driven: what was registered is open."""
        self._keeper.start()
        self._background.start()

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """See ``StartedBroker.registered``."""
        self._broker_epoch = broker_epoch
        self._hosted.registered(broker_epoch)

    def _open_what_waits(self) -> None:
        if self._hosted.waits_for_room:
            self.reconcile()

    def remove_leftovers(self) -> None:
        """See ``StartedBroker.remove_leftovers``: deleted, or moved away, while it was down."""
        try:
            self._hosted.remove_leftovers(self._metadata.state)
        except (HeadwaterError, OSError) as error:
            _log.warning("leftovers_kept", reason=str(error))

    def begin_leading(self) -> None:
        """See ``StartedBroker.begin_leading``: before anything is published to it."""
        ends = {
            driver.partition_id: (driver.reads.leader_epoch, driver.reads.log_end)
            for led in self._hosted.led()
            for driver in led.drivers.values()
            if driver.health.failure is None
        }
        self._membership.begin_leading(ends)

    def open_listeners(self) -> None:
        """Tell the listeners what this broker leads at start. Blocks."""
        for led in self._hosted.led():
            self._tell(led)

    def reconcile(self, *, patience_s: float | None = None) -> None:
        """Be what the newest metadata known here says; tell the listeners. Blocks.

        One caller at a time, and the state is read in its turn: whoever comes last would else
        leave replicas and listeners with an older one.
        """
        with self._reconciling:
            found = self._hosted.reconcile(self._metadata.state, patience_s=patience_s)
            for led in found.changed:
                self._tell(led)
            if found.failure is not None:
                raise found.failure

    def _tell(self, led: LedPartitions) -> None:
        for listener in self._listeners:
            listener.led_changed(led)

    def stop(self) -> None:
        """Finish queued writes and close every log. Blocks; call after the services stopped."""
        self._background.stop()
        self._keeper.stop()
        closed_whole = self._hosted.close()
        if self._own_promises:
            self._promises.close()
        if closed_whole:
            self._membership.logs_closed()

    # ------------------------------------------------------------------ streams

    def create_stream(self, name: str, config: StreamConfig) -> Stream:
        """See ``BrokerApi.create_stream``. Replicas are placed by the newest metadata."""
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        config = self._membership.resolve(config)
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
            reply = self._propose(
                CreateStream(
                    stream=wanted,
                    leader=self._broker_id,
                    assignment=self._membership.place(config),
                    min_isr=max(1, config.min_isr),
                )
            )
            self.reconcile()
            if self._hosted.wait_for(stream_uuid, _START_S):
                self.reconcile()
            if reply["created"]:
                _log.info("stream_created", stream=name, stream_uuid=stream_uuid)
            return self.stream(name)

    def _table_name(self, name: str, stream_uuid: StreamUuid) -> str:
        if self._remote is None:
            return name
        return self._remote.table_name_for(name, stream_uuid, self._namespace)

    def delete_stream(self, name: str) -> Stream:
        """See ``BrokerApi.delete_stream``."""
        with self._change:
            stream = self.stream(name)
            self._propose(DeleteStream(name=name, expected_uuid=stream.uuid))
            self.reconcile()
            _log.info("stream_deleted", stream=name, stream_uuid=stream.uuid)
            return stream

    def stream(self, name: str) -> Stream:
        """See ``BrokerApi.stream``. What is not known here may have been made at another broker."""
        found = self._metadata.state.streams.get(name)
        if found is None:
            self._metadata.barrier(timeout_ms=CONFIRM_MS)
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

    def streams_in_tables(self) -> list[Stream]:
        """Return the streams of which the metadata says that records are in a table, by name."""
        rows = self._metadata.state.partitions
        return [
            stream
            for stream in self.streams()
            if any(row.cold_end > 0 for row in rows.get(stream.uuid, ()))
        ]

    def partition(self, name: str, partition: int) -> PartitionDriver:
        """See ``BrokerApi.partition``: the replica that is here, whoever leads."""
        stream = self._with_partition(name, partition)
        driver = self._hosted.of_stream(stream.uuid).get(partition)
        if driver is None:
            partition_id = PartitionId(stream.uuid, PartitionNumber(partition))
            refusal = self._hosted.refusal(partition_id)
            if refusal is not None:
                raise refusal
            raise not_leader(f"{name}/{partition}", view_of(self._metadata.state, partition_id))
        return driver

    def _with_partition(self, name: str, partition: int) -> Stream:
        stream = self.stream(name)
        if not 0 <= partition < stream.config.partitions:
            raise UnknownPartitionError(
                f"stream {name!r} has partitions 0 to {stream.config.partitions - 1}, "
                f"not {partition}",
                stream=name,
                partition=partition,
                partitions_count=stream.config.partitions,
            )
        return stream

    def brokers(self) -> list[BrokerPlace]:
        """See ``BrokerApi.brokers``."""
        return brokers_in(self._metadata.state)

    def places(self, name: str) -> list[PartitionPlace]:
        """See ``BrokerApi.places``."""
        return places_in(self._metadata.state, self.stream(name).uuid)

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """See ``BrokerApi.standing``."""
        return self._standing(self._with_partition(name, partition), partition)

    def history_position(self, name: str, partition: int) -> CutPosition:
        """See ``BrokerApi.history_position``."""
        stream = self._with_partition(name, partition)
        at = self._standing(stream, partition)
        return CutPosition(
            self._lineages.id_of(stream, partition, at.leader_epoch), at.high_watermark
        )

    @property
    def complaint(self) -> str | None:
        """What an operator has to look at, though every replica here may be in order."""
        return self._hosted.complaint

    def drivers(self) -> list[PartitionDriver]:
        """Return every open replica, for metrics."""
        return self._hosted.all()

    def unopened(self) -> Mapping[PartitionId, HeadwaterError]:
        """Return the replicas that belong here and could not be opened so far, and why."""
        return self._hosted.unopened()

    def replica(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return a partition's replica, if it is here, for other brokers' messages."""
        return self._hosted.find(partition_id)

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """See ``BrokerApi.take_lease``."""
        now_us = self._clock.now_us()
        lease = Lease(
            lease_id=LeaseId(uuid.uuid4().hex), expires_us=now_us + checked_ttl_ms(ttl_ms) * 1000
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
        expires_us = now_us + checked_ttl_ms(ttl_ms) * 1000
        reply = self._propose(RenewLease(lease_id=lease_id, expires_us=expires_us, now_us=now_us))
        return Lease(lease_id=lease_id, expires_us=reply["expires_us"])

    def drop_lease(self, lease_id: LeaseId) -> None:
        """See ``BrokerApi.drop_lease``."""
        self._propose(DropLease(lease_id=lease_id))

    def live_leases(self, name: str) -> list[HeldLease]:
        """See ``BrokerApi.live_leases``."""
        return leases_on(self._metadata.state, self.stream(name).uuid, self._clock.now_us())

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
            # Before the table is looked at: what is recorded after may not be in it yet.
            recorded = [
                self._recorded_cold_end(PartitionId(stream.uuid, PartitionNumber(number)))
                for number in range(stream.config.partitions)
            ]
            table = self._table_state(stream)
            partitions = tuple(
                self._partition_cut(stream, number, table, recorded=least)
                for number, least in enumerate(recorded)
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
            table_digest=table.digest,
        )

    def check_cut(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """See ``BrokerApi.check_cut``."""
        stream = self.stream(name)
        self._lineages.require(stream, stream_uuid, positions, believe_forgotten=believe_forgotten)

    def _table_state(self, stream: Stream) -> TableState:
        if self._remote is None and stream in self.streams_in_tables():
            raise RemoteTierUnavailableError(
                f"records of {stream.name!r} are in its table, and this broker runs without a "
                "lake; set lake.uri",
                stream=stream.name,
            )
        if self._remote is None or not stream.config.tiering:
            return TableState(table_uri="", version=None, ranges={}, files_count=0, files_bytes=0)
        return self._remote.table_state(stream)

    def _partition_cut(
        self, stream: Stream, number: int, table: TableState, *, recorded: Offset
    ) -> PartitionCut:
        position = self._standing(stream, number)
        return partition_cut(
            stream,
            number,
            table,
            position,
            recorded=recorded,
            lineage_id=self._lineages.id_of(stream, number, position.leader_epoch),
        )

    def _standing(self, stream: Stream, number: int) -> PartitionStanding:
        """Return what is committed, as its leader knows it."""
        partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        driver = self._hosted.find(partition_id)
        if driver is not None and driver.leads:
            if (unknown := driver.health.lost_end or driver.lost_leadership) is not None:
                raise unknown
            reads, failed = driver.reads, driver.health.failure is not None
            newest = reads.high_watermark if failed else driver.replication.newest_committed
            if newest is not None:
                return PartitionStanding(reads.log_start, newest, reads.leader_epoch)
        told = self._membership.newest(partition_id, f"{stream.name}/{number}")
        assert told.high_watermark is not None, "a leader that does not know is not an answer"
        return PartitionStanding(told.log_start, told.high_watermark, told.leader_epoch)

    def read_cold(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """See ``BrokerApi.read_cold``."""
        return self._tier().read(self.stream(name), partition, start, end, schema)

    def cold_offset_at(
        self, name: str, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """See ``BrokerApi.cold_offset_at``."""
        return self._tier().offset_at(self.stream(name), partition, start, end, timestamp_us)

    def tier_status(self, name: str) -> list[TierStatus]:
        """See ``BrokerApi.tier_status``."""
        return self._tier().status(self.stream(name))

    def table_start(self, name: str, partition: int) -> Offset | None:
        """See ``BrokerApi.table_start``; asks the table itself, for others may feed it."""
        found = self._table_state(self.stream(name)).ranges.get(partition)
        return found.start if found else None

    def learn_cold_end(self, name: str, partition: int) -> None:
        """Record how far the table reaches, as the table itself says, and not only the metadata.

        A leader may have died between its commit and the note of it. Blocks.
        """
        stream = self._with_partition(name, partition)
        found = self._table_state(stream).ranges.get(partition)
        if found is not None:
            at = PartitionId(stream.uuid, PartitionNumber(partition))
            self._record_cold_end(at, found.end)

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
        return BrokerCatalog(self, self._metadata)

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of a stream that this broker leads, by number."""
        drivers = self._hosted.of_stream(stream.uuid)
        return [drivers[number].tier for number in sorted(drivers) if drivers[number].leads]

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return a partition that is here, whoever leads it."""
        driver = self._hosted.find(partition)
        return None if driver is None else (driver.stream, driver.tier)

    def _propose(self, command: Command) -> CommandReply:
        return self._metadata.propose(command)

    def _recorded_cold_end(self, at: PartitionId) -> Offset:
        row = self._metadata.state.partition(at)
        return Offset(0) if row is None else row.cold_end

    def _record_cold_end(self, at: PartitionId, end: Offset) -> None:
        if end > self._recorded_cold_end(at):
            uuid, number = at.stream_uuid, at.number
            self._propose(RecordColdEnd(stream_uuid=uuid, partition=number, cold_end=end))

    def _mark_opened(self, partition_ids: Sequence[PartitionId]) -> None:
        for command in marks_of(self._broker_id, self._broker_epoch, partition_ids):
            self._propose(command)

    def _tick(self, count: int) -> None:
        every = max(1, _MAINTENANCE_MS // self._tick_ms)
        for driver in self.drivers():
            driver.replication.tick()
            if (count + 1) % every == 0:
                self._maintain(driver)

    def _maintain(self, driver: PartitionDriver) -> None:
        try:
            driver.maintenance.tick()
            driver.frees.soon(partial(self._lease_floor, driver.partition_id))
        except HeadwaterError as error:
            _log.warning("tick_failed", partition=str(driver.partition_id), error=str(error))

    def _lease_floor(self, partition: PartitionId) -> Offset:
        return lease_floor(self._metadata.state, partition, self._clock.now_us())
