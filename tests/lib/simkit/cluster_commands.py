"""What a simulated broker proposes and answers, with who it is filled in."""

from __future__ import annotations

from broker.core.metadata.commands import (
    ChangeIsr,
    ConfirmLeader,
    LogAnswer,
    RegisterBroker,
    WithdrawReplica,
)
from broker.core.replication import effects as does
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer, FetchRequest
from simkit.cluster_log import ReplicaLog


def registration(me: BrokerId, session: str, folder: list[str], *, clean: bool) -> RegisterBroker:
    """Return how a process registers with the sessions that its folder holds."""
    return RegisterBroker(
        broker=me,
        session=session,
        known_sessions=tuple(one for one in folder if one != session),
        clean=clean,
        features_max=2,
    )


def isr_change(
    me: BrokerId, broker_epoch: BrokerEpoch, partition_id: PartitionId, wanted: does.ProposeIsr
) -> ChangeIsr:
    """Return the proposal of a leader."""
    return ChangeIsr(
        stream_uuid=partition_id.stream_uuid,
        partition=partition_id.number,
        broker=me,
        broker_epoch=broker_epoch,
        leader_epoch=wanted.leader_epoch,
        partition_epoch=wanted.partition_epoch,
        isr=wanted.isr,
        forgotten=wanted.forgotten,
    )


def confirmation(
    me: BrokerId,
    broker_epoch: BrokerEpoch,
    partition_id: PartitionId,
    leader_epoch: LeaderEpoch,
    log: ReplicaLog,
) -> ConfirmLeader:
    """Return what a candidate says when it has promoted itself."""
    return ConfirmLeader(
        stream_uuid=partition_id.stream_uuid,
        partition=partition_id.number,
        broker=me,
        broker_epoch=broker_epoch,
        leader_epoch=leader_epoch,
        lineage_id=f"{leader_epoch:032x}",
        log_end=log.facts().synced_end,
    )


def withdrawal(
    me: BrokerId, broker_epoch: BrokerEpoch, partition_id: PartitionId
) -> WithdrawReplica:
    """Return what a replica says that cannot vouch for its log."""
    return WithdrawReplica(
        stream_uuid=partition_id.stream_uuid,
        partition=partition_id.number,
        broker=me,
        broker_epoch=broker_epoch,
    )


def log_answer(me: BrokerId, broker_epoch: BrokerEpoch, log: ReplicaLog) -> LogAnswer:
    """Return how far a log reaches."""
    end = log.facts().synced_end
    return LogAnswer(
        broker=me, broker_epoch=broker_epoch, last_epoch=log.last_epoch(end), log_end=end
    )


def fetched(
    request: FetchRequest, high_watermark: Offset, log: ReplicaLog, count: int
) -> FetchAnswer:
    """Return a leader's answer to a fetch: so many batches at most."""
    return FetchAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        start=request.fetch_from,
        high_watermark=high_watermark,
        log_end=log.facts().log_end,
        batches=tuple(log.read(request.fetch_from, count)),
    )
