"""What may happen to one partition: pure steps from one PartitionState to the next.

Two facts carry all of it. A record is committed only when every member of the ISR, as the leader
knows it and as it has proposed it, has synced it; so any member may lead next. And nothing is
committed while the ISR is below its minimum; so replicas that left it then, the *eligible*, lack
nothing either. Sources: KIP-497, KIP-903, KIP-966; Fluvio's replica election.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from broker.core.metadata.state import Loss, MetadataState, PartitionState
from broker.model.epochs import LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset

LOSSES_KEPT: Final = 16


def first_partition(
    replicas: tuple[BrokerId, ...], alive: frozenset[BrokerId], min_isr: int
) -> PartitionState | None:
    """Return a new partition whose living replicas are all in sync; None when too few live."""
    isr = tuple(sorted(set(replicas) & alive))
    leader = next((one for one in replicas if one in alive), None)
    if leader is None or len(isr) < min_isr:
        return None
    return PartitionState(
        leader=leader,
        leader_epoch=LeaderEpoch(1),
        cold_end=Offset(0),
        replicas=replicas,
        isr=isr,
        min_isr=min_isr,
    )


def candidates(state: MetadataState, partition: PartitionState) -> tuple[BrokerId, ...]:
    """Return who may lead now without losing anything committed, in order of preference.

    The ISR comes first; without a living member of it, the eligible. When both are empty, for all
    of them lost their disks, the last leader: nobody has led, so nothing was committed, since.
    """
    for pool in (partition.isr, partition.eligible):
        living = [one for one in partition.replicas if one in pool and may_lead(state, one)]
        if living:
            return tuple(living)
    last = partition.last_known_leader
    if not partition.isr and not partition.eligible and last in partition.replicas:
        assert last is not None
        return (last,) if may_lead(state, last) else ()
    return ()


def may_lead(state: MetadataState, broker: BrokerId) -> bool:
    """Tell whether a broker may take over leadership or join an ISR (KIP-841)."""
    one = state.brokers.get(broker)
    return one is not None and not one.fenced and not one.stopping


def bumped(partition: PartitionState) -> PartitionState:
    """Return the partition after a change that somebody may have to hear of."""
    return replace(partition, partition_epoch=PartitionEpoch(partition.partition_epoch + 1))


def election_opened(partition: PartitionState) -> PartitionState:
    """Return the partition without a leader. The new epoch fences the old one."""
    return bumped(
        replace(
            partition,
            status="election",
            leader=None,
            candidate=None,
            tried=(),
            leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
            last_known_leader=partition.leader or partition.last_known_leader,
        )
    )


def candidate_named(partition: PartitionState, candidate: BrokerId) -> PartitionState:
    """Return the partition with a candidate, which has an epoch of its own from here on."""
    failed = () if partition.candidate is None else (partition.candidate,)
    return bumped(
        replace(
            partition,
            status="candidate_found",
            leader=None,
            candidate=candidate,
            tried=(*partition.tried, *failed),
            leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
            last_known_leader=partition.leader or partition.last_known_leader,
        )
    )


def leader_confirmed(partition: PartitionState) -> PartitionState:
    """Return the partition led by its candidate."""
    leader = partition.candidate
    assert leader is not None, "only a candidate is confirmed"
    isr = partition.isr if leader in partition.isr else (leader,)
    led = replace(
        _with_isr(partition, isr),
        status="online",
        leader=leader,
        candidate=None,
        tried=(),
        last_known_leader=None,
    )
    return bumped(_reassigned(led))


def taken_offline(partition: PartitionState) -> PartitionState:
    """Return the partition as nobody can lead it now."""
    return bumped(replace(partition, status="offline", candidate=None))


def with_isr(partition: PartitionState, isr: Iterable[BrokerId]) -> PartitionState:
    """Return the partition with the ISR that its leader proposed."""
    return bumped(_reassigned(_with_isr(partition, isr)))


def without(partition: PartitionState, broker: BrokerId, *, keeps_data: bool) -> PartitionState:
    """Return the partition after a replica was lost from ISR and eligible.

    ``keeps_data``: what it had synced is still there, so it may be eligible. Equal to
    ``partition`` when the broker was in neither and leads nothing.
    """
    changed = partition
    if broker in partition.isr:
        isr = tuple(one for one in partition.isr if one != broker)
        eligible = set(partition.eligible)
        if keeps_data and len(isr) < partition.min_isr:
            eligible.add(broker)
        leader = None if broker == partition.leader else partition.leader
        if leader is None and partition.leader is not None:
            changed = election_opened(partition)
        changed = replace(changed, isr=isr, eligible=tuple(sorted(eligible)))
    elif broker in partition.eligible and not keeps_data:
        eligible_left = tuple(one for one in partition.eligible if one != broker)
        changed = replace(changed, eligible=eligible_left)
    if not keeps_data and changed.last_known_leader == broker:
        changed = replace(changed, last_known_leader=None)
    if changed.candidate == broker:
        changed = replace(
            changed, status="election", candidate=None, tried=(*changed.tried, broker)
        )
    if changed is not partition and changed.partition_epoch == partition.partition_epoch:
        changed = bumped(changed)
    return changed


def given_up(partition: PartitionState, loss: Loss) -> PartitionState:
    """Return the partition with the candidate of an unclean election."""
    named = candidate_named(replace(partition, isr=(), eligible=()), loss.leader)
    return replace(named, losses=(*named.losses, loss)[-LOSSES_KEPT:])


def reassigned_to(partition: PartitionState, target: tuple[BrokerId, ...]) -> PartitionState:
    """Return the partition on its way to other replicas; the present ones stay meanwhile."""
    union = (*target, *(one for one in partition.replicas if one not in target))
    return bumped(_reassigned(replace(partition, replicas=union, target=target)))


def _with_isr(partition: PartitionState, isr: Iterable[BrokerId]) -> PartitionState:
    members = tuple(sorted(isr))
    eligible: set[BrokerId] = set()
    if len(members) < partition.min_isr:  # nothing is committed from here on: who left has it all
        eligible = (set(partition.eligible) | set(partition.isr)) - set(members)
    return replace(partition, isr=members, eligible=tuple(sorted(eligible)))


def _reassigned(partition: PartitionState) -> PartitionState:
    """Drop the replicas that a reassignment leaves behind, once all new ones are in the ISR."""
    target = partition.target
    if not target or not set(target) <= set(partition.isr) or partition.status != "online":
        return partition
    done = replace(partition, target=())
    if partition.leader not in target:
        done = candidate_named(done, target[0])
    return replace(done, replicas=target, isr=tuple(sorted(target)), eligible=())
