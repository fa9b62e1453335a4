"""The state of a cluster for operators: brokers, partitions, replicas; and the result of an action.

Any broker returns the state of the metadata (:class:`ClusterStatus`). Each broker returns the state
of its own replicas (:class:`ReplicaStatus`). This module has values only. ``to_dict`` makes the
JSON of the wire and of ``--json``; ``from_dict`` refuses any other JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, get_type_hints

from broker.errors import EnvelopeError

PartitionStatus = Literal["online", "election", "candidate_found", "offline"]
STATUS_NAMES: Final[Mapping[str, str]] = {
    "online": "Online",
    "election": "Election",
    "candidate_found": "CandidateFound",
    "offline": "Offline",
}


class _Wire:
    """Conversion to JSON and back, for dataclasses: a field's type says how to build its value."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`; a field that a newer broker added is ignored.

        A field with a default may be missing: an older broker does not know it.

        Raises:
            EnvelopeError: a field is missing or has the wrong type.
        """
        hints = get_type_hints(cls)
        try:
            found = {
                one.name: _built(hints[one.name], values[one.name])
                for one in dataclasses.fields(cls)  # type: ignore[arg-type]
                if one.name in values or one.default is dataclasses.MISSING
            }
        except (KeyError, TypeError, AttributeError, ValueError) as cause:
            raise EnvelopeError(f"the JSON is not a {cls.__name__}: {cause!r}") from cause
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStatus(_Wire):
    """An unclean election of the past: what was given up, and which operator asked for it."""

    leader_epoch: int
    leader: str
    log_end: int
    known_end: int
    given_up: tuple[str, ...]
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus(_Wire):
    """A registered broker."""

    broker: str
    epoch: int
    addresses: dict[str, str]
    fenced: bool
    stopping: bool
    controller: bool  # the active controller, as far as the answering broker knows
    leads: int  # partitions
    replicas: int
    features_max: int

    @property
    def state(self) -> str:
        """The state in one word, for people."""
        return "fenced" if self.fenced else "stopping" if self.stopping else "alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo(_Wire):
    """A partition, according to the metadata."""

    stream: str
    stream_uuid: str
    partition: int
    status: str  # of PartitionStatus
    leader: str | None
    candidate: str | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[str, ...]  # in order of preference
    isr: tuple[str, ...]
    eligible: tuple[str, ...]
    min_isr: int
    target: tuple[str, ...]  # of the move in progress, if any
    last_known_leader: str | None
    cold_end: int
    losses: tuple[LossStatus, ...]
    restarted: tuple[str, ...] = ()  # of ISR and eligible; their logs are yet to be compared
    paused: bool = False  # takes no records until it is resumed
    readonly: bool = False  # takes no records until an operator allows them

    @property
    def name(self) -> str:
        """``stream/partition``."""
        return f"{self.stream}/{self.partition}"

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return not set(self.replicas) <= set(self.isr)

    @property
    def below_min_isr(self) -> bool:
        """Whether nothing can be committed, because too few replicas are in sync."""
        return len(self.isr) < self.min_isr

    @property
    def offline(self) -> bool:
        """Whether no broker leads and no broker may lead now."""
        return self.status == "offline"

    @property
    def preferred(self) -> str | None:
        """The broker that should lead: the first of the replicas."""
        return self.replicas[0] if self.replicas else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus(_Wire):
    """The cluster, according to the metadata."""

    cluster: str
    told_by: str  # the broker that answered
    alone: bool  # this cluster is a single broker
    confirmed: bool  # a majority of the controllers confirmed that this metadata is the newest
    controller: str | None
    controllers: tuple[str, ...]
    feature_level: int
    brokers: tuple[BrokerStatus, ...]
    partitions: tuple[PartitionInfo, ...]
    missing: tuple[str, ...] = ()  # what ``told_by`` cannot reach: NATS, the lake

    @property
    def offline(self) -> list[PartitionInfo]:
        """Partitions that no broker leads and no broker may lead: a broker must come back."""
        return [one for one in self.partitions if one.offline]

    @property
    def leaderless(self) -> list[PartitionInfo]:
        """Partitions without a leader now: offline, or in an election."""
        return [one for one in self.partitions if one.status != "online"]

    @property
    def under_replicated(self) -> list[PartitionInfo]:
        """Partitions with a replica that is not in sync."""
        return [one for one in self.partitions if one.under_replicated]

    def partition(self, stream: str, partition: int) -> PartitionInfo | None:
        """Return a partition; None if there is no such partition."""
        for one in self.partitions:
            if one.stream == stream and one.partition == partition:
                return one
        return None

    def broker(self, broker: str) -> BrokerStatus | None:
        """Return a broker; None if it is not registered."""
        return next((one for one in self.brokers if one.broker == broker), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus(_Wire):
    """A broker's part in the metadata group, according to the broker that answered."""

    broker: str
    votes: bool
    leads: bool
    behind: int | None  # entries of the log that it has not confirmed; only the leader knows
    silent_ms: int | None  # since the leader's last message from this broker


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllersStatus(_Wire):
    """The voters on the metadata, and its observers."""

    told_by: str
    leader: str | None
    settled: bool  # no change of the voters is under way
    members: tuple[ControllerStatus, ...]

    @property
    def voters(self) -> list[str]:
        """The brokers that vote."""
        return [one.broker for one in self.members if one.votes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerChanged(_Wire):
    """The result of one step of a change of the controllers."""

    done: bool
    reason: str  # why the change is not done yet
    told_by: str
    leader: str | None  # the broker to ask for the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus(_Wire):
    """A follower, according to the last message that its leader got from it."""

    broker: str
    synced_end: int | None  # None: no message in this leader epoch
    lag_records: int | None
    silent_ms: int | None  # time since its last message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus(_Wire):
    """A replica, according to its own broker."""

    broker: str
    stream: str
    partition: int
    role: str
    leader_epoch: int
    last_epoch: int  # of the last record
    log_start: int
    high_watermark: int
    log_end: int
    synced_end: int
    failure: str | None
    followers: tuple[FollowerStatus, ...] = field(default=())
    state: str = ""  # of ReplicaState; empty: an older broker answered
    # From here on the log has records that another leader replaced; None: an older broker answered.
    undisputed_end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCompaction(_Wire):
    """How far a replica's broker is with a request to compact the replica's log."""

    broker: str
    stream: str
    partition: int
    state: str  # of PassState
    reason: str | None = None  # why no further than `end`, or why not at all
    end: int = 0  # first offset that was not compacted
    segments: int = 0  # that were written anew
    removed_count: int = 0  # records
    freed_bytes: int = 0
    read_bytes: int = 0

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of the request."""
        return self.state not in ("waiting", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(_Wire):
    """The result of an operator's command on one partition, or why the command was refused."""

    stream: str
    partition: int
    to: str  # the broker that the command names, or several brokers with commas
    changed: bool  # False: the partition was already in the wanted state
    refused: str | None = None  # only if other partitions of the same command may have succeeded


_NESTED: Final = (LossStatus, BrokerStatus, PartitionInfo, ControllerStatus, FollowerStatus)


def _built(hint: Any, value: Any) -> Any:
    """Return a JSON value as the type of its field; raises TypeError for any other value."""
    text = str(hint)
    if text.startswith("tuple"):
        if not isinstance(value, list | tuple):
            raise TypeError(f"a list was expected, not {value!r}")
        kind = next((one for one in _NESTED if one.__name__ in text), None)
        return tuple(_built(str, one) if kind is None else kind.from_dict(one) for one in value)
    if text.startswith("dict"):
        return {_built(str, name): _built(str, one) for name, one in dict(value).items()}
    if value is None and "None" in text:
        return None
    wanted = bool if hint is bool else int if "int" in text else str
    if type(value) is not wanted:
        raise TypeError(f"{wanted.__name__} was expected, not {value!r}")
    return value
