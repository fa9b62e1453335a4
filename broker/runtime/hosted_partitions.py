"""The partitions whose replicas are on this broker: opened, told of the metadata, closed.

``reconcile`` makes what is open equal to what a state of the metadata says. It is the only place
that opens or removes a partition's log, on one node as in a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from broker.core.metadata.leftovers import Belongs, where_belongs
from broker.core.metadata.state import MetadataState, PartitionState
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.core.replication.view import view_of
from broker.errors import CorruptDataError, HeadwaterError, LogFailedError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.system import Clock, Files
from broker.runtime.partition.commit_scheduler import TurnScheduler
from broker.runtime.partition.context import (
    OpenedLog,
    PartitionNotices,
    PartitionPorts,
    StreamPartition,
)
from broker.runtime.partition.counters import OnCommit
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.leadership_gate import Claims
from broker.runtime.partition.queue import OwnerCall
from broker.runtime.partition.replica_shell import ReplicaIdentity, ReplicaLinks
from broker.runtime.partition.tier_view import RecordColdEnd
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.promises.promises import Promises
from broker.storage.stream_folders import (
    log_folder,
    newest_epoch,
    stored_numbers,
    stored_partitions,
    stream_folder,
)

_log = structlog.get_logger(__name__)

_ASIDE: Final = "damaged"
_UNKNOWN: Final = "unknown"
CLOSE_S: Final = 30.0  # for all logs together, at a polite stop

MarkOpened = Callable[[Sequence[PartitionId]], None]
MakeLinks = Callable[[Stream, PartitionId], ReplicaLinks]


@dataclass(frozen=True, slots=True)
class LedPartitions:
    """The partitions of a stream that this broker leads now, by number; none: serve it no more."""

    stream: Stream
    drivers: Mapping[int, PartitionDriver]


class LeadListener(Protocol):
    """Somebody who serves what this broker leads, e.g. by a subscription."""

    def led_changed(self, led: LedPartitions) -> None:
        """Serve these partitions of the stream and no others. Blocks until it is so."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What became of a :meth:`HostedPartitions.reconcile`."""

    changed: list[LedPartitions]  # the streams of which this broker leads other partitions now
    failure: HeadwaterError | None  # why not everything is as the metadata says


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetting:
    """What every replica on this broker shares."""

    me: BrokerId
    clock: Clock
    scheduler: TurnScheduler
    make_links: MakeLinks
    record_cold_end: RecordColdEnd
    mark_opened: MarkOpened  # durably in the metadata; blocks
    on_sealed: Callable[[PartitionId], None]
    on_commit: OnCommit
    on_late: Callable[[], None]  # :meth:`HostedPartitions.reconcile` has more to do now; quick
    claims: Claims | None = None  # of leaderships of tiered streams
    patience_s: float = 1.0  # once, with a replica that is slow to take a view in
    limits: LagLimits | None = None
    timing: FollowerTiming | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """Logs that were all told to close."""

    begun: Sequence[tuple[PartitionDriver, OwnerCall]]

    @property
    def is_over(self) -> bool:
        """Whether nobody has to wait any more."""
        return all(call.is_over() for _, call in self.begun)


class HostedPartitions:
    """Any thread reads; one thread at a time reconciles."""

    def __init__(self, files: Files, setting: ReplicaSetting, promises: Promises) -> None:
        """Nothing is open before the first :meth:`reconcile`."""
        self._files = files
        self._promises = promises
        self._marked: set[PartitionId] = set()  # as opened, by this process
        self._refused: dict[PartitionId, HeadwaterError] = {}  # no replica is open; why
        self._setting = setting
        self._broker_epoch = BrokerEpoch(0)
        self._state = MetadataState()
        # Replaced, never changed: any thread may be looking through one of them.
        self._drivers: dict[StreamUuid, Mapping[int, PartitionDriver]] = {}
        self._streams: dict[StreamUuid, Stream] = {}
        self._led: dict[StreamUuid, frozenset[int]] = {}
        self._late: dict[PartitionId, OwnerCall] = {}  # views that are not taken in yet
        self._closing: dict[tuple[StreamUuid, int], tuple[PartitionDriver, OwnerCall]] = {}
        self._set_aside: list[str] = []
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

    def refusal(self, partition_id: PartitionId) -> HeadwaterError | None:
        """Return why a replica that belongs here could not be opened so far, if so."""
        return self._refused.get(partition_id)

    def unopened(self) -> Mapping[PartitionId, HeadwaterError]:
        """Return the replicas that belong here and could not be opened so far, and why."""
        return dict(self._refused)

    @property
    def waits_for_room(self) -> bool:
        """Whether a replica could not be opened so far."""
        return bool(self._refused)

    def all(self) -> list[PartitionDriver]:
        """Return every open replica."""
        return [one for drivers in list(self._drivers.values()) for one in drivers.values()]

    def led(self) -> list[LedPartitions]:
        """Return what this broker leads, stream by stream."""
        return [self._led_of(stream) for stream in list(self._streams.values())]

    # ------------------------------------------------------------------ following the metadata

    def reconcile(self, state: MetadataState, *, patience_s: float | None = None) -> Reconciled:
        """Open, inform and close until this broker is what ``state`` says. Blocks.

        A replica that hangs is left behind after ``patience_s``, and not waited for again before it
        has caught up; see ``ReplicaSetting.on_late``.
        There is a failure when a new log has no room, or the metadata does not take the mark that
        it was opened; everything else is done, and the next call tries again. A change of what is
        led is returned once: whoever calls tells it, failure or not.
        """
        with self._lock:
            patience_s = self._setting.patience_s if patience_s is None else patience_s
            return self._reconcile(state, patience_s)

    def wait_for(self, uuid: StreamUuid, timeout_s: float) -> bool:
        """Wait for the replicas of a stream that were left behind; tell whether there were any."""
        deadline_s = time.monotonic() + timeout_s
        calls = [call for one, call in list(self._late.items()) if one.stream_uuid == uuid]
        return bool([call.is_over(max(0.0, deadline_s - time.monotonic())) for call in calls])

    def _reconcile(self, state: MetadataState, patience_s: float) -> Reconciled:
        before, self._state = self._state, state
        self._refused = {}
        opened = False
        streams = {stream.uuid: stream for stream in state.streams.values()}
        same_brokers = before.brokers is state.brokers
        failure: HeadwaterError | None = None
        begun: list[tuple[PartitionDriver, OwnerCall]] = []
        fresh: list[PartitionDriver] = []
        for uuid, rows in state.partitions.items():
            known = before.partitions.get(uuid, ())
            for number, row in enumerate(rows):
                if self._setting.me not in row.replicas:
                    continue
                driver = self._drivers.get(uuid, {}).get(number)
                if driver is None and (uuid, number) in self._closing:
                    self._state = before
                    continue  # a replica that was here before has not let go of its files
                if driver is None:
                    try:
                        driver = self._open(streams[uuid], number, row)
                        opened = True
                    except HeadwaterError as error:
                        self._refused[PartitionId(uuid, PartitionNumber(number))] = failure = error
                        _log.warning("replica_not_opened", stream_uuid=uuid, reason=error.message)
                        continue
                elif same_brokers and number < len(known) and known[number] is row:
                    continue
                driver.tier.learn_cold_end(row.cold_end)
                if self._needs_mark(driver, row):
                    fresh.append(driver)
                else:
                    begun.append(_shown(driver, state))
        try:
            if opened:
                self._promises.sync()
            self._mark(fresh)
        except HeadwaterError as error:  # they take no record before that is known
            failure = error
        else:
            begun += [_shown(one, state) for one in fresh]
        if failure is not None:
            self._state = before  # so that the next call looks at everything again
        self._streams.update(streams)
        gone, given_up = self._give_up_gone(state)
        self._wait([*begun, *given_up], patience_s)
        changed = [
            one
            for uuid in {*streams, *gone}
            if (one := self._newly_led(uuid, gone.get(uuid, ()))) is not None
        ]
        self._remove(gone)
        self._remove_closed(patience_s)
        return Reconciled(changed, failure)

    def _needs_mark(self, driver: PartitionDriver, row: PartitionState) -> bool:
        marked = self._setting.me in row.opened or driver.partition_id in self._marked
        return not marked and not driver.health.is_damaged

    def _mark(self, fresh: Sequence[PartitionDriver]) -> None:
        """Make it known in the metadata that these logs are held. Blocks."""
        ids = [one.partition_id for one in fresh]
        if ids:
            self._setting.mark_opened(ids)
            self._marked.update(ids)

    def _open_log(
        self, partition_id: PartitionId, config: LogConfig, *, held: bool
    ) -> PartitionLog:
        """Open a log; one that the disk does not give is damaged, and no other suffers for it."""
        folder = log_folder(partition_id)
        promise = self._promises.replica(partition_id)
        try:
            return PartitionLog.open(
                self._files, folder, partition_id, config, promise=promise, held=held
            )
        except (CorruptDataError, LogFailedError) as error:
            _log.error("replica_unreadable", partition=str(partition_id), reason=error.message)
            return PartitionLog.unreadable(
                self._files, folder, partition_id, config, promise=promise, error=error
            )

    def _open(self, stream: Stream, number: int, row: PartitionState) -> PartitionDriver:
        config, setting = stream.config, self._setting
        partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        folder = log_folder(partition_id)
        log_config = LogConfig(
            segment_bytes_max=config.segment_bytes_max,
            segment_age_ms_max=config.segment_age_ms_max,
            index_interval_bytes=config.index_interval_bytes,
        )

        def begin_log(start: Offset, epochs: EpochHistory) -> PartitionLog:
            promise = self._promises.replica(partition_id)
            PartitionLog.replace(
                self._files, folder, partition_id, start=start, epochs=epochs, promise=promise
            )
            log = PartitionLog.open(self._files, folder, partition_id, log_config, promise=promise)
            self._promises.sync()
            return log

        log = self._open_log(partition_id, log_config, held=setting.me in row.opened)
        driver = PartitionDriver(
            StreamPartition(stream, number),
            OpenedLog(log=log, begin_log=begin_log, cold_end=row.cold_end),
            ReplicaIdentity(
                me=setting.me,
                broker_epoch=self._broker_epoch,
                limits=setting.limits,
                timing=setting.timing,
            ),
            PartitionPorts(
                clock=setting.clock,
                scheduler=setting.scheduler,
                links=setting.make_links(stream, partition_id),
            ),
            PartitionNotices(
                record_cold_end=setting.record_cold_end,
                on_sealed=setting.on_sealed,
                on_commit=setting.on_commit,
                claims=setting.claims if config.tiering else None,
            ),
        )
        if row.replicas == (setting.me,):
            driver.health.refuse_if_replaced()
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

    def _wait(self, begun: Sequence[tuple[PartitionDriver, OwnerCall]], patience_s: float) -> None:
        """Wait for views to be taken in, for a while, all together.

        A replica whose disk hangs is not waited for: it takes its view when it can, and then there
        is another :meth:`reconcile`. No other replica, and no new stream, waits for it.
        """
        deadline_s = time.monotonic() + patience_s
        self._late = {one: call for one, call in self._late.items() if not call.is_over()}
        for driver, call in begun:
            known = driver.partition_id in self._late
            if not call.is_over(0.0 if known else max(0.0, deadline_s - time.monotonic())):
                _log.warning("replica_is_slow", partition=str(driver.partition_id))
                self._late[driver.partition_id] = call
                call.afterwards(self._setting.on_late)
                continue
            try:
                driver.replication.view_taken(call)
            except HeadwaterError as error:  # it has failed, and says so itself
                _log.error("view_not_taken", partition=str(driver.partition_id), reason=str(error))

    # ------------------------------------------------------------------ closing

    def _give_up_gone(
        self, state: MetadataState
    ) -> tuple[dict[StreamUuid, list[int]], list[tuple[PartitionDriver, OwnerCall]]]:
        """Begin to let go of replicas that were moved away, and of deleted streams."""
        gone: dict[StreamUuid, list[int]] = {}
        begun: list[tuple[PartitionDriver, OwnerCall]] = []
        for uuid, drivers in list(self._drivers.items()):
            rows = state.partitions.get(uuid, ())
            for number, driver in list(drivers.items()):
                here = number < len(rows) and self._setting.me in rows[number].replicas
                if not here:
                    begun.append((driver, driver.replication.take_view(None)))
                    gone.setdefault(uuid, []).append(number)
        return gone, begun

    def _remove(self, gone: Mapping[StreamUuid, list[int]]) -> None:
        """Close logs that nobody reads any more, and give their disk back."""
        for uuid, numbers in gone.items():
            drivers = self._drivers[uuid]
            self._drivers[uuid] = {n: one for n, one in drivers.items() if n not in numbers}
            self._closing.update(
                {
                    (uuid, number): (drivers[number], drivers[number].begin_close())
                    for number in numbers
                }
            )
            if not self._drivers[uuid]:
                del self._drivers[uuid]
                del self._streams[uuid]
                self._led.pop(uuid, None)

    def _remove_closed(self, patience_s: float) -> None:
        """Give the disk of replicas back that are not here any more, once their logs are closed."""
        deadline_s = time.monotonic() + patience_s
        for (uuid, number), (driver, call) in list(self._closing.items()):
            if not call.is_over(max(0.0, deadline_s - time.monotonic())):
                _log.warning("log_not_closed", partition=str(driver.partition_id))
                call.afterwards(self._setting.on_late)
                continue
            with suppress(HeadwaterError):  # its disk failed; it is to be removed all the same
                driver.closed(call)
            del self._closing[uuid, number]
            self._forget(PartitionId(uuid, PartitionNumber(number)))

    def _forget(self, partition_id: PartitionId) -> None:
        """Remove a log that is not held any more, and after it what was promised of it."""
        uuid = partition_id.stream_uuid
        self._files.remove_folder(log_folder(partition_id))
        if not stored_numbers(self._files, uuid):  # else others belong here: open, or waiting
            self._files.remove_folder(stream_folder(uuid))
            _log.info("stream_removed", stream_uuid=uuid)
        self._promises.replica(partition_id).remove()
        self._marked.discard(partition_id)

    def begin_close(self, wake: Callable[[], None] = lambda: None) -> Closing:
        """Begin to close every log; ``wake`` is called whenever one is closed."""
        with self._lock:
            begun = [(one, one.begin_close()) for one in self.all()]
        for _, call in begun:
            call.afterwards(wake)
        return Closing(begun)

    def close(self) -> bool:
        """Finish queued writes and close every log. Blocks.

        Returns whether each that was found whole was closed whole, synced to its end.
        """
        closing = self.begin_close()
        return self._wait_closed(closing, CLOSE_S)

    def _wait_closed(self, closing: Closing, patience_s: float) -> bool:
        """Wait until logs are closed: together, and a disk that hangs only so long."""
        deadline_s, whole = time.monotonic() + patience_s, True
        for driver, call in closing.begun:
            try:
                driver.closed(call, max(0.0, deadline_s - time.monotonic()))
                whole = whole and (driver.health.failure is None or driver.health.is_damaged)
            except HeadwaterError as error:
                _log.error("log_not_closed", partition=str(driver.partition_id), reason=str(error))
                whole = False
        return whole

    def remove_leftovers(self, state: MetadataState) -> None:
        """Remove what was deleted, or moved away, while this broker was down.

        ``state`` is confirmed. A log of which it neither knows nor remembers the deletion is moved
        aside instead: perhaps the whole cluster's metadata is older than this log. So is one that
        is said to be elsewhere, and has records of a leader of whom nothing is known.
        """
        with self._lock:
            stored = stored_partitions(self._files)
            for partition_id in sorted({*stored, *self._promises.replicas()}):
                if self.find(partition_id) is not None:
                    continue  # a newer state is for the next reconcile
                belongs = where_belongs(state, partition_id, self._setting.me)
                if belongs is Belongs.HERE:
                    continue
                if belongs is Belongs.DELETED or self._is_elsewhere(state, partition_id, belongs):
                    self._forget(partition_id)
                    _log.info("leftover_removed", partition=str(partition_id))
                elif partition_id in stored:
                    folder = self._move_aside(partition_id, _UNKNOWN)
                    _log.error("unknown_log_set_aside", partition=str(partition_id), folder=folder)
                    self._set_aside.append(folder)
            if kept := self._files.list(_UNKNOWN):
                _log.warning("unknown_logs_kept", folder=_UNKNOWN, logs=kept[:10], count=len(kept))

    def _is_elsewhere(
        self, state: MetadataState, partition_id: PartitionId, belongs: Belongs
    ) -> bool:
        """Tell whether others have what a log holds: the metadata is not older than the log."""
        if belongs is not Belongs.ELSEWHERE:
            return False
        epoch = newest_epoch(self._files, partition_id)
        row = state.partitions[partition_id.stream_uuid][partition_id.number]
        return epoch is not None and epoch <= row.leader_epoch

    def _move_aside(self, partition_id: PartitionId, aside: str) -> str:
        """Move a log to where nobody opens it, durably; return where it is now."""
        folder = f"{aside}/{partition_id.stream_uuid}-{partition_id.number}-{self._broker_epoch}"
        self._files.make_folder(aside)
        self._files.replace(log_folder(partition_id), folder)
        self._files.sync_folder(aside)
        self._files.sync_folder(stream_folder(partition_id.stream_uuid))
        return folder

    @property
    def complaint(self) -> str | None:
        """What was found at start that nobody knows of, if anything was."""
        if not self._set_aside:
            return None
        return (
            f"logs of streams that the metadata does not know were moved to {self._set_aside[0]}"
            f"{' and others' if self._set_aside[1:] else ''}: the metadata may be older than they"
        )

    # ------------------------------------------------------------------ damage

    def damaged(self) -> list[PartitionId]:
        """Return the replicas whose logs were found damaged when they were opened."""
        return [one.partition_id for one in self.all() if one.health.is_damaged]

    def set_aside(self, partition_ids: Sequence[PartitionId], closing: Closing) -> bool:
        """Move these logs away, for whoever wants to look at them; all are closed, or hang.

        The next :meth:`reconcile` opens all again, those empty. Returns what :meth:`close` does.
        """
        with self._lock:
            closed_whole = self._wait_closed(closing, 0.0)
            for one in partition_ids:
                aside = None
                if self._files.exists(log_folder(one)):
                    aside = self._move_aside(one, _ASIDE)
                # After it: a damaged log must not be believed because nothing is promised.
                self._promises.replica(one).renew()
                _log.error("damaged_log_set_aside", partition=str(one), folder=aside)
            self._drivers.clear()
            self._led.clear()
            self._state = MetadataState()
            return closed_whole

    # ------------------------------------------------------------------ who leads

    def _newly_led(self, uuid: StreamUuid, gone: Sequence[int]) -> LedPartitions | None:
        stream = self._streams[uuid]
        led = self._led_of(stream, gone)
        now = frozenset(led.drivers)
        if now == self._led.get(uuid, frozenset()):
            return None
        self._led[uuid] = now
        return led

    def _led_of(self, stream: Stream, gone: Sequence[int] = ()) -> LedPartitions:
        drivers = self._drivers.get(stream.uuid, {})
        return LedPartitions(
            stream,
            {number: one for number, one in drivers.items() if one.leads and number not in gone},
        )


def _shown(driver: PartitionDriver, state: MetadataState) -> tuple[PartitionDriver, OwnerCall]:
    """Begin to show a replica what a state says of it; return the call that takes it in."""
    return driver, driver.replication.take_view(view_of(state, driver.partition_id))
