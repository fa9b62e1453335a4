"""The effects that the replication machines return to their shell, and the facts of a log.

The order of a list of effects is part of the contract: a shell performs them one by one. If an
effect says that something must be durable first, the shell must wait until it is durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.core.dedup import ProducerTable
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchRequest, LogPrefix, ReplicaMessage

# Of a log that begins at 0: nothing is before.
NO_PREFIX: Final = LogPrefix(epochs=(), producers=ProducerTable().to_state())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The present state of the local log. An fsync has confirmed all below ``synced_end``."""

    log_start: Offset
    log_end: Offset
    synced_end: Offset
    epochs: EpochHistory
    # Below it, followers cannot get the records that key compaction took: see ``FollowerCopies``.
    sparse_end: Offset = Offset(0)  # noqa: RUF009 - a plain number


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """All records below ``end`` are committed: show them to readers, then acknowledge them.

    Must be durable before: the log of every in-sync replica below ``end``.
    """

    end: Offset


@dataclass(frozen=True, slots=True)
class SendToReplica:
    """Send a message to another replica. The message may be lost, or arrive twice."""

    to: BrokerId
    message: ReplicaMessage


@dataclass(frozen=True, slots=True)
class SendRecords:
    """Answer with the log from the request's offset on, as much as the transport takes."""

    to: BrokerId
    request: FetchRequest
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class AppendStored:
    """Write a leader's batches at the log's end, sync, then report ``LogSynced``.

    Write them in the runs of :func:`broker.core.replication.runs.append_runs`.
    """

    batches: Sequence[Any]


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Drop all records from ``end`` on, durably, then report ``LogTruncated``.

    Data that is derived from these records (the retry tables too) is dropped with them. ``end`` may
    be the log's end: then only epochs without a record are dropped.
    """

    end: Offset


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Replace the log by an empty log at ``start``, durably; then report ``LogTruncated``.

    Usually all records of this log are below the leader's log start, so they are committed and in
    the table. With ``start`` 0 and an empty prefix, no record of this log is in the leader's log,
    or key compaction was past this log's end there; the leader's next answer says where to begin.
    """

    start: Offset
    prefix: LogPrefix


@dataclass(frozen=True, slots=True)
class BeginLogAt:
    """Replace the present log by an empty log at ``start``, durably; then report ``LogTruncated``.

    This happens only after an unclean election. The table holds all records below ``start``; this
    log ends below ``start``, or has others there. So without this effect the leader would give
    offsets of the table to other records. The new log has no epochs for the records below
    ``start``: the epochs of the present log may differ from the table's, and a follower that agreed
    with them could keep records that were never committed. The state of producers is kept of the
    records below ``kept_end``: from there on the present log's records are not the partition's, and
    a producer that repeats one of them has to be told the truth.
    """

    start: Offset
    kept_end: Offset


@dataclass(frozen=True, slots=True)
class RefuseLeadership:
    """Remove this replica from the ISR: its log ends below ``cold_end``, so it lost records."""

    log_end: Offset
    cold_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Propose ``ChangeIsr`` to the metadata log; report ``IsrAnswered`` if the outcome is known."""

    isr: Mapping[BrokerId, BrokerEpoch]  # 0: its process may lack committed records
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    forgotten: tuple[BrokerId, ...] = ()  # their disks lost records that this leader had counted


@dataclass(frozen=True, slots=True)
class ProposeLeadership:
    """Propose ``ConfirmLeader``: the log is open, healthy and synced to its end."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportLeader:
    """Report to the controller that the leader of this epoch does not answer."""

    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class StartLeading:
    """Take publishes in this epoch, after the retry tables are rebuilt from the log."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class StopLeading:
    """Take no publishes. Publishers that wait for an ack get NotLeaderError: outcome unknown."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportLostRecords:
    """The new leader lacks the records ``[end, committed)``, which were committed.

    This happens only after an unclean election. Readers above ``end`` must be told.
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
