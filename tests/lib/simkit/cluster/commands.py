"""What a simulated broker proposes and answers, with who it is filled in."""

from __future__ import annotations

from broker.core.dedup import ProducerTable
from broker.core.metadata.commands import (
    ChangeIsr,
    ConfirmLeader,
    LogAnswer,
    RecordColdEnd,
    RegisterBroker,
    WithdrawReplica,
)
from broker.core.replication import effects as does
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer, FetchRequest, LogPrefix
from simkit.cluster.log import ReplicaLog


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


def cold_end(partition_id: PartitionId, end: Offset) -> RecordColdEnd:
    """Return the note that the table holds everything below ``end``."""
    return RecordColdEnd(
        stream_uuid=partition_id.stream_uuid, partition=partition_id.number, cold_end=end
    )


def below_start(
    request: FetchRequest, high_watermark: Offset, log: ReplicaLog, producers: ProducerTable
) -> FetchAnswer:
    """Return a leader's answer to who asks for what is in the table alone."""
    facts = log.facts()
    start = facts.log_start
    epochs = facts.epochs.truncated(start).starts
    known = producers.below(start, batches_max=64)
    return FetchAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        start=start,
        high_watermark=high_watermark,
        log_end=facts.log_end,
        refusal="below_start",
        prefix=LogPrefix(
            epochs=tuple((one.leader_epoch, one.start_offset) for one in epochs),
            producers=known.to_state(),
        ),
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
