"""What the replication machines ask their shell to do, and what they need to know of the log.

The order of a list of effects is part of the contract: a shell carries them out one by one, and
what an effect says must be durable before it may not be assumed, it must be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchRequest, LogPrefix, ReplicaMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The local log as it is now. ``synced_end`` is what an fsync has confirmed."""

    log_start: Offset
    log_end: Offset
    synced_end: Offset
    epochs: EpochHistory


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below ``end`` is committed: show it to readers, then acknowledge it.

    Must be durable before: the log of every in-sync replica below ``end``.
    """

    end: Offset


@dataclass(frozen=True, slots=True)
class SendToReplica:
    """Send a message to another replica; losing it is fine, doubling it too."""

    to: BrokerId
    message: ReplicaMessage


@dataclass(frozen=True, slots=True)
class SendRecords:
    """Read the log from the request's offset, as much as the transport takes, and answer."""

    to: BrokerId
    request: FetchRequest
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class AppendStored:
    """Write a leader's batches at the log's end, sync, then report ``LogSynced``.

    Write them in the runs that :func:`broker.core.replication.runs.append_runs` gives.
    """

    batches: Sequence[Any]


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Drop everything from ``end`` on, durably, with what is derived from it (retry tables too),
    then report ``LogTruncated``. ``end`` may be the log's end: then only empty epochs go.
    """  # noqa: D205 - one thought

    end: Offset


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Begin anew with an empty log at ``start``, durably; then report ``LogTruncated``.

    All that this log holds is below the leader's log start: committed, and in the table. At 0 with
    an empty prefix: nothing that it holds is the leader's, and the leader says where to begin.
    """

    start: Offset
    prefix: LogPrefix


@dataclass(frozen=True, slots=True)
class BeginLogAt:
    """Put an empty log at ``start`` in the place of the present one, durably, before anything else.

    Only after an unclean election: the table holds everything below ``start``, this log ends below
    it, and offsets that the table holds must not be given to other records. No epochs are known of
    what is below: those of the present log are not the table's, and a follower that agreed with
    them could keep records there that were never committed. What it knows of producers is kept.
    """

    start: Offset


@dataclass(frozen=True, slots=True)
class RefuseLeadership:
    """Take this replica out of the ISR: its log ends below ``cold_end``, so it lost records."""

    log_end: Offset
    cold_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Propose ``ChangeIsr`` to the metadata log; report ``IsrAnswered``, or nothing if unknown."""

    isr: Mapping[BrokerId, BrokerEpoch]  # 0: its process was not seen to hold everything
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    forgotten: tuple[BrokerId, ...] = ()  # end below what this leader had counted from them


@dataclass(frozen=True, slots=True)
class ProposeLeadership:
    """Propose ``ConfirmLeader``: the log is open, healthy and synced to its end."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportLeader:
    """Tell the controller that the leader of this epoch does not answer."""

    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class StartLeading:
    """Take publishes in this epoch. Before: rebuild the retry tables from the log."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class StopLeading:
    """Take no publishes; what waits for an ack has an unknown outcome: say NotLeader."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportLostRecords:
    """The new leader lacks ``[end, committed)``, which this replica knew to be committed.

    Only after an unclean election. Readers above ``end`` have to be told (A10).
    """

    end: Offset
    committed: Offset


Effect = (
    AdvanceHighWatermark
    | SendToReplica
    | SendRecords
    | AppendStored
    | TruncateLog
    | ResetLog
    | BeginLogAt
    | RefuseLeadership
    | ProposeIsr
    | ProposeLeadership
    | ReportLeader
    | StartLeading
    | StopLeading
    | ReportLostRecords
)
