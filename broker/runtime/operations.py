"""The operators' interface of a broker: the state of the cluster, and changes by operators.

Every broker answers for the whole cluster from its applied metadata (after a barrier, if a
majority answers), and for its own replicas. A change is an ordinary metadata command with the
epochs on which it was decided. If another change came first, the plan is made again on the new
state. Implements ``OperatorApi``.

The file is not split: each command is a short plan, read beside the port that it implements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import structlog

from broker.core.metadata.commands import (
    Command,
    ElectUnclean,
    NameCandidate,
    ReassignReplicas,
    RemoveBroker,
)
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.placement import balance
from broker.core.metadata.state import FEATURE_LEVEL_FENCED, MetadataState, PartitionState
from broker.core.raft.events import ChangeRefusal
from broker.errors import (
    EncryptionKeyError,
    FencedError,
    HeadwaterError,
    IneligibleReplicaError,
    InvalidRequestError,
    StaleBrokerEpochError,
    StaleLeaderEpochError,
    StalePartitionEpochError,
    UnavailableError,
    UnknownBrokerError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cluster_status import (
    ClusterStatus,
    ControllerChanged,
    ControllersStatus,
    ControllerStatus,
    FollowerStatus,
    Proposed,
    ReplicaCompaction,
    ReplicaStatus,
)
from broker.model.epochs import PartitionEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.raft import GroupSeen, NodeId, VoterChanged
from broker.model.replica_state import ReplicaState
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.runtime.api.feature_levels import raise_level
from broker.runtime.asked_compactions import CompactedReplicas, ask_to_compact
from broker.runtime.cluster.summary import brokers_of, partitions_of
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.driver import PartitionDriver

_log = structlog.get_logger(__name__)

_ATTEMPTS: Final = 5  # of one change, if other changes come first
_BARRIER_MS: Final = 5_000
_NEVER: Final = frozenset(
    one.value for one in (ChangeRefusal.LAST, ChangeRefusal.TOO_MANY, ChangeRefusal.FIXED)
)
_STALE: Final = (StaleBrokerEpochError, StaleLeaderEpochError, StalePartitionEpochError)


class OperatedVoters(Protocol):
    """The Raft member beneath the metadata log, as operators need it."""

    @property
    def voters(self) -> tuple[str, ...]:
        """Which brokers vote on the metadata."""

    def group(self) -> GroupSeen:
        """Return who votes and who watches."""

    def change_voter(self, node: NodeId, *, votes: bool) -> VoterChanged:
        """Take the next step of making a member a voter or an observer."""


class OperatedReplicas(CompactedReplicas, Protocol):
    """The local replicas."""

    def all(self) -> list[PartitionDriver]:
        """Return every open replica."""

    def unopened(self) -> Mapping[PartitionId, HeadwaterError]:
        """Return the replicas that belong here and could not be opened so far, and why."""


class OperatedTables(Protocol):
    """The tables of the streams."""

    def learn_end(self, name: str, partition: int) -> None:
        """Record how far the table reaches, as the table itself says. Blocks.

        Raises:
            RemoteTierUnavailableError: the table cannot be asked.
            CorruptDataError: the table is damaged or not of this stream.
        """


class OperatedBroker(Protocol):
    """The parts of a broker that operators ask."""

    @property
    def replicas(self) -> OperatedReplicas:
        """The local replicas."""

    @property
    def cold(self) -> OperatedTables:
        """The tables of the streams."""


class ClusterOperations:
    """Implements ``OperatorApi``. Blocking; any thread."""

    def __init__(
        self,
        *,
        cluster: str,
        me: BrokerId,
        metadata: WaitingMetadata,
        broker: OperatedBroker,
        clock: Clock,
        controllers: Sequence[str] = (),
        controller: Callable[[], str | None] | None = None,
        voters: OperatedVoters | None = None,
        missing: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Without ``controllers`` this broker is its own cluster, and its own controller."""
        self._cluster = cluster
        self._me = me
        self._metadata = metadata
        self._broker = broker
        self._clock = clock
        self._controllers = tuple(controllers)
        self._voters = voters
        self._missing = missing
        self._controller = controller or (lambda: me)

    # ------------------------------------------------------------------ looking

    def status(self, *, confirm_ms: int = 1_000) -> ClusterStatus:
        """See ``OperatorApi.status``."""
        try:
            self._metadata.barrier(timeout_ms=confirm_ms)
        except UnavailableError:
            confirmed = False
        else:
            confirmed = True
        state = self._metadata.state
        controller = self._controller()
        return ClusterStatus(
            cluster=self._cluster,
            told_by=self._me,
            alone=not self._controllers,
            confirmed=confirmed,
            controller=controller,
            controllers=self._voting(),
            feature_level=state.feature_level,
            brokers=tuple(brokers_of(state, controller)),
            partitions=tuple(partitions_of(state)),
            missing=tuple(self._missing()),
        )

    def _voting(self) -> tuple[str, ...]:
        if not self._controllers or self._voters is None:
            return self._controllers
        return self._voters.voters

    def controllers(self) -> ControllersStatus:
        """See ``OperatorApi.controllers``."""
        if not self._controllers or self._voters is None:
            raise _alone(self._me)
        found = self._voters.group()
        return ControllersStatus(
            told_by=self._me,
            leader=found.leader,
            settled=found.settled,
            members=tuple(
                ControllerStatus(
                    broker=one.node,
                    votes=one.votes,
                    leads=one.node == found.leader,
                    behind=one.behind,
                    silent_ms=one.silent_ms,
                )
                for one in found.members
            ),
        )

    def change_controller(self, broker: str, *, votes: bool) -> ControllerChanged:
        """See ``OperatorApi.change_controller``."""
        if not self._controllers or self._voters is None:
            raise _alone(self._me)
        found = self._voters.change_voter(NodeId(broker), votes=votes)
        if found.reason == ChangeRefusal.UNKNOWN.value:
            raise UnknownBrokerError(
                f"{self._me}, the leader of the controllers, does not know broker {broker!r}. Add "
                f"{broker!r} to cluster.brokers of every broker, restart the brokers one by one, "
                f"then start {broker!r}",
                broker=broker,
            )
        if found.reason in _NEVER:
            raise InvalidRequestError(f"{broker} was not changed: {found.reason}", broker=broker)
        _log.info("controller_change_asked", broker=broker, votes=votes, done=found.done)
        return ControllerChanged(
            done=found.done, reason=found.reason, told_by=self._me, leader=found.leader
        )

    def replicas(self) -> list[ReplicaStatus]:
        """See ``OperatorApi.replicas``."""
        found = [self._replica(driver) for driver in self._broker.replicas.all()]
        found += self._unopened()
        return sorted(found, key=lambda one: (one.stream, one.partition))

    def _replica(self, driver: PartitionDriver) -> ReplicaStatus:
        last_epoch, synced_end = driver.replication.synced_position
        view = driver.replication.view
        role = "none" if view is None else view.role_of(self._me)
        row = self._metadata.state.partition(driver.partition_id)
        return ReplicaStatus(
            broker=self._me,
            stream=driver.stream.name,
            partition=driver.partition_id.number,
            role="failed" if driver.health.failure is not None else role,
            leader_epoch=driver.reads.leader_epoch,
            last_epoch=last_epoch,
            log_start=driver.reads.log_start,
            high_watermark=driver.reads.high_watermark,
            log_end=driver.reads.log_end,
            synced_end=synced_end,
            failure=None if driver.refusal is None else driver.refusal.message,
            followers=tuple(followers_of(driver, self._clock.monotonic_ms())),
            state=driver.state.value,
            undisputed_end=driver.replication.undisputed_end(
                () if row is None else row.lineage, driver.reads.log_end
            ),
        )

    def _unopened(self) -> Iterator[ReplicaStatus]:
        names = {one.uuid: name for name, one in self._metadata.state.streams.items()}
        for partition_id, error in self._broker.replicas.unopened().items():
            if partition_id.stream_uuid in names:
                yield ReplicaStatus(
                    broker=self._me,
                    stream=names[partition_id.stream_uuid],
                    partition=partition_id.number,
                    role="none",
                    leader_epoch=0,
                    last_epoch=0,
                    log_start=0,
                    high_watermark=0,
                    log_end=0,
                    synced_end=0,
                    failure=error.message,
                    state=_state_of(error).value,
                )

    # ------------------------------------------------------------------ compacting

    def compact(
        self, name: str, partitions: Sequence[int], *, ticket: str
    ) -> list[ReplicaCompaction]:
        """See ``OperatorApi.compact``."""
        state = self._metadata.state
        stream, _ = _find(state, name, max(partitions, default=0))
        here = [
            number
            for number, row in enumerate(state.partitions[stream.uuid])
            if self._me in row.replicas and (number in partitions or not partitions)
        ]
        return ask_to_compact(self._broker.replicas, self._me, stream, here, ticket)

    # ------------------------------------------------------------------ changing

    def move(self, name: str, partition: int, target: Sequence[str]) -> Proposed:
        """See ``OperatorApi.move``."""
        wanted = tuple(BrokerId(one) for one in target)

        def plan(state: MetadataState) -> ReassignReplicas | None:
            stream, one = _find(state, name, partition)
            if (one.target or one.replicas) == wanted:
                return None
            raise_level(self._metadata, FEATURE_LEVEL_FENCED)
            return ReassignReplicas(
                stream_uuid=stream.uuid,
                partition=partition,
                partition_epoch=one.partition_epoch,
                target=wanted,
            )

        changed = self._change(plan)
        return Proposed(stream=name, partition=partition, to=",".join(wanted), changed=changed)

    def transfer_leader(self, name: str, partition: int, to: str) -> Proposed:
        """See ``OperatorApi.transfer_leader``."""

        def plan(state: MetadataState) -> NameCandidate | None:
            stream, one = _find(state, name, partition)
            registered = state.brokers.get(BrokerId(to))
            if registered is None:
                raise _unknown_broker(state, to)
            if to in (one.leader, one.candidate):
                return None
            if to not in one.isr:
                raise IneligibleReplicaError(
                    f"{to} is not in sync with {name}/{partition}: ISR {', '.join(one.isr)}",
                    broker=to,
                )
            if to in one.restarted:
                raise IneligibleReplicaError(
                    f"{to} has restarted, and the leader of {name}/{partition} has not checked its "
                    "log yet: try again in a moment",
                    broker=to,
                )
            return NameCandidate(
                stream_uuid=stream.uuid,
                partition=partition,
                leader_epoch=one.leader_epoch,
                partition_epoch=one.partition_epoch,
                candidate=BrokerId(to),
                candidate_epoch=registered.epoch,
            )

        return Proposed(stream=name, partition=partition, to=to, changed=self._change(plan))

    def balance(self) -> list[Proposed]:
        """See ``OperatorApi.balance``."""
        self._metadata.barrier(timeout_ms=_BARRIER_MS)
        state = self._metadata.state
        names = {stream.uuid: name for name, stream in state.streams.items()}
        done: list[Proposed] = []
        for command in balance(state):
            refused = None
            try:
                self._propose(command)
            except (FencedError, InvalidRequestError) as error:  # the partition changed meanwhile
                refused = error.message
            done.append(
                Proposed(
                    stream=names.get(command.stream_uuid, command.stream_uuid),
                    partition=command.partition,
                    to=command.candidate,
                    changed=refused is None,
                    refused=refused,
                )
            )
        return done

    def elect_unclean(
        self,
        name: str,
        partition: int,
        *,
        broker: str,
        partition_epoch: int,
        known_end: int,
        operator: str,
        accept_data_loss: bool,
    ) -> Proposed:
        """See ``OperatorApi.elect_unclean``; refused if the partition has changed since."""
        if broker != self._me:
            raise InvalidRequestError(
                f"send this request to {broker}: only that broker knows where its log ends",
                broker=broker,
            )
        self._metadata.barrier(timeout_ms=_BARRIER_MS)
        state = self._metadata.state
        stream, one = _find(state, name, partition)
        driver = next(
            (
                driver
                for driver in self._broker.replicas.all()
                if driver.stream.uuid == stream.uuid and driver.partition_id.number == partition
            ),
            None,
        )
        if driver is None or driver.health.failure is not None:
            raise IneligibleReplicaError(
                f"{broker} holds no readable replica of {name}/{partition}", broker=broker
            )
        # A leader's log begins at or below the cold end, so the newest cold end is needed.
        self._broker.cold.learn_end(name, partition)
        stream, one = _find(self._metadata.state, name, partition)
        _, end = driver.replication.synced_position
        end = driver.replication.undisputed_end(one.lineage, end)
        self._propose(
            ElectUnclean(
                stream_uuid=stream.uuid,
                partition=partition,
                partition_epoch=PartitionEpoch(partition_epoch),
                broker=self._me,
                broker_epoch=state.brokers[self._me].epoch,
                log_end=end,
                known_end=Offset(max(known_end, end, one.cold_end)),
                operator=operator,
                accept_data_loss=accept_data_loss,
            )
        )
        _log.warning(
            "unclean_election", stream=name, partition=partition, log_end=end, operator=operator
        )
        return Proposed(stream=name, partition=partition, to=broker, changed=True)

    def remove_broker(self, broker: str) -> None:
        """See ``OperatorApi.remove_broker``."""

        def plan(state: MetadataState) -> RemoveBroker:
            registered = state.brokers.get(BrokerId(broker))
            if registered is None:
                raise _unknown_broker(state, broker)
            if broker in self._voting():
                raise _votes(broker)
            return RemoveBroker(broker=BrokerId(broker), broker_epoch=registered.epoch)

        self._change(plan)

    def _change(self, plan: Callable[[MetadataState], Command | None]) -> bool:
        """Propose the command that ``plan`` makes of the newest state; False if it makes none."""
        refused: HeadwaterError | None = None
        for _ in range(_ATTEMPTS):
            self._metadata.barrier(timeout_ms=_BARRIER_MS)
            command = plan(self._metadata.state)
            if command is None:
                return False
            try:
                self._propose(command)
            except _STALE as error:
                refused = error
            else:
                return True
        assert refused is not None, "it was tried"
        raise refused

    def _propose(self, command: Command) -> CommandReply:
        reply = self._metadata.propose(command)
        _log.info("operator_changed", command=type(command).__name__)
        return reply


def _alone(me: BrokerId) -> InvalidRequestError:
    return InvalidRequestError(
        f"{me} is a broker alone, its own and only controller. For a cluster, start with "
        "`headwater up --brokers 3`, or list the brokers in cluster.brokers of the configuration"
    )


def _votes(broker: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"broker {broker} cannot be removed: it votes on the metadata. Take its vote first, by "
        f"`headwater cluster controllers remove {broker}` or `controllers replace {broker} NEW`",
        broker=broker,
    )


def followers_of(driver: PartitionDriver, now_ms: int) -> Iterator[FollowerStatus]:
    """Yield the progress of each follower, if this replica leads. Any thread."""
    leader = driver.replication.leader
    if leader is None:
        return
    log_end = driver.reads.log_end
    standing = leader.standing
    for broker, progress in sorted(leader.progress().items()):
        end = progress.synced_end
        heard_ms = progress.heard_ms
        if broker in standing:  # roll calls say that it lives
            heard_ms = max(heard_ms, standing[broker].known_ms)
        yield FollowerStatus(
            broker=broker,
            synced_end=end,
            lag_records=None if end is None else max(0, log_end - end),
            silent_ms=None if end is None else max(0, now_ms - heard_ms),
        )


def _find(state: MetadataState, name: str, partition: int) -> tuple[Stream, PartitionState]:
    stream = state.streams.get(name)
    if stream is None:
        raise UnknownStreamError(f"no stream is named {name!r}", stream=name)
    rows = state.partitions[stream.uuid]
    if not 0 <= partition < len(rows):
        raise UnknownPartitionError.of(name, partition, len(rows))
    return stream, rows[partition]


def _unknown_broker(state: MetadataState, broker: str) -> UnknownBrokerError:
    known = ", ".join(sorted(state.brokers))
    return UnknownBrokerError(
        f"no broker {broker!r} has ever registered; there are {known}", broker=broker
    )


def _state_of(refusal: HeadwaterError) -> ReplicaState:
    """Return the state of a replica that could not be opened."""
    locked = isinstance(refusal, EncryptionKeyError)
    return ReplicaState.LOCKED if locked else ReplicaState.OPENING
