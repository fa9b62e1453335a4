"""Messages between brokers besides metadata commands, most of them with the active controller.

No message is durable, and no message decides anything: the election core proposes, ``apply``
decides. A message names the broker epoch of its sender, or the request that it answers, so that a
message of a former process is recognised. `MemberAsked` and `MemberTold` have no broker epoch:
they let a controller with an empty disk rejoin the Raft group, before it is registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.raft import Standing

ROLL_GROUPS: Final = 128  # of the fetches that stand between two brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker is alive. ``sent_ms`` is its own monotonic clock; the answer repeats it.

    The controller hears no heartbeat of a broker that has not applied, for a while, that a leader
    of its own was replaced.
    """

    broker_epoch: BrokerEpoch
    sent_ms: int
    applied_index: int = 0  # of the metadata log on this broker


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """``granted``: the broker has its lease (the right to lead), counted from ``sent_ms``."""

    broker_epoch: BrokerEpoch
    sent_ms: int
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReport:
    """A replica reports that the leader of this epoch does not answer."""

    partition_id: PartitionId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndAsked:
    """The controller asks a replica for its log end.

    The replica answers at once. It answers again when it knows ``leader_epoch``: in that epoch
    there is no leader yet, so its log no longer changes.
    """

    partition_id: PartitionId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndTold:
    """The log end of a replica: the leader epoch of its last record, and its synced end.

    ``leader_epoch`` is the newest leader epoch that the replica knows. ``broker_epoch`` identifies
    the answering process.
    """

    partition_id: PartitionId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestAsked:
    """A broker that takes a cut asks a leader for its high watermark (KIP-207)."""

    partition_id: PartitionId
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTold:
    """The committed range of a partition, from its leader.

    Without ``high_watermark`` and with leader epoch 0, the answering broker does not lead (yet, or
    any more). Without ``high_watermark`` and with a leader epoch it leads, but its history is in
    doubt: another process leads a copy of the history, or the table belongs to another history.
    """

    partition_id: PartitionId
    request_id: int
    leader_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - a plain number
    log_start: Offset = Offset(0)  # noqa: RUF009 - a plain number
    high_watermark: Offset | None = None
    records_left: int | None = None  # if key compaction may have removed some, and if it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAsked:
    """A controller whose disk is empty asks another member for its term and its log end."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTold:
    """The answer. ``life`` identifies the answering process: each process draws its own number."""

    request_id: int
    life: int
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """A broker tells a leader's broker which of its fetches stand there.

    ``sums`` has a number of 64 bits for each of the ``ROLL_GROUPS`` groups of fetches. ``number``
    grows with each roll call of the sender, also beyond its process.
    """

    number: int
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollAnswer:
    """In which groups the leader's broker has the same standing fetches."""

    number: int
    equal: tuple[bool, ...]


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
    | RollCall
    | RollAnswer
)
