"""The replicas on this broker: opens them, passes changed metadata to them, and closes them.

``reconcile`` opens and closes replicas until they equal those of a metadata state. No other code
opens or removes a partition's log, on a single broker as in a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from broker.core.metadata.state import MetadataState, PartitionState
from broker.core.replication.view import view_of
from broker.errors import HeadwaterError
from broker.model.access import AUDIT_STREAM
from broker.model.activity import RESERVED_STREAMS
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.stream import Stream
from broker.runtime.inbox import Inbox
from broker.runtime.led import LedPartitions
from broker.runtime.opened_marks import OpenedMarks
from broker.runtime.partition.context import StreamPartition
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.queue import OwnerCall
from broker.runtime.replica_folders import ReplicaFolders
from broker.runtime.replica_opener import ReplicaOpener
from broker.storage.no_room import lacks_room

_OWN_STREAMS: Final = RESERVED_STREAMS | {AUDIT_STREAM}
_log = structlog.get_logger(__name__)

CLOSE_S: Final = 30.0  # for all logs together, at a clean stop


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result of :meth:`HostedPartitions.reconcile`."""

    changed: list[LedPartitions]  # the streams whose led partitions changed here
    failure: HeadwaterError | None  # why a replica differs from the metadata


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing of all logs, begun and perhaps not ended."""

    begun: Sequence[tuple[PartitionDriver, OwnerCall]]

    @property
    def is_over(self) -> bool:
        """Whether no caller has to wait any more."""
        return all(call.is_over() for _, call in self.begun)


class HostedPartitions:
    """Any thread reads; one thread at a time reconciles."""

    def __init__(
        self,
        me: BrokerId,
        opener: ReplicaOpener,
        folders: ReplicaFolders,
        marks: OpenedMarks,
        *,
        on_late: Callable[[], None],
        patience_s: float = 1.0,
    ) -> None:
        """Nothing is open before the first :meth:`reconcile`.

        ``reconcile`` waits once, for ``patience_s``, for a replica that is slow to take a view.
        When that replica has taken the view, ``on_late`` is called, on any thread, and
        :meth:`reconcile` has to run again; also when a log is removed whose partition has come
        back meanwhile, and when a log is to be set aside. ``on_late`` must be quick.
        """
        self.me = me
        self._opener = opener
        self._folders = folders
        self._marks = marks
        self._on_late = on_late
        self._patience_s = patience_s
        self._refused: dict[PartitionId, HeadwaterError] = {}  # why no replica is open
        self._state = MetadataState()
        # Replaced, never changed in place: any thread may iterate over them.
        self._drivers: dict[StreamUuid, Mapping[int, PartitionDriver]] = {}
        self._streams: dict[StreamUuid, Stream] = {}
        self._led: dict[StreamUuid, LedPartitions] = {}
        self._late: dict[PartitionId, OwnerCall] = {}  # views that the replica has not taken yet
        self.removal_waits = False  # a closed log waits for room for its removal
        self._closing: dict[PartitionId, tuple[PartitionDriver, OwnerCall]] = {}
        self._come_back: set[PartitionId] = set()  # belong here again, and wait for a removal
        self._noted = Inbox(waiting_max=0, wake=on_late)  # damaged logs that are to be set aside
        self._aside: set[PartitionId] = set()  # are closed to be set aside, not to be removed
        self._lock = threading.RLock()

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set this process's broker epoch; call before the first :meth:`reconcile`."""
        self._opener.registered(broker_epoch)
        self._folders.registered(broker_epoch)
        self._marks.registered(broker_epoch)

    # ------------------------------------------------------------------ who is here

    def of_stream(self, uuid: StreamUuid) -> Mapping[int, PartitionDriver]:
        """Return the local replicas of a stream, by partition number."""
        return self._drivers.get(uuid, {})

    def find(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return the local replica of a partition, or None."""
        return self._drivers.get(partition_id.stream_uuid, {}).get(partition_id.number)

    def refusal(self, partition_id: PartitionId) -> HeadwaterError | None:
        """Return why a replica that belongs here is not open yet; None if it is open."""
        return self._refused.get(partition_id)

    def unopened(self) -> Mapping[PartitionId, HeadwaterError]:
        """Return the replicas that belong here and could not be opened so far, and why."""
        return dict(self._refused)

    def all(self) -> list[PartitionDriver]:
        """Return every open replica."""
        return [one for drivers in list(self._drivers.values()) for one in drivers.values()]

    def led(self) -> list[LedPartitions]:
        """Return what this broker leads, stream by stream."""
        return [_led_of(one, self.of_stream(one.uuid)) for one in list(self._streams.values())]

    # ------------------------------------------------------------------ following the metadata

    def reconcile(self, state: MetadataState, *, patience_s: float | None = None) -> Reconciled:
        """Open, inform and close replicas until they equal those of ``state``. Blocks.

        A replica that hangs is left behind after ``patience_s``. Later calls do not wait for it
        until it has caught up; then ``on_late`` is called.
        The result has a failure if a new log has no room, or if the opened mark of a log was not
        committed. The other replicas are reconciled, and the next call tries again. Each change of
        led partitions is in one result only, so the caller must tell it even after a failure.
        """
        with self._lock:
            patience_s = self._patience_s if patience_s is None else patience_s
            while (noted := self._noted.take()) is not None:
                driver = self.find(noted[1])
                if driver is None or not driver.health.is_damaged:
                    continue
                self._aside.add(driver.partition_id)
                self._come_back.add(driver.partition_id)
                self._remove({driver.partition_id.stream_uuid: [driver.partition_id.number]})
            return self._reconcile(state, patience_s)

    def wait_for(self, uuid: StreamUuid, timeout_s: float) -> bool:
        """Wait for the replicas of a stream that were left behind; tell whether there were any."""
        deadline_s = time.monotonic() + timeout_s
        calls = [call for one, call in list(self._late.items()) if one.stream_uuid == uuid]
        return bool([call.is_over(max(0.0, deadline_s - time.monotonic())) for call in calls])

    def _reconcile(self, state: MetadataState, patience_s: float) -> Reconciled:
        before, self._state = self._state, state
        refused: dict[PartitionId, HeadwaterError] = {}
        opened = False
        streams = {stream.uuid: stream for stream in state.streams.values()}
        same_brokers = before.brokers is state.brokers
        failure: HeadwaterError | None = None
        begun: list[tuple[PartitionDriver, OwnerCall]] = []
        fresh: list[PartitionDriver] = []
        for uuid, rows in state.partitions.items():
            known, drivers = before.partitions.get(uuid, ()), self._drivers.get(uuid, {})
            for number, row in enumerate(rows):
                driver = drivers.get(number)
                is_known = same_brokers and number < len(known) and known[number] is row
                if driver is not None and is_known and not _is_altered(driver, streams[uuid]):
                    continue  # first: of many partitions most are as they were
                if self.me not in row.replicas:
                    continue
                partition_id = PartitionId(uuid, PartitionNumber(number))
                if driver is None:
                    if partition_id in self._closing:
                        self._state = before
                        self._come_back.add(partition_id)
                        continue  # an earlier replica of this partition still has the files open
                    try:
                        driver = self._open(streams[uuid], number, row)
                        opened = True
                    except HeadwaterError as error:
                        refused[partition_id] = failure = error
                        _tell_once(partition_id, error, told=self._refused)
                        continue
                elif _is_altered(driver, streams[uuid]):
                    begun.append((driver, driver.configure(streams[uuid])))
                    if is_known:
                        continue
                driver.tier.learn_cold_end(row.cold_end)
                driver.tier.learn_purged(row.purged_end)
                driver.tier.learn_expired(row.remote_start)
                if not driver.health.is_damaged and self._marks.are_needed(partition_id, row):
                    fresh.append(driver)
                else:
                    begun.append(_shown(driver, state))
        self._refused = refused  # now, so that no reader finds a closed replica without its reason
        try:
            if opened:
                self._folders.sync_promises()
            self._marks.make([one.partition_id for one in fresh])
        except HeadwaterError as error:  # the logs take no record without marks
            failure = error
        else:
            begun += [_shown(one, state) for one in fresh]
        if failure is not None:
            self._state = before  # so that the next call compares every replica again
        self._streams.update(streams)
        gone, given_up = self._give_up_gone(state)
        self._wait([*begun, *given_up], patience_s)
        changed = [
            one
            for uuid in dict.fromkeys([*streams, *gone])
            if (one := self._newly_led(uuid, gone.get(uuid, ()))) is not None
        ]
        self._remove(gone)
        self._remove_closed(state, patience_s)
        return Reconciled(changed, failure)

    def _open(self, stream: Stream, number: int, row: PartitionState) -> PartitionDriver:
        driver = self._opener.open(StreamPartition(stream, number), row)
        self._drivers[stream.uuid] = {**self._drivers.get(stream.uuid, {}), number: driver}
        return driver

    def _wait(self, begun: Sequence[tuple[PartitionDriver, OwnerCall]], patience_s: float) -> None:
        """Wait until the replicas have taken their views, for a limited time in total.

        A replica whose disk hangs is left behind. It takes its view when its disk answers, and then
        :meth:`reconcile` runs again. No other replica, and no new stream, waits for it.
        """
        deadline_s = time.monotonic() + patience_s
        self._late = {one: call for one, call in self._late.items() if not call.is_over()}
        for driver, call in begun:
            known = driver.partition_id in self._late
            if not call.is_over(0.0 if known else max(0.0, deadline_s - time.monotonic())):
                _log.warning("replica_is_slow", partition=str(driver.partition_id))
                self._late[driver.partition_id] = call
                call.afterwards(self._on_late)
                continue
            try:
                driver.replication.view_taken(call)
            except HeadwaterError as error:  # the replica failed and has logged it
                _log.error("view_not_taken", partition=str(driver.partition_id), reason=str(error))

    # ------------------------------------------------------------------ closing

    def _give_up_gone(
        self, state: MetadataState
    ) -> tuple[dict[StreamUuid, list[int]], list[tuple[PartitionDriver, OwnerCall]]]:
        """Begin to close the replicas that were moved away or whose stream was deleted."""
        gone: dict[StreamUuid, list[int]] = {}
        begun: list[tuple[PartitionDriver, OwnerCall]] = []
        for uuid, drivers in list(self._drivers.items()):
            rows = state.partitions.get(uuid, ())
            for number, driver in list(drivers.items()):
                here = number < len(rows) and self.me in rows[number].replicas
                if not here:
                    begun.append((driver, driver.replication.take_view(None)))
                    gone.setdefault(uuid, []).append(number)
        return gone, begun

    def _remove(self, gone: Mapping[StreamUuid, list[int]]) -> None:
        """Close logs that no reader uses any more, and delete them."""
        for uuid, numbers in gone.items():
            drivers = self._drivers[uuid]
            self._drivers[uuid] = {n: one for n, one in drivers.items() if n not in numbers}
            closing = [drivers[number] for number in numbers]
            self._closing.update(
                {driver.partition_id: (driver, driver.begin_close()) for driver in closing}
            )
            if not self._drivers[uuid]:
                del self._drivers[uuid]
                del self._streams[uuid]
                self._led.pop(uuid, None)

    def _remove_closed(self, state: MetadataState, patience_s: float) -> None:
        """Delete the logs of removed replicas, once they are closed; set damaged ones aside.

        ``self._state`` would not do: it is an older one as long as any replica cannot be opened.
        """
        self.removal_waits = False
        deadline_s = time.monotonic() + patience_s
        for partition_id, (driver, call) in list(self._closing.items()):
            if not call.is_over(max(0.0, deadline_s - time.monotonic())):
                _log.warning("log_not_closed", partition=str(driver.partition_id))
                call.afterwards(self._on_late)
                continue
            with suppress(HeadwaterError):  # its disk failed; it is removed nevertheless
                driver.closed(call)
            row = state.partition(partition_id)
            is_here = row is not None and self.me in row.replicas
            try:
                if partition_id in self._aside and is_here:
                    self._folders.set_aside(partition_id)
                else:
                    self._folders.remove(partition_id)
            except OSError as cause:
                if not lacks_room(cause):
                    raise
                _log.warning("log_not_removed", partition=str(partition_id), reason=str(cause))
                self.removal_waits = True
                continue
            del self._closing[partition_id]
            self._aside.discard(partition_id)
            self._marks.forget(partition_id)
            if partition_id in self._come_back:  # perhaps no other change of the metadata comes
                self._come_back.discard(partition_id)
                self._on_late()

    def begin_close(self, wake: Callable[[], None] = lambda: None) -> Closing:
        """Begin to close every log; ``wake`` is called whenever one is closed."""
        with self._lock:
            begun = [(one, one.begin_close()) for one in self.all()]
        for _, call in begun:
            call.afterwards(wake)
        return Closing(begun)

    def close(self) -> bool:
        """Finish queued writes and close every log. Blocks.

        Returns whether every undamaged log was closed and synced to its end.
        """
        closing = self.begin_close()
        return self._wait_closed(closing, CLOSE_S)

    def _wait_closed(self, closing: Closing, patience_s: float) -> bool:
        """Wait until the logs are closed, ``patience_s`` at most in total."""
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
        """See ``ReplicaFolders.remove_leftovers``."""
        with self._lock:
            self._folders.remove_leftovers(
                state, self.me, is_open=lambda one: self.find(one) is not None
            )

    @property
    def complaint(self) -> str | None:
        """See ``ReplicaFolders.complaint``."""
        return self._folders.complaint

    # ------------------------------------------------------------------ damage

    def damaged(self) -> list[PartitionId]:
        """Return the replicas whose logs were damaged when they were opened."""
        return [one.partition_id for one in self.all() if one.health.is_damaged]

    def set_aside(self, partition_ids: Sequence[PartitionId], closing: Closing) -> bool:
        """Move these damaged logs aside, so that they can be examined. All are closed, or hang.

        The next :meth:`reconcile` opens all replicas again, these with empty logs. Returns the same
        as :meth:`close`.
        """
        with self._lock:
            closed_whole = self._wait_closed(closing, 0.0)
            for one in partition_ids:
                self._folders.set_aside(one)
            self._drivers.clear()
            self._led.clear()
            self._state = MetadataState()
            return closed_whole

    def begin_set_aside(self, partition_id: PartitionId) -> None:
        """Begin to move one log aside that was damaged when it was opened. Any thread.

        Returns at once: later calls of :meth:`reconcile` close the log and open the replica with an
        empty one. The other logs stay open.
        """
        self._noted.put(partition_id, partition_id)

    # ------------------------------------------------------------------ who leads

    def _newly_led(self, uuid: StreamUuid, gone: Sequence[int]) -> LedPartitions | None:
        stream = self._streams[uuid]
        led, before = _led_of(stream, self.of_stream(uuid), gone), self._led.get(uuid)
        if led == before or (before is None and not led.numbers):
            return None
        self._led[uuid] = led
        return led


def _led_of(
    stream: Stream, drivers: Mapping[int, PartitionDriver], gone: Sequence[int] = ()
) -> LedPartitions:
    """Return the partitions of a stream that these replicas lead, without those that go."""
    led = (
        number
        for number, one in drivers.items()
        if one.leads
        and not one.is_paused
        and number not in gone
        and stream.name not in _OWN_STREAMS  # written by the cluster itself only
    )
    return LedPartitions(stream, frozenset(led))


def _tell_once(
    partition_id: PartitionId, error: HeadwaterError, told: Container[PartitionId]
) -> None:
    """Log why a replica is not open, unless it was ``told``: it is tried every second."""
    if partition_id not in told:
        uuid = partition_id.stream_uuid
        _log.warning("replica_not_opened", stream_uuid=uuid, reason=error.message)


def _is_altered(driver: PartitionDriver, stream: Stream) -> bool:
    """Tell whether the settings of a replica's stream have changed."""
    return driver.stream is not stream and driver.stream != stream


def _shown(driver: PartitionDriver, state: MetadataState) -> tuple[PartitionDriver, OwnerCall]:
    """Begin to give a replica its view of a state; return the call that takes the view."""
    return driver, driver.replication.take_view(view_of(state, driver.partition_id))
