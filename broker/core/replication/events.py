"""The events of a replica, and of the leader or follower in it.

Time is that of the broker's monotonic clock. What the replica then asks of its shell is in
``effects.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.events import TickElapsed
from broker.core.replication.view import PartitionView
from broker.model.offsets import Offset
from broker.model.replica_messages import EpochEndRequest, FetchRequest, ReplicaMessage


@dataclass(frozen=True, slots=True)
class LogAppended:
    """The leader's own log has records below ``log_end``, synced or not."""

    log_end: Offset


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The log is durable below ``synced_end``: after publishes, or after an ``AppendStored``."""

    synced_end: Offset
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """A ``TruncateLog``, ``ResetLog`` or ``BeginLogAt`` is done, durably."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """A full disk refused an ``AppendStored``; some whole batches of it may be written."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class MessageCame:
    """Another replica sent a message."""

    message: ReplicaMessage
    now_ms: int


@dataclass(frozen=True, slots=True)
class RequestCame:
    """A follower sent its leader a request; a fetch also has the follower's synced end."""

    request: FetchRequest | EpochEndRequest
    now_ms: int


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """The metadata of the partition has changed; without ``view`` the partition is gone."""

    view: PartitionView | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class IsrAnswered:
    """The metadata log accepted or refused an ISR proposal of this partition epoch."""

    partition_epoch: int
    accepted: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """The controller answered this broker's heartbeat.

    Until ``until_ms``, on this broker's own monotonic clock, no other broker becomes leader because
    this broker is silent. ``unbroken``: the broker's lease had not lapsed since the last event of
    this kind, even if that lease has; so a replica that rests need not take every lease.
    """

    until_ms: int
    now_ms: int
    unbroken: bool = False


FollowerEvent = MessageCame | LogSynced | LogTruncated | AppendRefused | TickElapsed
LeaderEvent = (
    LogAppended | LogSynced | RequestCame | ViewChanged | IsrAnswered | LeaseGranted | TickElapsed
)
ReplicaEvent = FollowerEvent | LogAppended | ViewChanged | IsrAnswered | LeaseGranted
