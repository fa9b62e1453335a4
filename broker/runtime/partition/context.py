"""What the classes of one partition share, and what a partition is opened with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.runtime.partition.commit_scheduler import TurnScheduler
from broker.runtime.partition.counters import OnCommit, PartitionCounters, ignore_commit
from broker.runtime.partition.health import PartitionHealth
from broker.runtime.partition.id_budget import IdBudget
from broker.runtime.partition.leadership_gate import Claims
from broker.runtime.partition.local_log import BeginLog, LocalLog
from broker.runtime.partition.queue import TurnQueue
from broker.runtime.partition.replica_shell import ReplicaLinks
from broker.runtime.partition.room import LogRoom
from broker.runtime.partition.tier_view import RecordColdEnd
from broker.runtime.stream_keys import StreamKeys
from broker.storage.log.partition_log import PartitionLog


def _ignore_sealed(partition_id: PartitionId) -> None:
    """Do nothing: the default of a partition that is not tiered."""


def _ignore_idle(partition_id: PartitionId, leader_epoch: LeaderEpoch) -> None:
    """Do nothing: the default of a partition that nobody pauses."""


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """One partition of a stream, by its number."""

    stream: Stream
    number: int

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition."""
        return PartitionId(self.stream.uuid, PartitionNumber(self.number))

    @property
    def name(self) -> str:
        """Stream name and number, for messages: ``orders/0``."""
        return f"{self.stream.name}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """The log of a partition as it was opened, and how an empty one takes its place."""

    log: PartitionLog
    begin_log: BeginLog
    cold_end: Offset  # according to the metadata
    purged_end: Offset = Offset(0)  # noqa: RUF009 - the same
    remote_start: Offset = Offset(0)  # noqa: RUF009 - the same
    lineage: Lineage = ()  # as old as the three offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPorts:
    """What a partition uses of its broker: time, turns, the way to other replicas, memory."""

    clock: Clock
    scheduler: TurnScheduler
    links: ReplicaLinks
    id_budget: IdBudget = field(default_factory=IdBudget)
    keys: StreamKeys | None = None  # None: this broker serves no encrypted stream


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNotices:
    """A partition's callbacks to its broker. All but ``record_cold_end`` are called in a turn."""

    record_cold_end: RecordColdEnd  # durably in the metadata; blocks
    on_sealed: Callable[[PartitionId], None] = _ignore_sealed  # a segment was sealed; quick
    on_idle: Callable[[PartitionId, LeaderEpoch], None] = _ignore_idle  # a pause is due; quick
    on_commit: OnCommit = ignore_commit
    claims: Claims | None = None  # of leaderships of tiered streams; None without a lake


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext:
    """What the classes of one partition share."""

    stream: Stream
    partition_id: PartitionId
    name: str  # for messages
    clock: Clock
    counters: PartitionCounters
    queue: TurnQueue
    local: LocalLog
    health: PartitionHealth
    room: LogRoom
