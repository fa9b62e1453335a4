"""The events and effects of elections, which the active controller decides."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.events import TickElapsed
from broker.core.metadata.commands import Command, LogAnswer
from broker.core.metadata.state import MetadataState
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId


@dataclass(frozen=True, slots=True)
class OfficeTaken:
    """This controller is the active one, and its state has all earlier commands (a barrier)."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class OfficeLost:
    """This controller is no longer the active one."""


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """There is a newer state of the metadata: the one after the entry at ``index``."""

    state: MetadataState
    index: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class HeartbeatCame:
    """A heartbeat of a broker came; it had applied the metadata up to ``applied_index``."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    applied_index: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReported:
    """A replica reports that its leader does not answer."""

    partition_id: PartitionId
    reporter: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndAnswered:
    """A replica tells its log end; ``leader_epoch`` is the newest that the replica knows."""

    partition_id: PartitionId
    answer: LogAnswer
    leader_epoch: LeaderEpoch
    now_ms: int


ElectionEvent = (
    OfficeTaken
    | OfficeLost
    | MetadataChanged
    | HeartbeatCame
    | LeaderReported
    | LogEndAnswered
    | TickElapsed
)


@dataclass(frozen=True, slots=True)
class ProposeCommand:
    """Propose a command to the metadata log; the next states show whether it was applied."""

    command: Command


@dataclass(frozen=True, slots=True)
class AskLogEnd:
    """Ask a replica for its log end; its answer is :class:`LogEndAnswered`."""

    to: BrokerId
    partition_id: PartitionId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Answer the heartbeat with a lease: the broker is registered with this epoch, not fenced."""

    to: BrokerId


ElectionEffect = ProposeCommand | AskLogEnd | GrantLease
