"""The state of the metadata in the form that operators see. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.core.metadata.state import MetadataState, PartitionState
from broker.model.cluster_status import BrokerStatus, LossStatus, PartitionInfo
from broker.model.ids import BrokerId
from broker.model.stream import Stream


def brokers_of(state: MetadataState, controller: str | None) -> Iterator[BrokerStatus]:
    """Yield every registered broker, by name."""
    leads: Counter[BrokerId | None] = Counter()
    holds: Counter[BrokerId] = Counter()
    for rows in state.partitions.values():
        for row in rows:
            leads[row.leader] += 1
            holds.update(row.replicas)
    for name, one in sorted(state.brokers.items()):
        yield BrokerStatus(
            broker=name,
            epoch=one.epoch,
            addresses=dict(one.addresses),
            fenced=one.fenced,
            stopping=one.stopping,
            controller=name == controller,
            leads=leads[name],
            replicas=holds[name],
            features_max=one.features_max,
        )


def partitions_of(state: MetadataState) -> Iterator[PartitionInfo]:
    """Yield every partition, by stream and number."""
    for name in sorted(state.streams):
        stream = state.streams[name]
        for number, one in enumerate(state.partitions.get(stream.uuid, ())):
            yield _partition(stream, number, one)


def _partition(stream: Stream, number: int, one: PartitionState) -> PartitionInfo:
    return PartitionInfo(
        stream=stream.name,
        stream_uuid=stream.uuid,
        partition=number,
        status=one.status,
        leader=one.leader,
        candidate=one.candidate,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        replicas=one.replicas,
        isr=one.isr,
        eligible=one.eligible,
        restarted=one.restarted,
        paused=one.paused,
        readonly=one.readonly,
        min_isr=one.min_isr,
        target=one.target,
        last_known_leader=one.last_known_leader,
        cold_end=one.cold_end,
        losses=tuple(
            LossStatus(
                leader_epoch=loss.leader_epoch,
                leader=loss.leader,
                log_end=loss.log_end,
                known_end=loss.known_end,
                given_up=loss.given_up,
                operator=loss.operator,
            )
            for loss in one.losses
        ),
    )
