"""The metadata of the cluster: brokers, streams, partitions, leases. Immutable values.

    Online ──▶ Election ──▶ CandidateFound ──▶ Online      leader epoch grows at every arrow but
                  │  ▲            │                        the last: a candidate has it already
                  ▼  └────────────┘
                Offline ──▶ Election                       partition epoch grows at every change

A partition has a leader only while it is Online. `eligible` are replicas outside the ISR that still
have every committed record: they left the ISR while it was below its minimum or there was no
leader, and no record is committed in that time (KIP-966's ELR). `restarted` are the members of ISR
and eligible whose process is a new one: their disks may have lost records, so their logs must be
compared with others first.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from broker.core.metadata.group_state import GroupPosition, GroupState
from broker.core.metadata.size import weigh
from broker.core.metadata.typed_json import build
from broker.errors import HeadwaterError, MetadataCorruptError
from broker.model.access import AccessState
from broker.model.activity import ActivityEvent, ActivityOutbox
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, LeaseId, PartitionId, StreamUuid
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.quota import Quota
from broker.model.stream import Stream, without_unset
from broker.model.tenant import SHARES, Tenant

STATE_VERSION: Final = 2
FEATURE_LEVEL_ALONE: Final = 1  # one broker that leads everything
FEATURE_LEVEL_REPLICATED: Final = 2  # partitions with several replicas
FEATURE_LEVEL_ALTERED: Final = 3  # streams that are changed or purged: AlterStream, PurgeRecords
FEATURE_LEVEL_LIFTBRIDGE: Final = 4  # writes handed to leaders, cursors, groups, paused streams
FEATURE_LEVEL_STREAMS: Final = 5  # later features of streams and groups: see the commands
FEATURE_LEVEL_ACCESS: Final = 6  # grants, tokens, quotas, tenants; key compaction of tables
FEATURE_LEVEL_FENCED: Final = 7  # a new leader epoch when replicas leave a partition
FEATURE_LEVEL_RECREATED: Final = 8  # a stream that is made again has no cursors of groups
FEATURE_LEVEL_SHARES: Final = 9  # tenants with shares of the leases and of the metadata
FEATURE_LEVEL_MAX: Final = 9  # the highest level that this build understands

# 160 kB. A broker that was down during more deletions keeps the logs of the oldest ones.
DELETED_KEPT_MAX: Final = 4096

# Fields of partitions, of members and of tenants that older builds do not know.
_LATER_FIELDS: Final = (
    "purged_end",
    "remote_start",
    "paused",
    "resumes_all",
    "readonly",
    "pause_first_us",
    "pause_latest_us",
    "readonly_first_us",
    "readonly_latest_us",
    "membership",
    "replaced",
    *SHARES,
)

# Fields of the state that builds of a lower feature level do not know.
_LATER_STATE: Final = (
    "cursors", "groups", "group_epoch", "positions", "activity", "access", "quotas",
    "tenants",
)  # fmt: skip

FIRST_PARTITION_EPOCH: Final = PartitionEpoch(1)

PartitionStatus = Literal["online", "election", "candidate_found", "offline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An unclean election: an operator gave up records, so that writes could go on."""

    leader_epoch: LeaderEpoch
    leader: BrokerId
    log_end: Offset  # of the new leader
    known_end: Offset  # the highest log end that was known
    given_up: tuple[BrokerId, ...]  # absent replicas that had every committed record
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The replicated facts of one partition."""

    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    cold_end: Offset  # all records below it are in the table, read back and in the ledger
    partition_epoch: PartitionEpoch = FIRST_PARTITION_EPOCH
    status: PartitionStatus = "online"
    replicas: tuple[BrokerId, ...] = ()  # in order of preference as leader
    isr: tuple[BrokerId, ...] = ()  # sorted
    eligible: tuple[BrokerId, ...] = ()  # sorted; see above
    restarted: tuple[BrokerId, ...] = ()  # sorted; members of ISR and eligible, not yet compared
    min_isr: int = 1
    candidate: BrokerId | None = None
    tried: tuple[BrokerId, ...] = ()  # were reported or did not confirm: not to be named again
    last_known_leader: BrokerId | None = None
    target: tuple[BrokerId, ...] = ()  # replicas after the reassignment in progress, if any
    losses: tuple[Loss, ...] = ()  # a few, the newest last
    lineage: tuple[Leadership, ...] = ()  # the newest starts of leadership, the newest last
    opened: tuple[BrokerId, ...] = ()  # sorted; had a durable log: if it is absent, it was lost
    purged_end: Offset = Offset(0)  # noqa: RUF009 - all records below were deleted on purpose
    remote_start: Offset = Offset(0)  # noqa: RUF009 - remote retention let all below expire
    paused: bool = False  # takes no records until it is resumed
    resumes_all: bool = False  # a publish to this partition resumes all partitions of its stream
    readonly: bool = False  # takes no records until an operator allows them again
    # The first and the latest time at which the partition was paused or resumed, and at which it
    # was made read-only or writable. 0: never.
    pause_first_us: int = 0
    pause_latest_us: int = 0
    readonly_first_us: int = 0
    readonly_latest_us: int = 0

    @property
    def floor(self) -> Offset:
        """No log may end below this offset: what was there is in the table, or was purged."""
        return max(self.cold_end, self.purged_end)

    def __post_init__(self) -> None:
        assert (self.leader is not None) == (self.status == "online"), "online means with a leader"
        assert (self.candidate is not None) == (self.status == "candidate_found")
        assert self.leader is None or self.leader in self.isr, "the leader is in sync with itself"
        assert not set(self.isr) & set(self.eligible), "eligible replicas are outside the ISR"
        assert self.leader not in self.restarted, "a leader has been compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """One broker's newest registration."""

    epoch: BrokerEpoch
    session: str = ""  # random id of the process, durable in its folder before it registered
    former_sessions: tuple[str, ...] = ()  # earlier ones in the folder; their messages are late
    addresses: Mapping[str, str] = field(default_factory=dict)  # by protocol
    features_min: int = FEATURE_LEVEL_ALONE
    features_max: int = FEATURE_LEVEL_ALONE
    fenced: bool = False  # it was silent for too long: it may not lead or join an ISR
    stopping: bool = False  # graceful shutdown: it leads until hand-over, but gains no leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A reader's lease: until it expires, no segment that ends above ``floors[p]`` is freed."""

    stream_uuid: StreamUuid
    owner: str
    expires_us: int
    floors: tuple[Offset, ...]  # by partition
    taken_us: int = 0  # objects in the table at this time are held too; 0: unknown, so all objects

    def floor(self, partition: int) -> Offset:
        """Return the lowest offset that the lease holds; 0 for a partition that was added later.

        The reader may continue in partitions that were added after the lease was taken.
        """
        return self.floors[partition] if partition < len(self.floors) else Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataState:
    """The state that commands change. A change copies the changed parts and shares the others."""

    brokers: Mapping[BrokerId, BrokerState] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)  # by name
    partitions: Mapping[StreamUuid, tuple[PartitionState, ...]] = field(default_factory=dict)
    leases: Mapping[LeaseId, LeaseState] = field(default_factory=dict)
    deleted: tuple[StreamUuid, ...] = ()  # the newest last; only their logs may be removed
    feature_level: int = FEATURE_LEVEL_ALONE
    next_id: int = 1  # for unique ids, see AllocateIds
    broker_epoch_floor: int = 0  # a removed broker that comes back must not repeat an epoch
    # Offsets by cursor id, then by "<partition>,<stream>".
    cursors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)  # consumer groups by id
    group_epoch: int = 0  # the newest of all groups that there ever were
    # Of groups, by group, then by "<stream uuid>/<partition>": see group_positions.py.
    positions: Mapping[str, Mapping[str, GroupPosition]] = field(default_factory=dict)
    activity: ActivityOutbox | None = None  # None: there never was an activity stream
    access: AccessState | None = None  # None: no grant or token was ever stored
    quotas: tuple[Quota, ...] = ()  # sorted by their patterns of principals, which differ
    tenants: Mapping[str, Tenant] = field(default_factory=dict)  # by name
    weight: int = field(default=0, compare=False)  # of the whole state, not stored: see size.py

    @property
    def broker_epochs(self) -> dict[BrokerId, BrokerEpoch]:
        """Newest broker epoch of every broker."""
        return {broker: one.epoch for broker, one in self.brokers.items()}

    def partition(self, partition_id: PartitionId) -> PartitionState | None:
        """Return the state of a partition; None if the stream is gone or has no such partition."""
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
        # Left out while they have their default: such a build must get the same text.
        for name in _LATER_STATE:
            if not body[name]:
                del body[name]
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
                raise MetadataCorruptError("a stored state must not have a weight")
            state = build(cls, body)
        except (
            ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError,
            HeadwaterError,
        ) as cause:  # fmt: skip
            raise MetadataCorruptError(f"the metadata state is not readable: {cause}") from cause
        return dataclasses.replace(state, weight=weigh(state))


def _fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields; quicker than ``asdict``, which copies everything.

    A field of a later build is left out while it has its default, so that older builds read and
    write the same text.
    """
    body = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, ActivityEvent):
        return {name: one for name, one in body.items() if one}
    for name in _LATER_FIELDS:
        if name in body and not body[name]:
            del body[name]
    if isinstance(value, GroupState) and not value.sessions:
        del body["sessions"], body["claims"], body["appointed"]
    return without_unset(body) if isinstance(value, Stream) else body


def _upgraded(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a version 1 state, which a broker alone wrote."""
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
