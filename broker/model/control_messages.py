"""What brokers and the controller in office say to each other besides commands.

Nothing here is durable or decides anything: the election core proposes, ``apply`` decides. A
message names the broker epoch of its sender, or the question that it answers, so that a former
process is not taken for this one. `MemberAsked` and `MemberTold` are of the time before: they let a
controller with an empty disk into the group, which has no broker epoch yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.raft import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker lives. ``sent_ms`` is its own monotonic clock; the answer hands it back."""

    broker_epoch: BrokerEpoch
    sent_ms: int
    applied_index: int = 0  # how much metadata it has seen, for operators


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """``granted``: from ``sent_ms`` on, the broker has its lease."""

    broker_epoch: BrokerEpoch
    sent_ms: int
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReport:
    """A replica tells that the leader of this epoch does not answer."""

    partition_id: PartitionId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndAsked:
    """The controller asks a replica how far its log reaches; it answers at once, and once more when
    it has heard of this epoch, in which it follows nobody.
    """  # noqa: D205 - one thought

    partition_id: PartitionId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndTold:
    """The epoch of a replica's last record, and its synced end; ``leader_epoch`` is the newest that
    it has heard of, and ``broker_epoch`` the process that knows all this.
    """  # noqa: D205 - one thought

    partition_id: PartitionId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestAsked:
    """A broker that takes a cut asks a leader what is committed (KIP-207)."""

    partition_id: PartitionId
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTold:
    """What a leader has committed; without ``high_watermark`` it leads no more, or not yet.

    With a leader epoch all the same it leads, and another process leads its history or the table is
    of another one: then nobody can say how the history goes on.
    """

    partition_id: PartitionId
    request_id: int
    leader_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - a plain number
    log_start: Offset = Offset(0)  # noqa: RUF009 - a plain number
    high_watermark: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAsked:
    """A controller whose disk is empty asks another how far the group is."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTold:
    """``life`` is the answering process, the same number as long as it lives."""

    request_id: int
    life: int
    standing: Standing


ControlMessage = (
    Heartbeat
    | HeartbeatAnswer
    | LeaderReport
    | LogEndAsked
    | LogEndTold
    | NewestAsked
    | NewestTold
    | MemberAsked
    | MemberTold
)
