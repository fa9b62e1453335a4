"""On which brokers replicas are placed, and which leaders should move. Plans without effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.core.metadata.commands import NameCandidate
from broker.core.metadata.partition_rules import may_lead
from broker.core.metadata.state import MetadataState, PartitionState
from broker.errors import NotEnoughReplicasError
from broker.model.ids import BrokerId, StreamUuid


def place(
    state: MetadataState, *, partitions: int, replication_factor: int
) -> tuple[tuple[BrokerId, ...], ...]:
    """Return replicas for each new partition, on the brokers with the fewest; leaders come first.

    If too few brokers are alive, fenced brokers are used too, as in KRaft's placement: they join
    the ISR when they come back. Until then the min ISR decides whether a publish is accepted.

    Raises:
        NotEnoughReplicasError: fewer brokers are registered than the replication factor.
    """
    absent = {one: not may_lead(state, one) for one in state.brokers}
    if replication_factor > len(absent):
        raise NotEnoughReplicasError(
            f"a replication factor of {replication_factor} needs as many brokers; {len(absent)} "
            "are registered: add brokers or choose a smaller factor",
            isr=sorted(one for one in absent if not absent[one]),
            min_isr=replication_factor,
        )
    held: Counter[BrokerId] = Counter()
    led: Counter[BrokerId] = Counter()
    for _, _, one in _all(state):
        held.update(one.replicas)
        led.update(one.replicas[:1])
    rows: list[tuple[BrokerId, ...]] = []
    for _ in range(partitions):
        chosen = sorted(absent, key=lambda one: (absent[one], held[one], led[one], one))
        chosen = sorted(
            chosen[:replication_factor], key=lambda one: (absent[one], led[one], held[one], one)
        )
        held.update(chosen)
        led.update(chosen[:1])
        rows.append(tuple(chosen))
    return tuple(rows)


def balance(state: MetadataState) -> list[NameCandidate]:
    """Return a hand-over for each partition whose preferred leader is in sync and does not lead."""
    return [
        _hand_over(state, uuid, number, one, one.replicas[0])
        for uuid, number, one in _all(state)
        if one.status == "online"
        and one.replicas[0] != one.leader
        and _may_take_over(state, one, one.replicas[0])
    ]


def hand_overs(state: MetadataState, leaving: BrokerId) -> list[NameCandidate]:
    """Return a hand-over for each partition of a stopping leader that another replica may lead."""
    plan: list[NameCandidate] = []
    for uuid, number, one in _all(state):
        if one.leader == leaving:
            others = [
                other
                for other in one.replicas
                if other != leaving and _may_take_over(state, one, other)
            ]
            if others:
                plan.append(_hand_over(state, uuid, number, one, others[0]))
    return plan


def _may_take_over(state: MetadataState, one: PartitionState, broker: BrokerId) -> bool:
    return broker in one.isr and broker not in one.restarted and may_lead(state, broker)


def _all(state: MetadataState) -> Iterator[tuple[StreamUuid, int, PartitionState]]:
    for uuid in sorted(state.partitions):
        for number, one in enumerate(state.partitions[uuid]):
            yield uuid, number, one


def _hand_over(
    state: MetadataState, uuid: StreamUuid, number: int, one: PartitionState, to: BrokerId
) -> NameCandidate:
    return NameCandidate(
        stream_uuid=uuid,
        partition=number,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        candidate=to,
        candidate_epoch=state.brokers[to].epoch,
    )
