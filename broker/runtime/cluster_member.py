"""This broker as one of several: registration, heartbeats and lease, messages, proposals.

Implements ``Membership`` for the broker. Owns no partition: messages go to the turns of the replica
that they are for, changes of the metadata to the broker, which reconciles on one thread here.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import structlog

from broker.cluster_ports import ControlTransport, ReplicaAddress, ReplicaTransport
from broker.core.election import ElectionTiming
from broker.core.metadata.commands import (
    ChangeIsr,
    Command,
    ConfirmLeader,
    RegisterBroker,
    StopBroker,
    WithdrawReplica,
    encode,
)
from broker.core.metadata.placement import hand_overs, place
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.core.replication.effects import ProposeIsr
from broker.core.replication.replica import not_leader
from broker.errors import (
    CommitTimeoutError,
    DiskFullError,
    HeadwaterError,
    NotLeaderError,
    ShuttingDownError,
    UnavailableError,
)
from broker.model.control_messages import (
    ControlMessage,
    Heartbeat,
    HeartbeatAnswer,
    LeaderReport,
    LogEndAsked,
    LogEndTold,
    NewestAsked,
    NewestTold,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.replica_messages import EpochEndRequest, FetchRequest, ReplicaMessage
from broker.model.stream import Stream, StreamConfig
from broker.ports import Clock, Files
from broker.runtime.controller import Controller
from broker.runtime.partition_driver import PartitionDriver
from broker.runtime.sessions import begin_session, note_clean_stop, take_clean_stop

_log = structlog.get_logger(__name__)

_REGISTER_AGAIN_S: Final = 0.5
_RECONCILE_AGAIN_S: Final = 1.0
_NEWEST_MS: Final = 3_000
_ASK_MS: Final = 300
_PROPOSE_MS: Final = 5_000
_STOP_MS: Final = 10_000


class ClusterMetadata(Protocol):
    """What a member needs of the metadata log. See ``RaftMetadataLog``."""

    @property
    def state(self) -> MetadataState:
        """What is applied here."""

    @property
    def applied_index(self) -> int:
        """Index of the newest entry applied here."""

    @property
    def leader(self) -> str | None:
        """Who leads the metadata, as far as is known here: the broker of that name."""

    def propose(self, command: bytes, *, timeout_ms: int = ...) -> Mapping[str, Any]:
        """See ``MetadataLog.propose``."""

    def propose_soon(
        self,
        command: bytes,
        answered: Callable[[HeadwaterError | None], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Propose without waiting."""

    def subscribe(self, subscriber: Callable[[int, MetadataState], None]) -> None:
        """Hear every change."""


class ClusterBroker(Protocol):
    """The broker, as its membership sees it."""

    def replica(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return a partition's replica, if it is here."""

    def reconcile(self) -> None:
        """Be what the metadata says. Blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSetting:
    """Who this member is, and how a stream is replicated unless it says otherwise."""

    me: BrokerId
    addresses: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 3
    min_isr: int = 2
    timing: ElectionTiming = field(default_factory=ElectionTiming)


class ClusterMember:
    """Any thread. ``attach`` the broker before :meth:`start`."""

    def __init__(
        self,
        *,
        setting: MemberSetting,
        files: Files,
        metadata: ClusterMetadata,
        control: ControlTransport,
        replicas: ReplicaTransport,
        controller: Controller | None,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        stop_asked: threading.Event,
    ) -> None:
        """Join the ports; nothing is sent before :meth:`register`, which ``stop_asked`` ends."""
        self._setting = setting
        self._files = files
        self._metadata = metadata
        self._control = control
        self._replicas = replicas
        self._controller = controller
        self._clock = clock
        self._on_crash = on_crash
        self._broker: ClusterBroker | None = None
        self._broker_epoch = BrokerEpoch(0)
        self._session = ""
        self._lease_until_ms = 0
        self._reports: dict[PartitionId, LeaderEpoch] = {}
        self._reports_lock = threading.Lock()
        self._questions: dict[int, Future[NewestTold]] = {}
        # By partition: who asked how far its log reaches, for an epoch that is not heard of here.
        self._asked: dict[PartitionId, tuple[BrokerId, LogEndAsked]] = {}
        self._numbers = itertools.count(1)
        self._stop_asked = stop_asked
        self._stopping = threading.Event()
        self._hears = False
        self._changed = threading.Event()
        self._addresses: dict[PartitionId, ReplicaAddress] = {}
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (("heartbeat", self._beat), ("metadata", self._follow))
        ]

    # ------------------------------------------------------------------ life

    def attach(self, broker: ClusterBroker) -> None:
        """Work for this broker."""
        self._broker = broker

    def start(self) -> None:
        """Keep the lease and follow the metadata; after the broker has started."""
        if self._controller is not None:
            self._controller.start()
        for thread in self._threads:
            thread.start()
        self._metadata.subscribe(lambda *_: self._changed.set())

    def hand_over(self) -> None:
        """Give leaderships away before stopping, as far as others can take them. Blocks."""
        command = StopBroker(broker=self._setting.me, broker_epoch=self._broker_epoch)
        try:
            self._metadata.propose(encode(command), timeout_ms=_STOP_MS)
        except HeadwaterError as error:
            _log.warning("stopping_without_hand_over", reason=error.message)
            return
        deadline_ms = self._clock.monotonic_ms() + _STOP_MS
        while self._clock.monotonic_ms() < deadline_ms:
            if not hand_overs(self._metadata.state, self._setting.me):
                return  # also when all are stopping: there is nobody to give anything to
            self._stopping.wait(0.05)

    def stop(self) -> None:
        """End the threads and the connections. Blocks."""
        self._stopping.set()
        self._changed.set()
        if self._controller is not None:
            self._controller.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._replicas.close()
        self._control.close()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as crash:  # noqa: BLE001 - the owner ends the process
            self._on_crash(crash)

    # ------------------------------------------------------------------ membership

    def register(self) -> BrokerEpoch:
        """See ``Membership.register``: waits for a majority of the controllers.

        Raises:
            ShuttingDownError: the broker was asked to stop meanwhile.
        """
        stopped = take_clean_stop(self._files)  # before the next session, which it says nothing of
        self._session, known = begin_session(self._files)
        clean = stopped is not None and known[-1:] == (stopped,)
        command = RegisterBroker(
            broker=self._setting.me,
            session=self._session,
            known_sessions=known,
            clean=clean,
            addresses=self._setting.addresses,
            features_max=FEATURE_LEVEL_MAX,
        )
        while True:
            try:
                reply = self._metadata.propose(encode(command), timeout_ms=_PROPOSE_MS)
            except UnavailableError as error:  # the same session again is the same registration
                _log.info("waiting_for_controllers", reason=error.message)
                if self._stop_asked.wait(_REGISTER_AGAIN_S):
                    if clean:  # it is as it was
                        note_clean_stop(self._files, self._session)
                    raise ShuttingDownError("stopped before it was registered") from error
                continue
            self._broker_epoch = BrokerEpoch(reply["broker_epoch"])
            _log.info("registered", broker_epoch=self._broker_epoch)
            if not self._hears:
                self._hears = True
                self._control.start(self._control_message)
                self._replicas.start(self._replica_message)
            return self._broker_epoch

    def begin_leading(self, ends: Mapping[PartitionId, tuple[LeaderEpoch, Offset]]) -> None:
        """See ``Membership.begin_leading``: candidates say so when they confirm."""

    def logs_closed(self) -> None:
        """See ``Membership.logs_closed``."""
        if self._broker_epoch:  # else no log was opened, and what is noted is not changed
            note_clean_stop(self._files, self._session)

    def give_up(self, damaged: Sequence[PartitionId]) -> list[PartitionId]:
        """See ``Membership.give_up``."""
        return [one for one in damaged if self._give_up(one)]

    def _give_up(self, partition_id: PartitionId) -> bool:
        deadline_ms = self._clock.monotonic_ms() + _STOP_MS
        while self._clock.monotonic_ms() < deadline_ms:
            rows = self._metadata.state.partitions.get(partition_id.stream_uuid, ())
            one = rows[partition_id.number]
            if self._setting.me not in (*one.isr, *one.eligible, one.leader):
                return bool(one.isr or one.eligible)
            if {*one.isr, *one.eligible} <= {self._setting.me}:
                break
            self.withdraw(partition_id)
            self._stopping.wait(0.1)
        _log.error("damaged_replica_kept", partition=str(partition_id), reason="it is the last")
        return False

    def resolve(self, config: StreamConfig) -> StreamConfig:
        """See ``Membership.resolve``: the cluster's defaults, as far as there are brokers."""
        factor = config.replication_factor
        if factor == 0:
            factor = min(self._setting.replication_factor, len(self._metadata.state.brokers))
        min_isr = config.min_isr or min(self._setting.min_isr, factor)
        return replace(config, replication_factor=factor, min_isr=min_isr)

    def place(self, config: StreamConfig) -> tuple[tuple[BrokerId, ...], ...]:
        """See ``Membership.place``."""
        return place(
            self._metadata.state,
            partitions=config.partitions,
            replication_factor=config.replication_factor,
        )

    def make_links(self, stream: Stream, partition_id: PartitionId) -> MemberLinks:
        """See ``Membership.make_links``."""
        address = ReplicaAddress(partition_id=partition_id, stream=stream.name)
        return MemberLinks(self, address)

    def newest(self, partition_id: PartitionId, name: str) -> NewestTold:
        """See ``Membership.newest``."""
        deadline_ms = self._clock.monotonic_ms() + _NEWEST_MS
        while self._clock.monotonic_ms() < deadline_ms:
            rows = self._metadata.state.partitions.get(partition_id.stream_uuid, ())
            leader = rows[partition_id.number].leader if partition_id.number < len(rows) else None
            told = None if leader is None else self._ask_newest(leader, partition_id)
            if told is not None and told.high_watermark is not None:
                return told
            self._stopping.wait(0.02)
        raise NotLeaderError(f"nobody can say now what is committed in {name}", partition=name)

    def _ask_newest(self, leader: BrokerId, partition_id: PartitionId) -> NewestTold | None:
        number = next(self._numbers)
        if leader == self._setting.me:
            return self._tell_newest(NewestAsked(partition_id=partition_id, request_id=number))
        future: Future[NewestTold] = Future()
        self._questions[number] = future
        try:
            self._control.send(leader, NewestAsked(partition_id=partition_id, request_id=number))
            return future.result(_ASK_MS / 1000)
        except FutureTimeoutError:
            return None
        finally:
            self._questions.pop(number, None)

    # ------------------------------------------------------------------ what links ask

    @property
    def lease_until_ms(self) -> int:
        """Until when this broker may act, on its monotonic clock."""
        return self._lease_until_ms

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """Send a replica's message."""
        self._replicas.send(to, address, message)

    def propose(
        self, command: Command, answered: Callable[[HeadwaterError | None], None] = lambda _: None
    ) -> None:
        """Propose without waiting."""
        self._metadata.propose_soon(encode(command), answered, timeout_ms=_PROPOSE_MS)

    def propose_isr(
        self, partition_id: PartitionId, wanted: ProposeIsr, answered: Callable[[bool], None]
    ) -> None:
        """Propose an ISR; an outcome that is not known is no answer."""
        command = ChangeIsr(
            stream_uuid=partition_id.stream_uuid,
            partition=partition_id.number,
            broker=self._setting.me,
            broker_epoch=self._broker_epoch,
            leader_epoch=wanted.leader_epoch,
            partition_epoch=wanted.partition_epoch,
            isr=wanted.isr,
            forgotten=wanted.forgotten,
        )

        def heard(error: HeadwaterError | None) -> None:
            if not isinstance(error, CommitTimeoutError):
                answered(error is None)

        self.propose(command, heard)

    def confirm_leader(
        self, partition_id: PartitionId, leader_epoch: LeaderEpoch, log_end: Offset
    ) -> None:
        """Tell that a candidate is ready; its leadership gets an id of its own."""
        self.propose(
            ConfirmLeader(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                broker=self._setting.me,
                broker_epoch=self._broker_epoch,
                leader_epoch=leader_epoch,
                lineage_id=uuid.uuid4().hex,
                log_end=log_end,
            )
        )

    def withdraw(self, partition_id: PartitionId) -> None:
        """Take a replica out of the ISR, unless it is the last that may hold what is committed."""
        rows = self._metadata.state.partitions.get(partition_id.stream_uuid, ())
        if partition_id.number >= len(rows):
            return
        one = rows[partition_id.number]
        if {*one.isr, *one.eligible} <= {self._setting.me}:
            return
        self.propose(
            WithdrawReplica(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                broker=self._setting.me,
                broker_epoch=self._broker_epoch,
            )
        )

    def report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        """Report a silent leader, and again until the metadata has another epoch.

        Whoever is in office now may be the one that is gone.
        """
        with self._reports_lock:
            self._reports[partition_id] = leader_epoch
        self._send_report(partition_id, leader_epoch)

    def lead_changed(self, address: ReplicaAddress) -> None:
        """Let the transport take requests, or not any more."""
        assert self._broker is not None
        driver = self._broker.replica(address.partition_id)
        if driver is not None and driver.leads:
            self._replicas.serve(address)
        else:
            self._replicas.stop_serving(address)
        self._changed.set()

    # ------------------------------------------------------------------ threads

    def _beat(self) -> None:
        """Show life a few times a session, and repeat reports."""
        while not self._stopping.wait(self._setting.timing.session_ms / 6000):
            self._send_heartbeat()
            with self._reports_lock:
                reports = list(self._reports.items())
            for partition_id, leader_epoch in reports:
                self._send_report(partition_id, leader_epoch)

    def _send_heartbeat(self) -> None:
        controller = self._controller_id()
        if controller is not None:
            heartbeat = Heartbeat(
                broker_epoch=self._broker_epoch,
                sent_ms=self._clock.monotonic_ms(),
                applied_index=self._metadata.applied_index,
            )
            self._control.send(controller, heartbeat)

    def _controller_id(self) -> BrokerId | None:
        leader = self._metadata.leader
        return None if leader is None else BrokerId(leader)

    def _send_report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        rows = self._metadata.state.partitions.get(partition_id.stream_uuid, ())
        current = partition_id.number < len(rows) and rows[partition_id.number]
        if not current or current.leader_epoch != leader_epoch or current.leader is None:
            with self._reports_lock:
                self._reports.pop(partition_id, None)
            return
        controller = self._controller_id()
        if controller is not None:
            report = LeaderReport(
                partition_id=partition_id,
                broker_epoch=self._broker_epoch,
                leader_epoch=leader_epoch,
            )
            self._control.send(controller, report)

    def _follow(self) -> None:
        """Reconcile after every change; changes that come meanwhile are one."""
        assert self._broker is not None
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._stopping.is_set():
                return
            registered = self._metadata.state.brokers.get(self._setting.me)
            if registered is not None and registered.epoch > self._broker_epoch:
                raise NotLeaderError(
                    f"another process has registered as {self._setting.me}",
                    broker=self._setting.me,
                )
            try:
                self._broker.reconcile()
            except DiskFullError as error:
                _log.warning("replica_not_opened", reason=error.message)
                self._stopping.wait(_RECONCILE_AGAIN_S)
                self._changed.set()
            for partition_id in list(self._asked):
                self._tell_log_end_again(partition_id)

    # ------------------------------------------------------------------ messages

    def _replica_message(
        self, sender: BrokerId, partition_id: PartitionId, message: ReplicaMessage
    ) -> None:
        assert self._broker is not None
        driver = self._broker.replica(partition_id)
        if isinstance(message, FetchRequest | EpochEndRequest):
            if message.follower != sender:
                return  # who sent it is proved, what it says of itself is not
            if driver is None:  # it has heard of the partition first: let it ask again soon
                address = ReplicaAddress(partition_id=partition_id, stream="")
                self._replicas.send(sender, address, not_leader(message))
        if driver is not None:
            driver.deliver(message)

    def _control_message(self, sender: BrokerId, message: ControlMessage) -> None:
        match message:
            case HeartbeatAnswer():
                self._take_lease(message)
            case LogEndAsked():
                self._tell_log_end(sender, message)
            case NewestAsked():
                self._control.send(sender, self._tell_newest(message))
            case NewestTold():
                future = self._questions.get(message.request_id)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                if self._controller is not None:
                    self._controller.deliver(sender, message)

    def _take_lease(self, answer: HeartbeatAnswer) -> None:
        if answer.granted and answer.broker_epoch == self._broker_epoch:
            until_ms = answer.sent_ms + self._setting.timing.lease_ms()
            self._lease_until_ms = max(self._lease_until_ms, until_ms)

    def _tell_log_end(self, controller: BrokerId, asked: LogEndAsked) -> None:
        """Answer at once, which is enough for a process that was proved; and once more when the
        epoch that was asked about is heard of here, for only then this log follows nobody.
        """  # noqa: D205 - one thought
        assert self._broker is not None
        rows = self._metadata.state.partitions.get(asked.partition_id.stream_uuid, ())
        if not asked.partition_id.number < len(rows):
            return
        self._asked[asked.partition_id] = (controller, asked)  # first: it may be heard of now
        self._tell_log_end_again(asked.partition_id, at_once=True)

    def _tell_log_end_again(self, partition_id: PartitionId, *, at_once: bool = False) -> None:
        assert self._broker is not None
        driver, question = self._broker.replica(partition_id), self._asked.get(partition_id)
        if question is None or driver is None or driver.failure is not None:
            return
        controller, asked = question
        known = LeaderEpoch(0) if driver.view is None else driver.view.leader_epoch
        if known >= asked.leader_epoch:
            self._asked.pop(partition_id, None)
        elif not at_once:
            return
        last_epoch, end = driver.synced_position  # after the view: what came before is in it
        told = LogEndTold(
            partition_id=partition_id,
            broker_epoch=self._broker_epoch,
            leader_epoch=known,
            last_epoch=last_epoch,
            log_end=end,
        )
        self._control.send(controller, told)

    def _tell_newest(self, asked: NewestAsked) -> NewestTold:
        assert self._broker is not None
        driver = self._broker.replica(asked.partition_id)
        newest = None if driver is None else driver.newest_committed
        if driver is None or newest is None:
            return NewestTold(partition_id=asked.partition_id, request_id=asked.request_id)
        return NewestTold(
            partition_id=asked.partition_id,
            request_id=asked.request_id,
            leader_epoch=driver.leader_epoch,
            log_start=driver.log_start,
            high_watermark=newest,
        )


class MemberLinks:
    """Implements ``ReplicaLinks`` for one partition."""

    def __init__(self, member: ClusterMember, address: ReplicaAddress) -> None:
        """Speak for the partition at ``address``."""
        self._member = member
        self._address = address

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """See ``ReplicaLinks.send``."""
        self._member.send(to, self._address, message)

    def propose_isr(self, wanted: ProposeIsr, answered: Callable[[bool], None]) -> None:
        """See ``ReplicaLinks.propose_isr``."""
        self._member.propose_isr(self._address.partition_id, wanted, answered)

    def confirm_leader(self, leader_epoch: LeaderEpoch, log_end: Offset) -> None:
        """See ``ReplicaLinks.confirm_leader``."""
        self._member.confirm_leader(self._address.partition_id, leader_epoch, log_end)

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """See ``ReplicaLinks.report_leader``."""
        self._member.report(self._address.partition_id, leader_epoch)

    def lease_until_ms(self) -> int:
        """See ``ReplicaLinks.lease_until_ms``."""
        return self._member.lease_until_ms

    def withdraw(self, reason: HeadwaterError) -> None:  # noqa: ARG002 - said by the driver
        """See ``ReplicaLinks.withdraw``."""
        self._member.withdraw(self._address.partition_id)

    def lead_changed(self) -> None:
        """See ``ReplicaLinks.lead_changed``."""
        self._member.lead_changed(self._address)
