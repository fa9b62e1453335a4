"""Commands about brokers, and about the replicas and leaders of partitions.

Each command names the epochs that its sender knows. ``apply`` compares them: the command of a
sender with an old view changes nothing, and the refusal names the current epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.core.metadata.state import FEATURE_LEVEL_ALONE
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.lineage import Leadership
from broker.model.offsets import Offset

# ---------------------------------------------------------------------------- brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker has started. It gets a new broker epoch; partitions that it led get a new epoch.

    A *session* is a random id of one process of a broker. The process draws ``session`` at start
    and makes it durable in the data folder *before* it sends this command. ``known_sessions`` are
    the sessions that the folder already held.

    - If the last registered session is among ``known_sessions``, the folder is the one that was in
      use, or a copy of it from that session. The broker stays in every ISR, as a replica that has
      restarted and must be compared.
    - If not (the folder was wiped, is an older copy or a clone), the broker leaves every ISR at
      once.
    - A command with the registered session repeats the same registration.
    - A command with a session that was known at the present registration is late and is refused.
    - Without a session the broker is alone in its cluster: no other broker can be compared with it.

    ``clean`` says that the last shutdown synced every log. Only streams with ``flush=interval``
    need it.
    """

    broker: BrokerId
    session: str = ""
    known_sessions: tuple[str, ...] = ()
    clean: bool = False
    addresses: Mapping[str, str] = field(default_factory=dict)
    features_min: int = FEATURE_LEVEL_ALONE
    features_max: int = FEATURE_LEVEL_ALONE


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """A broker has been silent for too long: it stops leading and leaves every ISR."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """A fenced broker's process sends heartbeats again."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBroker:
    """A broker begins its graceful shutdown: it may no longer become leader or join an ISR."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Forget a fenced broker that holds no replica."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Raise the feature level; every registered broker must understand the new level."""

    expected: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateIds:
    """Allocate ``count`` numbers, unique in the cluster for ever; the reply has the first one."""

    count: int


# ---------------------------------------------------------------------------- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeIsr:
    """The leader proposes a new ISR (KIP-497).

    ``isr`` maps each member to the broker epoch of its process, if that process has shown the
    leader every committed record, else to 0. So a replica that restarted meanwhile cannot join
    (KIP-903), and a member counts as compared only with its newest process. The logs of the
    replicas in ``forgotten`` end below an end that the leader had counted: these replicas leave the
    ISR and do not become eligible.
    """

    stream_uuid: StreamUuid
    partition: int
    broker: BrokerId  # the leader
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: Mapping[BrokerId, BrokerEpoch]
    forgotten: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawReplica:
    """A replica has a bad log (failed fsync, rot): it leaves ISR and eligible now."""

    stream_uuid: StreamUuid
    partition: int
    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StartElection:
    """The leader is lost, or an offline partition is tried again: the status becomes Election."""

    stream_uuid: StreamUuid
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    suspect: BrokerId | None = None  # the leader that a majority reported; it leaves the ISR


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnswer:
    """The log end of a replica, told by one of its processes while there was no leader."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    last_epoch: LeaderEpoch  # of the last record in the log
    log_end: Offset  # synced end of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCandidate:
    """Name the candidate for leadership. While the status is Online this is a planned hand-over.

    ``answers`` are the log ends on which the decision is based: a candidate that has restarted
    needs enough of them.
    """

    stream_uuid: StreamUuid
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    candidate: BrokerId
    candidate_epoch: BrokerEpoch
    answers: tuple[LogAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmLeader:
    """The candidate is ready and becomes leader, in the leader epoch in which it was named.

    The candidate draws ``lineage_id`` at random. ``log_end`` is the end of its log, and
    ``log_epoch`` the leader epoch of the record before it; 0: there is none.
    """

    stream_uuid: StreamUuid
    partition: int
    broker: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    lineage_id: str = ""
    log_end: Offset = Offset(0)  # noqa: RUF009 - a plain number
    log_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - a plain number


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunLeadership:
    """The leadership of one partition in :class:`BeginLeaderships`."""

    stream_uuid: StreamUuid
    partition: int
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginLeaderships:
    """A lone broker has opened its logs and begins to lead: the new leaderships, with their ids."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    begun: tuple[BegunLeadership, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOffline:
    """No candidate is left: the status becomes Offline."""

    stream_uuid: StreamUuid
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUnclean:
    """An operator accepts a loss: a replica that may lack committed records becomes leader."""

    stream_uuid: StreamUuid
    partition: int
    partition_epoch: PartitionEpoch
    broker: BrokerId
    broker_epoch: BrokerEpoch
    log_end: Offset
    known_end: Offset
    operator: str
    accept_data_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignReplicas:
    """Move a partition to other brokers; old replicas leave when all new ones are in the ISR."""

    stream_uuid: StreamUuid
    partition: int
    partition_epoch: PartitionEpoch
    target: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkOpened:
    """A broker has a durable log of each of these partitions.

    A broker takes no record for a partition before this command is applied. So if a marked replica
    has no log, the log was lost; if an unmarked replica has no log, it is new. Partitions that are
    gone and replicas that moved are ignored.
    """

    broker: BrokerId
    broker_epoch: BrokerEpoch
    partitions: Mapping[StreamUuid, tuple[int, ...]]


PartitionCommand = (
    ChangeIsr
    | WithdrawReplica
    | StartElection
    | NameCandidate
    | ConfirmLeader
    | TakeOffline
    | ElectUnclean
    | ReassignReplicas
)
BrokerCommand = (
    RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | StopBroker
    | RemoveBroker
    | SetFeatureLevel
    | AllocateIds
    | BeginLeaderships
    | MarkOpened
)
