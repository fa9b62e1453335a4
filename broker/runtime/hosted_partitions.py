"""The partitions whose replicas are on this broker: opened, told of the metadata, closed.

``reconcile`` makes what is open equal to what a state of the metadata says. It is the only place
that opens or removes a partition's log, on one node as in a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from broker.core.isr import LagLimits
from broker.core.metadata.state import MetadataState, PartitionState
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.view import view_of
from broker.errors import HeadwaterError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports import Clock, Files
from broker.runtime.commit_scheduler import CommitScheduler
from broker.runtime.partition_counters import OnCommit
from broker.runtime.partition_driver import PartitionDriver
from broker.runtime.replica_shell import ReplicaIdentity, ReplicaLinks
from broker.runtime.turn_queue import OwnerCall
from broker.storage.partition_log import LogConfig, PartitionLog

_log = structlog.get_logger(__name__)

_ASIDE: Final = "damaged"

RecordColdEnd = Callable[[StreamUuid, int, Offset], None]
MakeLinks = Callable[[Stream, PartitionId], ReplicaLinks]


@dataclass(frozen=True, slots=True)
class LedPartitions:
    """The partitions of a stream that this broker leads now, by number; none: serve it no more."""

    stream: Stream
    drivers: Mapping[int, PartitionDriver]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetting:
    """What every replica on this broker shares."""

    me: BrokerId
    clock: Clock
    scheduler: CommitScheduler
    make_links: MakeLinks
    record_cold_end: RecordColdEnd
    on_sealed: Callable[[Stream], None]
    on_commit: OnCommit
    limits: LagLimits | None = None
    timing: FollowerTiming | None = None


class HostedPartitions:
    """Any thread reads; one thread at a time reconciles."""

    def __init__(self, files: Files, setting: ReplicaSetting) -> None:
        """Nothing is open before the first :meth:`reconcile`."""
        self._files = files
        self._setting = setting
        self._broker_epoch = BrokerEpoch(0)
        self._state = MetadataState()
        # Replaced, never changed: any thread may be looking through one of them.
        self._drivers: dict[StreamUuid, Mapping[int, PartitionDriver]] = {}
        self._streams: dict[StreamUuid, Stream] = {}
        self._led: dict[StreamUuid, frozenset[int]] = {}
        self._lock = threading.RLock()

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Take this process's broker epoch; before the first :meth:`reconcile`."""
        self._broker_epoch = broker_epoch

    # ------------------------------------------------------------------ who is here

    def of_stream(self, uuid: StreamUuid) -> Mapping[int, PartitionDriver]:
        """Return the replicas of a stream's partitions that are here, by number."""
        return self._drivers.get(uuid, {})

    def find(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return a partition's replica, if it is here."""
        return self._drivers.get(partition_id.stream_uuid, {}).get(partition_id.number)

    def all(self) -> list[PartitionDriver]:
        """Return every open replica."""
        return [one for drivers in list(self._drivers.values()) for one in drivers.values()]

    def led(self) -> list[LedPartitions]:
        """Return what this broker leads, stream by stream."""
        return [self._led_of(stream) for stream in list(self._streams.values())]

    # ------------------------------------------------------------------ following the metadata

    def reconcile(self, state: MetadataState) -> list[LedPartitions]:
        """Open, inform and close until this broker is what ``state`` says. Blocks.

        Returns the streams of which this broker leads other partitions than before.

        Raises:
            HeadwaterError: a log could not be opened; everything else is done, and the next call
                tries again.
        """
        with self._lock:
            return self._reconcile(state)

    def _reconcile(self, state: MetadataState) -> list[LedPartitions]:
        before, self._state = self._state, state
        streams = {stream.uuid: stream for stream in state.streams.values()}
        same_brokers = before.brokers is state.brokers
        failure: HeadwaterError | None = None
        begun: list[tuple[PartitionDriver, OwnerCall]] = []
        for uuid, rows in state.partitions.items():
            known = before.partitions.get(uuid, ())
            for number, row in enumerate(rows):
                if self._setting.me not in row.replicas:
                    continue
                driver = self._drivers.get(uuid, {}).get(number)
                if driver is None:
                    try:
                        driver = self._open(streams[uuid], number, row)
                    except HeadwaterError as error:
                        failure = error
                        self._state = before  # so that the next call looks at everything again
                        continue
                elif same_brokers and number < len(known) and known[number] is row:
                    continue
                driver.learn_cold_end(row.cold_end)
                begun.append((driver, driver.take_view(view_of(state, driver.partition_id))))
        for driver, call in begun:
            try:
                driver.view_taken(call)
            except HeadwaterError as error:  # it has failed, and says so itself
                _log.error("view_not_taken", partition=str(driver.partition_id), reason=str(error))
        self._streams.update(streams)
        gone = self._close_gone(state)
        changed = [one for uuid in {*streams, *gone} if (one := self._newly_led(uuid)) is not None]
        self._remove(gone)
        if failure is not None:
            raise failure
        return changed

    def _open(self, stream: Stream, number: int, row: PartitionState) -> PartitionDriver:
        config, setting = stream.config, self._setting
        partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        folder = _folder(stream.uuid, number)
        log_config = LogConfig(
            segment_bytes_max=config.segment_bytes_max,
            segment_age_ms_max=config.segment_age_ms_max,
            index_interval_bytes=config.index_interval_bytes,
        )

        def begin_log(start: Offset, epochs: EpochHistory) -> PartitionLog:
            PartitionLog.replace(self._files, folder, partition_id, start=start, epochs=epochs)
            return PartitionLog.open(self._files, folder, partition_id, log_config)

        log = PartitionLog.open(self._files, folder, partition_id, log_config)
        driver = PartitionDriver(
            log=log,
            stream=stream,
            number=number,
            identity=ReplicaIdentity(
                me=setting.me,
                broker_epoch=self._broker_epoch,
                limits=setting.limits,
                timing=setting.timing,
            ),
            cold_end=row.cold_end,
            links=setting.make_links(stream, partition_id),
            clock=setting.clock,
            scheduler=setting.scheduler,
            record_cold_end=lambda n, end: setting.record_cold_end(stream.uuid, n, end),
            begin_log=begin_log,
            on_sealed=setting.on_sealed,
            on_commit=setting.on_commit,
        )
        if row.replicas == (setting.me,):
            driver.refuse_if_replaced()
        self._drivers[stream.uuid] = {**self._drivers.get(stream.uuid, {}), number: driver}
        _log.info(
            "partition_recovered",
            stream=stream.name,
            partition=number,
            log_start=log.log_start,
            log_end=log.log_end,
            leader_epoch=row.leader_epoch,
            recovery=str(log.recovery),
        )
        return driver

    # ------------------------------------------------------------------ closing

    def _close_gone(self, state: MetadataState) -> dict[StreamUuid, list[int]]:
        """Let go of replicas that were moved away, and of deleted streams."""
        gone: dict[StreamUuid, list[int]] = {}
        for uuid, drivers in list(self._drivers.items()):
            rows = state.partitions.get(uuid, ())
            for number, driver in list(drivers.items()):
                here = number < len(rows) and self._setting.me in rows[number].replicas
                if not here:
                    driver.view_taken(driver.take_view(None))
                    gone.setdefault(uuid, []).append(number)
        return gone

    def _remove(self, gone: Mapping[StreamUuid, list[int]]) -> None:
        """Close logs that nobody reads any more, and give their disk back."""
        for uuid, numbers in gone.items():
            drivers = self._drivers[uuid]
            self._drivers[uuid] = {n: one for n, one in drivers.items() if n not in numbers}
            for number in numbers:
                drivers[number].close()
                self._files.remove_folder(_folder(uuid, number))
            if not self._drivers[uuid]:
                del self._drivers[uuid]
                del self._streams[uuid]
                self._led.pop(uuid, None)
                self._files.remove_folder(f"streams/{uuid}")
                _log.info("stream_removed", stream_uuid=uuid)

    def close(self) -> None:
        """Finish queued writes and close every log. Blocks."""
        with self._lock:
            for driver in self.all():
                driver.close()

    # ------------------------------------------------------------------ damage

    def damaged(self) -> list[PartitionId]:
        """Return the replicas whose logs were found damaged when they were opened."""
        return [one.partition_id for one in self.all() if one.is_damaged]

    def set_aside(self, partition_ids: Sequence[PartitionId]) -> None:
        """Close everything and move these logs away, for whoever wants to look at them.

        The next :meth:`reconcile` opens all again, those empty.
        """
        with self._lock:
            self.close()
            for one in partition_ids:
                aside = f"{_ASIDE}/{one.stream_uuid}-{one.number}-{self._broker_epoch}"
                self._files.make_folder(_ASIDE)
                self._files.replace(_folder(one.stream_uuid, one.number), aside)
                self._files.sync_folder(_ASIDE)
                self._files.sync_folder(f"streams/{one.stream_uuid}")
                _log.error("damaged_log_set_aside", partition=str(one), folder=aside)
            self._drivers.clear()
            self._led.clear()
            self._state = MetadataState()

    # ------------------------------------------------------------------ who leads

    def _newly_led(self, uuid: StreamUuid) -> LedPartitions | None:
        stream = self._streams[uuid]
        led = self._led_of(stream)
        now = frozenset(led.drivers)
        if now == self._led.get(uuid, frozenset()):
            return None
        self._led[uuid] = now
        return led

    def _led_of(self, stream: Stream) -> LedPartitions:
        drivers = self._drivers.get(stream.uuid, {})
        return LedPartitions(stream, {number: one for number, one in drivers.items() if one.leads})


def _folder(uuid: StreamUuid, number: int) -> str:
    return f"streams/{uuid}/{number}"
