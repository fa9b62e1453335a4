"""Commands about brokers and about who holds and leads a partition.

Each names the epochs that its sender acted on. ``apply`` compares: a sender that acts on an old
view changes nothing and is told what is current.
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
    """A broker started: a new broker epoch, and a new leader epoch where it leads.

    ``session`` is drawn at start and made durable in the data folder *before* this is sent, beside
    the sessions that the folder already held, ``known_sessions``. If the last registered session is
    among them, the folder is the one that was in use, or a copy of it from the same session: the
    broker stays in every ISR, as one that has restarted and is yet to be compared. If not (wiped,
    an older copy, a clone), it is out of every ISR at once. ``clean`` says that the last shutdown
    synced everything; only streams with ``flush=interval`` need that. The same session again is the
    same registration, and one that the folder of the present registration knew is over: its message
    is late and is refused. Without a session, the broker is alone in its cluster and vouches for
    itself.
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
    """The controller lost a broker's session: it leads nothing and is in no ISR any more."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """The same process is heard again."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBroker:
    """A broker begins its graceful shutdown: from now on it gains no leadership and no ISR."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Forget a fenced broker that holds no replica."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Move the feature level; every registered broker has to understand the new one."""

    expected: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateIds:
    """Take ``count`` numbers that were never given out before; the reply names the first."""

    count: int


# ---------------------------------------------------------------------------- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeIsr:
    """The leader proposes a new ISR (KIP-497).

    ``isr`` maps each member to the broker epoch of the process that the leader has seen to hold
    everything committed, else to 0: so a replica which restarted meanwhile cannot be added
    (KIP-903), and one that is in it counts as compared only with its newest process. ``forgotten``
    end below what the leader had counted from them: they leave, and are not eligible either.
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
    """A replica cannot vouch for its log (failed fsync, rot): out of ISR and eligible, now."""

    stream_uuid: StreamUuid
    partition: int
    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StartElection:
    """The leader is lost, or an offline partition is worth another try: status Election."""

    stream_uuid: StreamUuid
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    suspect: BrokerId | None = None  # the leader that a majority reported: leaves the ISR


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnswer:
    """How far a replica's log reaches, as a process of it told while it followed nobody."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    last_epoch: LeaderEpoch  # of its last record
    log_end: Offset  # what it has synced


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCandidate:
    """Announce who is to lead next; from Online this is a hand-over to a better placed replica.

    ``answers`` are what it was decided on: a candidate that has restarted needs enough of them.
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
    """The candidate has promoted its replica: Online, in the epoch that it was named with.

    ``lineage_id`` is drawn at random by the candidate; ``log_end`` is where its log ends.
    """

    stream_uuid: StreamUuid
    partition: int
    broker: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    lineage_id: str = ""
    log_end: Offset = Offset(0)  # noqa: RUF009 - a plain number


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunLeadership:
    """One partition of :class:`BeginLeaderships`."""

    stream_uuid: StreamUuid
    partition: int
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginLeaderships:
    """A broker alone has opened its logs and begins to lead: whose history this is from now on."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    begun: tuple[BegunLeadership, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOffline:
    """No candidate is left."""

    stream_uuid: StreamUuid
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUnclean:
    """An operator gives records up: let a replica lead that may lack committed ones."""

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
    """Move a partition to other brokers; old ones leave when all new ones are in the ISR."""

    stream_uuid: StreamUuid
    partition: int
    partition_epoch: PartitionEpoch
    target: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkOpened:
    """A broker has a log of these partitions, durably; it takes no record before this is known.

    A replica that is marked and has no log has lost it; one that is not is new. Marks of partitions
    that are gone, or of replicas that moved, are passed over.
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
