"""The first states of partitions: of a new stream, or of a stream that gets more. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.metadata.outcome import refused_level
from broker.core.metadata.partition_apply import refused_replicas
from broker.core.metadata.partition_rules import first_lineage, first_partition, may_lead
from broker.core.metadata.state import (
    FEATURE_LEVEL_REPLICATED,
    MetadataState,
    PartitionState,
)
from broker.errors import HeadwaterError, InvalidAssignmentError, NotEnoughReplicasError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.lineage import first_lineage_id
from broker.model.offsets import Offset
from broker.model.stream import Stream


def new_partitions(
    state: MetadataState,
    stream: Stream,
    numbers: Sequence[int],
    *,
    leader: BrokerId,
    assignment: Sequence[tuple[BrokerId, ...]],
    min_isr: int,
) -> tuple[PartitionState, ...] | HeadwaterError:
    """Return a stream's new partitions, by number, or the error why they cannot be created.

    ``assignment`` has the replicas of each of them; empty: ``leader`` alone.
    """
    if not assignment:
        return tuple(
            PartitionState(
                leader=leader,
                leader_epoch=LeaderEpoch(1),
                cold_end=Offset(0),
                replicas=(leader,),
                isr=(leader,),
                lineage=first_lineage(first_lineage_id(stream.uuid, number)),
            )
            for number in numbers
        )
    low = refused_level(state, FEATURE_LEVEL_REPLICATED, "a stream with replicas")
    if low is not None:
        return low
    if len(assignment) != len(numbers):
        return InvalidAssignmentError(
            f"the assignment has {len(assignment)} rows of replicas for {len(numbers)} partitions"
        )
    rows: list[PartitionState] = []
    living = frozenset(one for one in state.brokers if may_lead(state, one))
    for number, replicas in zip(numbers, assignment, strict=True):
        refused = refused_replicas(state, replicas, min_isr)
        if refused is not None:
            return refused
        lineage_id = first_lineage_id(stream.uuid, number)
        row = first_partition(replicas, living, min_isr, lineage_id=lineage_id)
        if row is None:
            return NotEnoughReplicasError(
                f"of the replicas {', '.join(replicas)} fewer are alive than the minimum ISR of "
                f"{min_isr}: start their brokers, or choose a lower min_isr",
                isr=sorted(set(replicas) & living),
                min_isr=min_isr,
            )
        rows.append(row)
    return tuple(rows)
