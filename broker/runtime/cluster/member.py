"""This broker as one of several: its pumps and who drives them, messages, proposals.

Implements ``Membership`` for the broker. Owns no partition: messages go to the turns of the replica
that they are for, changes of the metadata to the broker. What goes on by itself are pumps
(``MemberBeats``, ``MetadataFollower``); what is done once is a pump that answers (``Registration``,
``errands.py``), and what blocks here takes its turns on the caller's thread.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import structlog

from broker.core.election import ElectionTiming
from broker.core.metadata.commands import (
    ChangeIsr,
    Command,
    ConfirmLeader,
    WithdrawReplica,
)
from broker.core.metadata.placement import place
from broker.core.replication.effects import ProposeIsr
from broker.core.replication.replica import first_request_id, not_leader
from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    NotLeaderError,
)
from broker.model.control_messages import (
    ControlMessage,
    HeartbeatAnswer,
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
from broker.ports.cluster import ControlTransport, ReplicaAddress, ReplicaTransport
from broker.ports.pumps import Drive, Driven
from broker.ports.system import Clock, Files
from broker.runtime.cluster.beats import MemberBeats
from broker.runtime.cluster.controller import Controller
from broker.runtime.cluster.errands import AskingNewest, GivingUp, HandingOver
from broker.runtime.cluster.membership import CONFIRM_MS
from broker.runtime.cluster.registration import Registration
from broker.runtime.ingest.sessions import note_clean_stop
from broker.runtime.metadata import newest_told
from broker.runtime.metadata.follower import MetadataFollower
from broker.runtime.metadata.metadata_log import MetadataLog
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.pumps import on_threads, wait_for_answer

_log = structlog.get_logger(__name__)

_PROPOSE_MS: Final = 5_000


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
        metadata: MetadataLog,
        control: ControlTransport,
        replicas: ReplicaTransport,
        controller: Controller | None,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        stop_asked: threading.Event,
        drive: Drive | None = None,
    ) -> None:
        """Join the ports; nothing is sent before :meth:`registering`, which ``stop_asked`` ends."""
        self._setting = setting
        self._files = files
        self._metadata = metadata
        self._control = control
        self._replicas = replicas
        self._controller = controller
        self._clock = clock
        self._broker: ClusterBroker | None = None
        self._broker_epoch = BrokerEpoch(0)
        self._session = ""
        self._questions: dict[int, Callable[[NewestTold], None]] = {}
        # By partition: who asked how far its log reaches, for an epoch that is not heard of here.
        self._asked: dict[PartitionId, tuple[BrokerId, LogEndAsked]] = {}
        self._numbers = itertools.count(1)  # of questions, until it is registered
        self._stop_asked = stop_asked
        self._hears = False
        drive = drive or on_threads(clock, on_crash)
        self._beats = MemberBeats(
            metadata=metadata,
            control=control,
            timing=setting.timing,
            broker_epoch=lambda: self._broker_epoch,
        )
        self._follower = MetadataFollower(self._follow, wake=self._wake_follower)
        self._following = drive("metadata", self._follower.turn)
        self._driven: list[Driven] = [drive("heartbeat", self._beats.turn), self._following]

    # ------------------------------------------------------------------ life

    def attach(self, broker: ClusterBroker) -> None:
        """Work for this broker."""
        self._broker = broker

    def start(self) -> None:
        """Keep the lease and follow the metadata; after the broker has started."""
        if self._controller is not None:
            self._controller.start()
        for driven in self._driven:
            driven.start()
        self._metadata.subscribe(lambda *_: self._follower.changed())

    def hand_over(self) -> None:
        """Give leaderships away before stopping, as far as others can take them. Blocks."""
        wait_for_answer(self._clock, lambda *ears: self.handing_over(*ears).turn)

    def handing_over(
        self, wake: Callable[[], None], answered: Callable[[bool], None]
    ) -> HandingOver:
        """Return the pump that hands over."""
        return HandingOver(
            me=self._setting.me,
            broker_epoch=self._broker_epoch,
            metadata=self._metadata,
            wake=wake,
            answered=answered,
        )

    def stop(self) -> None:
        """End the threads and the connections. Blocks."""
        if self._controller is not None:
            self._controller.stop()
        for driven in self._driven:
            driven.stop()
        self._replicas.close()
        self._control.close()

    # ------------------------------------------------------------------ membership

    def registering(
        self, wake: Callable[[], None], answered: Callable[[BrokerEpoch], None]
    ) -> Registration:
        """See ``Membership.registering``: it needs a majority of the controllers."""

        def registered(session: str, broker_epoch: BrokerEpoch) -> None:
            self._registered(session, broker_epoch)
            answered(broker_epoch)

        return Registration(
            me=self._setting.me,
            addresses=self._setting.addresses,
            files=self._files,
            metadata=self._metadata,
            stop_asked=self._stop_asked.is_set,
            wake=wake,
            answered=registered,
        )

    def _registered(self, session: str, broker_epoch: BrokerEpoch) -> None:
        """Be the process that was registered, and hear what others say to it."""
        self._session, self._broker_epoch = session, broker_epoch
        # What the process before this one asked may be answered to this one, late.
        self._numbers = itertools.count(first_request_id(broker_epoch))
        if not self._hears:
            self._hears = True
            self._control.start(self._control_message)
            self._replicas.start(self._replica_message)

    def begin_leading(self, ends: Mapping[PartitionId, tuple[LeaderEpoch, Offset]]) -> None:
        """See ``Membership.begin_leading``: candidates say so when they confirm."""

    def logs_closed(self) -> None:
        """See ``Membership.logs_closed``."""
        if self._broker_epoch:  # else no log was opened, and what is noted is not changed
            note_clean_stop(self._files, self._session)

    def giving_up(
        self,
        damaged: Sequence[PartitionId],
        wake: Callable[[], None],
        answered: Callable[[list[PartitionId]], None],
    ) -> GivingUp:
        """See ``Membership.giving_up``."""
        return GivingUp(
            damaged,
            me=self._setting.me,
            metadata=self._metadata,
            withdraw=lambda one: self.withdraw(one, lambda _: wake()),
            answered=answered,
        )

    def confirm_metadata(self, passed: Callable[[HeadwaterError | None], None]) -> None:
        """See ``Membership.confirm_metadata``: a majority vouches for it."""
        self._metadata.barrier_soon(passed, timeout_ms=CONFIRM_MS)

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
        told: NewestTold | HeadwaterError = wait_for_answer(
            self._clock, lambda *ears: self.asking_newest(partition_id, name, *ears).turn
        )
        if isinstance(told, HeadwaterError):
            raise told
        return told

    def asking_newest(
        self,
        partition_id: PartitionId,
        name: str,
        wake: Callable[[], None],
        answered: Callable[[NewestTold | HeadwaterError], None],
    ) -> AskingNewest:
        """Return the pump that asks the leader of a partition, called ``name``."""
        return AskingNewest(
            partition_id,
            name,
            metadata=self._metadata,
            ask=lambda leader, told: self._ask_newest(leader, partition_id, told),
            wake=wake,
            answered=answered,
        )

    def _ask_newest(
        self, leader: BrokerId, partition_id: PartitionId, told: Callable[[NewestTold], None]
    ) -> Callable[[], None]:
        """Put a question; return what drops it."""
        number = next(self._numbers)
        asked = NewestAsked(partition_id=partition_id, request_id=number)
        if leader == self._setting.me:
            told(self._tell_newest(asked))
        else:
            self._questions[number] = told
            self._control.send(leader, asked)
        return partial(self._drop_question, number)

    def _drop_question(self, number: int) -> None:
        self._questions.pop(number, None)

    # ------------------------------------------------------------------ what links ask

    @property
    def lease_until_ms(self) -> int:
        """Until when this broker may act, on its monotonic clock."""
        return self._beats.lease_until_ms

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """Send a replica's message."""
        self._replicas.send(to, address, message)

    def propose(
        self, command: Command, answered: Callable[[HeadwaterError | None], None] = lambda _: None
    ) -> None:
        """Propose without waiting."""
        self._metadata.propose_soon(command, answered, timeout_ms=_PROPOSE_MS)

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

    def withdraw(
        self,
        partition_id: PartitionId,
        answered: Callable[[HeadwaterError | None], None] = lambda _: None,
    ) -> None:
        """Take a replica out of the ISR, unless it is the last that may hold what is committed."""
        one = self._metadata.state.partition(partition_id)
        if one is None:
            return
        if {*one.isr, *one.eligible} <= {self._setting.me}:
            return
        self.propose(
            WithdrawReplica(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                broker=self._setting.me,
                broker_epoch=self._broker_epoch,
            ),
            answered,
        )

    def report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        """See ``MemberBeats.report``."""
        self._beats.report(partition_id, leader_epoch)

    def lead_changed(self, address: ReplicaAddress) -> None:
        """Let the transport take requests, or not any more."""
        assert self._broker is not None
        driver = self._broker.replica(address.partition_id)
        if driver is not None and driver.leads:
            self._replicas.serve(address)
        else:
            self._replicas.stop_serving(address)
        self._follower.changed()

    def _wake_follower(self) -> None:
        self._following.wake()

    def _follow(self) -> None:
        """Do what a change of the metadata asks for."""
        assert self._broker is not None
        registered = self._metadata.state.brokers.get(self._setting.me)
        if registered is not None and registered.epoch > self._broker_epoch:
            raise NotLeaderError(
                f"another process has registered as {self._setting.me}",
                broker=self._setting.me,
            )
        try:
            self._broker.reconcile()
        finally:  # also those of a broker that has no room for another replica
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
            driver.replication.deliver(message)

    def _control_message(self, sender: BrokerId, message: ControlMessage) -> None:
        match message:
            case HeartbeatAnswer():
                self._beats.take_lease(message)
            case LogEndAsked():
                self._tell_log_end(sender, message)
            case NewestAsked():
                self._control.send(sender, self._tell_newest(message))
            case NewestTold():
                told = self._questions.pop(message.request_id, None)
                if told is not None:
                    told(message)
            case _:
                if self._controller is not None:
                    self._controller.deliver(sender, message)

    def _tell_log_end(self, controller: BrokerId, asked: LogEndAsked) -> None:
        """Answer at once, which is enough for a process that was proved; and once more when the
        epoch that was asked about is heard of here, for only then this log follows nobody.
        """  # noqa: D205 - one thought
        assert self._broker is not None
        if self._metadata.state.partition(asked.partition_id) is None:
            return
        self._asked[asked.partition_id] = (controller, asked)  # first: it may be heard of now
        self._tell_log_end_again(asked.partition_id, at_once=True)

    def _tell_log_end_again(self, partition_id: PartitionId, *, at_once: bool = False) -> None:
        assert self._broker is not None
        driver, question = self._broker.replica(partition_id), self._asked.get(partition_id)
        if question is None or driver is None or driver.health.failure is not None:
            return
        controller, asked = question
        view = driver.replication.view
        known = LeaderEpoch(0) if view is None else view.leader_epoch
        if known >= asked.leader_epoch:
            self._asked.pop(partition_id, None)
        elif not at_once:
            return
        # After the view: what came before is in it.
        last_epoch, end = driver.replication.synced_position
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
        return newest_told.newest_told(self._broker.replica(asked.partition_id), asked)


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
