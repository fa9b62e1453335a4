"""What the cluster knows: brokers, streams, partitions, leases. Immutable values.

    Online ──▶ Election ──▶ CandidateFound ──▶ Online      leader epoch grows at every arrow but
                  │  ▲            │                        the last: a candidate has it already
                  ▼  └────────────┘
                Offline ──▶ Election                       partition epoch grows at every change

A partition has a leader only while it is Online. `eligible` are replicas outside the ISR that
still hold everything committed, for the ISR is below its minimum, or nobody leads, and nothing is
committed then (KIP-966's ELR). `restarted` are those of both whose process is another one than the
one that is known to hold everything: what its disk remembers has to be compared first.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from broker.core.metadata.size import weigh
from broker.core.metadata.typed_json import build
from broker.errors import HeadwaterError, MetadataCorruptError
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, LeaseId, PartitionId, StreamUuid
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.stream import Stream

STATE_VERSION: Final = 2
FEATURE_LEVEL_ALONE: Final = 1  # one broker that leads everything
FEATURE_LEVEL_REPLICATED: Final = 2  # partitions with several replicas
FEATURE_LEVEL_MAX: Final = 2  # what this build understands

DELETED_KEPT_MAX: Final = 4096  # 160 kB; of older ones a broker that was down keeps the logs

FIRST_PARTITION_EPOCH: Final = PartitionEpoch(1)

PartitionStatus = Literal["online", "election", "candidate_found", "offline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An unclean election: what an operator gave up, so that writes could go on."""

    leader_epoch: LeaderEpoch
    leader: BrokerId
    log_end: Offset  # of the new leader
    known_end: Offset  # the highest end that the controller had ever heard of
    given_up: tuple[BrokerId, ...]  # replicas that held everything committed, and were away
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The replicated facts of one partition."""

    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    cold_end: Offset  # in the table, read back and in the ledger
    partition_epoch: PartitionEpoch = FIRST_PARTITION_EPOCH
    status: PartitionStatus = "online"
    replicas: tuple[BrokerId, ...] = ()  # in order of preference as leader
    isr: tuple[BrokerId, ...] = ()  # sorted
    eligible: tuple[BrokerId, ...] = ()  # sorted; see above
    restarted: tuple[BrokerId, ...] = ()  # sorted, of ISR and eligible; not yet compared
    min_isr: int = 1
    candidate: BrokerId | None = None
    tried: tuple[BrokerId, ...] = ()  # not in this election: reported, or did not confirm
    last_known_leader: BrokerId | None = None
    target: tuple[BrokerId, ...] = ()  # replicas after the reassignment in progress, if any
    losses: tuple[Loss, ...] = ()  # the newest few
    lineage: tuple[Leadership, ...] = ()  # starts of leadership, the newest last and few
    opened: tuple[BrokerId, ...] = ()  # sorted; had a log of it, durably: without one it is lost

    def __post_init__(self) -> None:
        assert (self.leader is not None) == (self.status == "online"), "online means led"
        assert (self.candidate is not None) == (self.status == "candidate_found")
        assert self.leader is None or self.leader in self.isr, "the leader is in sync with itself"
        assert not set(self.isr) & set(self.eligible), "eligible is outside the ISR"
        assert self.leader not in self.restarted, "a leader was compared, or needs no comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """One broker's newest registration."""

    epoch: BrokerEpoch
    session: str = ""  # drawn at start and durable in the broker's folder before it registered
    former_sessions: tuple[str, ...] = ()  # that the folder held then; their messages are late
    addresses: Mapping[str, str] = field(default_factory=dict)  # by protocol
    features_min: int = FEATURE_LEVEL_ALONE
    features_max: int = FEATURE_LEVEL_ALONE
    fenced: bool = False  # its session was lost: neither leads nor joins an ISR
    stopping: bool = False  # a graceful shutdown: leads what it must, takes nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A reader's hold: no segment that ends above ``floors[p]`` is freed before it expires."""

    stream_uuid: StreamUuid
    owner: str
    expires_us: int
    floors: tuple[Offset, ...]  # by partition
    taken_us: int = 0  # what was in the table then is held too; 0: not known, so everything


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataState:
    """Everything that commands change. Copied on change, shared otherwise."""

    brokers: Mapping[BrokerId, BrokerState] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)  # by name
    partitions: Mapping[StreamUuid, tuple[PartitionState, ...]] = field(default_factory=dict)
    leases: Mapping[LeaseId, LeaseState] = field(default_factory=dict)
    deleted: tuple[StreamUuid, ...] = ()  # the newest last: of no other stream a log may be removed
    feature_level: int = FEATURE_LEVEL_ALONE
    next_id: int = 1  # ids that no name and no clock can make equal; see AllocateIds
    broker_epoch_floor: int = 0  # a removed broker that comes back must not repeat an epoch
    weight: int = field(default=0, compare=False)  # of streams and leases; never written: see size

    @property
    def broker_epochs(self) -> dict[BrokerId, BrokerEpoch]:
        """Newest broker epoch of every broker."""
        return {broker: one.epoch for broker, one in self.brokers.items()}

    def partition(self, partition_id: PartitionId) -> PartitionState | None:
        """Return the state of a partition; None: its stream does not have it, or is gone."""
        rows = self.partitions.get(partition_id.stream_uuid, ())
        return rows[partition_id.number] if partition_id.number < len(rows) else None

    def is_alive(self, broker: BrokerId) -> bool:
        """Tell whether a broker may lead and replicate: registered and not fenced."""
        one = self.brokers.get(broker)
        return one is not None and not one.fenced

    def to_json(self) -> str:
        """Return canonical text: equal states give equal text on every node."""
        body = {"v": STATE_VERSION, **_fields(self)}
        del body["weight"]
        return json.dumps(body, default=_fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> MetadataState:
        """Rebuild from :meth:`to_json`; raises MetadataCorruptError for anything else."""
        try:
            body: dict[str, Any] = json.loads(text)
            version = body.pop("v")
            if version == 1:
                body = _upgraded(body)
            elif version != STATE_VERSION:
                raise MetadataCorruptError(f"metadata version {version!r} is not known")
            if "weight" in body:
                raise MetadataCorruptError("a state's weight is counted, not told")
            state = build(cls, body)
        except (
            ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError,
            HeadwaterError,
        ) as cause:  # fmt: skip
            raise MetadataCorruptError(f"metadata is not readable: {cause}") from cause
        return dataclasses.replace(state, weight=weigh(state))


def _fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields; quicker than ``asdict``, which copies everything."""
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}


def _upgraded(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a version 1 state, which one broker alone wrote."""
    partitions = {
        uuid: [{**one, "replicas": [one["leader"]], "isr": [one["leader"]]} for one in rows]
        for uuid, rows in body["partitions"].items()
    }
    brokers = {broker: {"epoch": epoch} for broker, epoch in body["broker_epochs"].items()}
    return {
        "brokers": brokers,
        "partitions": partitions,
        "streams": body["streams"],
        "leases": body["leases"],
    }
