"""This broker as a member of a cluster: its pumps and their drivers, messages, proposals.

Implements ``Membership`` for the broker. Owns no partition: it hands messages to the replica's
turns, and changes of the metadata to the broker. Regular work is in pumps (``MemberBeats``,
``MetadataFollower``). A single task is a pump with an answer (``Registration``, ``errands.py``); a
blocking method takes such a pump's turns on the caller's thread.

The file is not split: what a replica's links ask of the member is read beside the member.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from broker.core.election import ElectionTiming
from broker.core.metadata.placement import place
from broker.core.metadata.state import MetadataState
from broker.core.replication.effects import ProposeIsr
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.core.replication.replica import not_leader
from broker.core.replication.standing import StandingFetch, StandingReplica
from broker.errors import (
    HeadwaterError,
    NotLeaderError,
)
from broker.model.control_messages import (
    ControlMessage,
    HeartbeatAnswer,
    LogEndAsked,
    NewestAsked,
    NewestTold,
    RollAnswer,
    RollCall,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.replica_messages import EpochEndRequest, FetchRequest, ReplicaMessage
from broker.model.stream import EVERY_BROKER, REPLICAS_MAX, Stream, StreamConfig
from broker.ports.cluster import (
    ControlTransport,
    ReplicaAddress,
    ReplicaTransport,
    WriteTransport,
)
from broker.ports.partition import PartitionWriter
from broker.ports.pumps import Drive, Driven
from broker.ports.system import Clock, Files
from broker.runtime.cluster.beats import MemberBeats
from broker.runtime.cluster.controller import Controller
from broker.runtime.cluster.errands import AskingNewest, GivingUp, HandingOver
from broker.runtime.cluster.forwarding import ForwardedWrites, LeadersWriter
from broker.runtime.cluster.membership import CONFIRM_MS
from broker.runtime.cluster.proposals import MemberProposals
from broker.runtime.cluster.questions import LogEndAnswers, NewestQuestions
from broker.runtime.cluster.registration import Registration
from broker.runtime.cluster.roll_calls import RollCalls
from broker.runtime.cluster.withdrawals import Withdrawals
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.ingest.sessions import note_clean_stop
from broker.runtime.metadata.follower import MetadataFollower
from broker.runtime.metadata.metadata_log import MetadataLog
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.pumps import on_threads, wait_for_answer

_log = structlog.get_logger(__name__)


class ClusterBroker(Protocol):
    """The broker, as its membership sees it."""

    @property
    def replicas(self) -> HostedPartitions:
        """The replicas that are here."""

    def reconcile(self) -> None:
        """Apply the newest local metadata. Blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSetting:
    """The identity of this member, and the default replication of new streams."""

    me: BrokerId
    addresses: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 3
    min_isr: int = 2
    timing: ElectionTiming = field(default_factory=ElectionTiming)
    following: FollowerTiming = field(default_factory=FollowerTiming)
    limits: LagLimits = field(default_factory=LagLimits)


class ClusterMember:
    """Any thread. ``attach`` the broker before :meth:`start`.

    The class is not split: it has a method for each one of the port ``Membership``, and each hands
    its work to a pump or an errand.
    """

    def __init__(
        self,
        *,
        setting: MemberSetting,
        files: Files,
        metadata: MetadataLog,
        control: ControlTransport,
        replicas: ReplicaTransport,
        controller: Controller | None,
        writes: WriteTransport | None = None,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        stop_asked: threading.Event,
        drive: Drive | None = None,
    ) -> None:
        """Connect the ports; nothing is sent before :meth:`registering`; ``stop_asked`` ends it."""
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
        self.proposals = MemberProposals(setting.me, metadata)
        self._questions = NewestQuestions(setting.me, control, self._replica)
        self._log_ends = LogEndAnswers(control, self._replica, lambda: metadata.state)
        self._stop_asked = stop_asked
        self._hears = False
        self._followed: tuple[object, ...] = (None,) * 5  # the facts that the last turn saw
        self._writes = (
            None
            if writes is None
            else ForwardedWrites(
                setting.me,
                writes,
                self._replica,
                lambda: metadata.state,
                clock,
                refusal=lambda partition_id: self._hosted().refusal(partition_id),
            )
        )
        drive = drive or on_threads(clock, on_crash)
        self._beats = MemberBeats(
            metadata=metadata,
            control=control,
            timing=setting.timing,
            broker_epoch=lambda: self._broker_epoch,
            misses_leader=self._misses_leader,
        )
        self._follower = MetadataFollower(self._follow, wake=self._wake_follower)
        self._following = drive("metadata", self._follower.turn)
        self._withdrawals = self._make_withdrawals()
        self._withdrawing = drive("withdrawals", self._withdrawals.turn)
        beating = drive("heartbeat", self._beats.turn)
        self._driven: list[Driven] = [beating, self._following, self._withdrawing]
        self._rolls = RollCalls(
            control=control,
            clock=clock,
            broker_epoch=lambda: self._broker_epoch,
            call_ms=setting.following.call_ms,
            own_kept_ms=setting.following.kept_ms,
            kept_ms=setting.limits.kept_ms,
        )
        if setting.following.stand_ms:
            self._driven.append(drive("roll-calls", self._rolls.turn))
        if self._writes is not None:
            self._driven.append(drive("forwarded-writes", self._writes.turn))

    def _make_withdrawals(self) -> Withdrawals:
        return Withdrawals(
            me=self._setting.me,
            metadata=self._metadata,
            find=self._replica,
            propose=self.proposals.withdrawal,
            set_aside=lambda partition_id: self._hosted().begin_set_aside(partition_id),
            wake=self._wake_withdrawing,
        )

    # ------------------------------------------------------------------ life

    def attach(self, broker: ClusterBroker) -> None:
        """Set the broker whose replicas this member serves."""
        self._broker = broker

    def start(self) -> None:
        """Keep the lease and follow the metadata; after the broker has started."""
        if self._controller is not None:
            self._controller.start()
        for driven in self._driven:
            driven.start()
        self._metadata.subscribe(self._metadata_changed)

    def _metadata_changed(self, _index: int, state: MetadataState) -> None:
        """Wake the follower, unless only cursors or groups changed: they move no replica."""
        followed = (state.streams, state.partitions, state.brokers, state.deleted, state.leases)
        if any(one is not two for one, two in zip(followed, self._followed, strict=True)):
            self._followed = followed
            self._follower.changed()

    def hand_over(self) -> None:
        """Hand leaderships over before a stop, as far as other replicas can lead. Blocks."""
        wait_for_answer(self._clock, lambda *calls: self.handing_over(*calls).turn)

    def handing_over(
        self, wake: Callable[[], None], answered: Callable[[bool], None]
    ) -> HandingOver:
        """Return the pump that hands leaderships over. See ``hand_over``."""
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
        if self._writes is not None:
            self._writes.close()
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
        """Act under this broker epoch from now on, and accept messages of other brokers."""
        self._session, self._broker_epoch = session, broker_epoch
        self.proposals.registered(broker_epoch)
        self._questions.registered(broker_epoch)
        self._log_ends.registered(broker_epoch)
        if self._writes is not None:
            self._writes.registered(broker_epoch)
        if not self._hears:
            self._hears = True
            self._control.start(self._control_message)
            self._replicas.start(self._replica_message)
            if self._writes is not None:
                self._writes.start()

    def begin_leading(self, ends: Mapping[PartitionId, tuple[LeaderEpoch, Offset]]) -> None:
        """See ``Membership.begin_leading``: nothing to do, candidates confirm each leadership."""

    def logs_closed(self) -> None:
        """See ``Membership.logs_closed``."""
        if self._broker_epoch:  # else no log was opened, so the note stays as it is
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
            withdraw=lambda one: self.proposals.withdrawal(one, lambda _: wake()),
            answered=answered,
        )

    def confirm_metadata(self, passed: Callable[[HeadwaterError | None], None]) -> None:
        """See ``Membership.confirm_metadata``: by a barrier at a majority."""
        self._metadata.barrier_soon(passed, timeout_ms=CONFIRM_MS)

    def resolve(self, config: StreamConfig) -> StreamConfig:
        """See ``Membership.resolve``: the cluster's defaults, at most one replica a broker."""
        factor = config.replication_factor
        brokers = len(self._metadata.state.brokers)
        if factor == EVERY_BROKER:
            factor = min(brokers, REPLICAS_MAX)
        if factor == 0:
            factor = min(self._setting.replication_factor, brokers)
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

    def leaders_writer(self, partition_id: PartitionId, name: str) -> PartitionWriter:
        """See ``Membership.leaders_writer``."""
        if self._writes is None:
            raise NotLeaderError(f"this broker does not lead {name}", partition=str(partition_id))
        return LeadersWriter(self._writes, partition_id, name)

    def newest(self, partition_id: PartitionId, name: str) -> NewestTold:
        """See ``Membership.newest``."""
        told: NewestTold | HeadwaterError = wait_for_answer(
            self._clock, lambda *calls: self.asking_newest(partition_id, name, *calls).turn
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
            ask=lambda leader, told: self._questions.ask(leader, partition_id, told),
            wake=wake,
            answered=answered,
        )

    # ------------------------------------------------------------------ what links ask

    @property
    def lease_until_ms(self) -> int:
        """The end of this broker's lease, on its monotonic clock."""
        return self._beats.lease_until_ms

    def lease_of(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> int:
        """Return the end of the lease for one leadership: see ``ReplicaLinks.lease_until_ms``.

        The lease is read first: when it was granted, the metadata here had every replacement that
        was ``hear_ms`` old (decision 0061).
        """
        until_ms = self._beats.lease_until_ms
        row = self._metadata.state.partition(partition_id)
        return 0 if row is not None and row.leader_epoch > leader_epoch else until_ms

    @property
    def lease_lapses(self) -> int:
        """How often this broker's lease had ended before it was extended."""
        return self._beats.lapses_count

    def keep(
        self,
        partition_id: PartitionId,
        replica: StandingReplica,
        standing: Collection[StandingFetch],
    ) -> None:
        """See ``RollCalls.keep``."""
        self._rolls.keep(partition_id, replica, standing)

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """Send a replica's message."""
        self._replicas.send(to, address, message)

    def report(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
        """See ``MemberBeats.report``."""
        self._beats.report(partition_id, leader_epoch)

    def withdraw(self, partition_id: PartitionId) -> None:
        """See ``Withdrawals.add``."""
        self._withdrawals.add(partition_id)

    def lead_changed(self, address: ReplicaAddress, *, leads: bool) -> None:
        """Tell the transport to begin or to stop taking requests for this partition."""
        if leads:
            self._replicas.serve(address)
        else:
            self._replicas.stop_serving(address)
        self._follower.changed()

    def _wake_follower(self) -> None:
        self._following.wake()

    def _wake_withdrawing(self) -> None:
        self._withdrawing.wake()

    def _follow(self) -> None:
        """Carry out a change of the metadata."""
        assert self._broker is not None
        registered = self._metadata.state.brokers.get(self._setting.me)
        if registered is not None and registered.epoch > self._broker_epoch:
            raise NotLeaderError(
                f"another process has registered as broker {self._setting.me}: stop one of the two",
                broker=self._setting.me,
            )
        try:
            self._broker.reconcile()
        finally:  # also if a new replica has no room
            self._log_ends.answer_again()

    # ------------------------------------------------------------------ messages

    def _replica_message(
        self, sender: BrokerId, partition_id: PartitionId, message: ReplicaMessage
    ) -> None:
        driver = self._replica(partition_id)
        if isinstance(message, FetchRequest | EpochEndRequest):
            if message.follower != sender:
                return  # TLS proves the sender; the name inside the message differs
            if driver is None:  # the sender has newer metadata, and will ask again
                address = ReplicaAddress(partition_id=partition_id, stream="")
                self._replicas.send(sender, address, not_leader(message))
        if driver is not None:
            driver.replication.deliver(message)

    def _control_message(self, sender: BrokerId, message: ControlMessage) -> None:
        match message:
            case HeartbeatAnswer():
                self._beats.take_lease(message, self._clock.monotonic_ms())
            case RollCall():
                self._rolls.called(sender, message)
            case RollAnswer():
                self._rolls.answered(sender, message)
            case LogEndAsked():
                self._log_ends.asked(sender, message)
            case NewestAsked():
                self._questions.answer_to(sender, message)
            case NewestTold():
                self._questions.answered(message)
            case _:
                if self._controller is not None:
                    self._controller.deliver(sender, message)

    def _misses_leader(self, partition_id: PartitionId, leader_epoch: LeaderEpoch) -> bool:
        driver = self._replica(partition_id)
        return driver is not None and driver.replication.misses_leader(leader_epoch)

    def _replica(self, partition_id: PartitionId) -> PartitionDriver | None:
        return self._hosted().find(partition_id)

    def _hosted(self) -> HostedPartitions:
        assert self._broker is not None
        return self._broker.replicas


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
        self._member.proposals.isr(self._address.partition_id, wanted, answered)

    def confirm_leader(
        self, leader_epoch: LeaderEpoch, log_end: Offset, log_epoch: LeaderEpoch
    ) -> None:
        """See ``ReplicaLinks.confirm_leader``."""
        proposals = self._member.proposals
        proposals.leader(self._address.partition_id, leader_epoch, log_end, log_epoch)

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """See ``ReplicaLinks.report_leader``."""
        self._member.report(self._address.partition_id, leader_epoch)

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:
        """See ``ReplicaLinks.lease_until_ms``."""
        return self._member.lease_of(self._address.partition_id, leader_epoch)

    def lease_lapses(self) -> int:
        """See ``ReplicaLinks.lease_lapses``."""
        return self._member.lease_lapses

    def keep(self, replica: StandingReplica, standing: Collection[StandingFetch]) -> None:
        """See ``ReplicaLinks.keep``."""
        self._member.keep(self._address.partition_id, replica, standing)

    def withdraw(self, reason: HeadwaterError) -> None:  # noqa: ARG002 - said by the driver
        """See ``ReplicaLinks.withdraw``."""
        self._member.withdraw(self._address.partition_id)

    def lead_changed(self, *, leads: bool) -> None:
        """See ``ReplicaLinks.lead_changed``."""
        self._member.lead_changed(self._address, leads=leads)
