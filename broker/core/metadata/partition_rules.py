"""What may happen to one partition: pure steps from one PartitionState to the next.

Three facts carry all of it. A record is committed only when every member of the ISR, as the leader
knows it and as it has proposed it, has synced it; so any member may lead next. Nothing is committed
while the ISR is below its minimum, or nobody leads; so replicas that left it then, the *eligible*,
lack nothing either. And what a disk holds after a restart is what a disk says of itself; so a
member that has *restarted* leads, or counts as proved, only after a comparison (decision 0014).
Sources: KIP-497, KIP-903, KIP-966; Fluvio's replica election.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from broker.core.metadata.partition_commands import LogAnswer
from broker.core.metadata.state import Loss, MetadataState, PartitionState
from broker.model.epochs import LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.lineage import Leadership, Lineage, begun
from broker.model.offsets import Offset

LOSSES_KEPT: Final = 16


def first_partition(
    replicas: tuple[BrokerId, ...],
    alive: frozenset[BrokerId],
    min_isr: int,
    *,
    lineage_id: str,
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
        lineage=first_lineage(lineage_id),
    )


def first_lineage(lineage_id: str) -> Lineage:
    """Return the lineage of a new partition: its first leader begins with an empty log."""
    return begun((), _leadership(LeaderEpoch(1), lineage_id, Offset(0)))


def with_leadership(partition: PartitionState, lineage_id: str, start: Offset) -> PartitionState:
    """Return the partition after its leader has begun to lead, in the present epoch.

    The same epoch again is the same start of leadership: what came first stays.
    """
    if partition.lineage and partition.lineage[-1].leader_epoch >= partition.leader_epoch:
        return partition
    leadership = _leadership(partition.leader_epoch, lineage_id, start)
    return replace(partition, lineage=begun(partition.lineage, leadership))


def _leadership(leader_epoch: LeaderEpoch, lineage_id: str, start: Offset) -> Leadership:
    return Leadership(leader_epoch=leader_epoch, lineage_id=lineage_id, start=start)


def members(partition: PartitionState) -> tuple[BrokerId, ...]:
    """Return who holds everything committed, unless its disk has forgotten: ISR and eligible."""
    return (*partition.isr, *partition.eligible)


def candidates(state: MetadataState, partition: PartitionState) -> tuple[BrokerId, ...]:
    """Return who may lead now without losing anything committed, in order of preference.

    The ISR comes first, then the eligible. When both are empty, for an operator gave them up, who
    was named then: nobody has led, so nothing was committed, since. Who has restarted is among the
    members, and has to pass :func:`is_compared` as well.
    """
    living = [
        one
        for pool in (partition.isr, partition.eligible)
        for one in partition.replicas
        if one in pool and may_lead(state, one)
    ]
    if living:
        return tuple(living)
    last = partition.last_known_leader
    if not partition.isr and not partition.eligible and last in partition.replicas:
        assert last is not None
        return (last,) if may_lead(state, last) else ()
    return ()


def is_compared(
    state: MetadataState,
    partition: PartitionState,
    candidate: BrokerId,
    answers: Sequence[LogAnswer],
) -> bool:
    """Tell whether a candidate's log has everything committed, going by these answers.

    One whose process was proved is trusted for itself. One that has restarted has to reach as far
    as a member that was proved, or as so many members that one of them cannot have forgotten: the
    fault model has at most min ISR - 1 disks damaged, and a member whose loss is known, so that it
    is none any more, was one of them. Longer by (epoch of the last record, end) means that nothing
    committed is missing: decision 0014 has the proof.
    """
    if candidate not in partition.restarted:
        return True
    ends = {
        one.broker: (one.last_epoch, one.log_end)
        for one in answers
        if one.broker in members(partition)
        and one.broker in state.brokers
        and state.brokers[one.broker].epoch == one.broker_epoch
    }
    own = ends.get(candidate)
    if own is None:
        return False
    reached = [one for one, end in ends.items() if end <= own]
    enough = min(partition.min_isr, len(members(partition)))
    return len(reached) >= enough or any(one not in partition.restarted for one in reached)


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


def restarted(partition: PartitionState, broker: BrokerId) -> PartitionState:
    """Return the partition after one of its replicas came back as a new process.

    Its folder says that it holds what it had synced, and a copy of the folder says the same: so
    nothing is done on its word. It neither goes on leading (what it had written and not synced may
    be gone, and the same epoch must never hold two contents, A25) nor stays a candidate.
    """
    if broker not in members(partition):
        return partition
    marked = tuple(sorted({*partition.restarted, broker}))
    if partition.leader == broker:
        return replace(election_opened(partition), restarted=marked)
    changed = replace(partition, restarted=marked)
    if partition.candidate == broker:
        changed = replace(changed, status="election", candidate=None)
    return bumped(changed)


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


def leader_confirmed(
    partition: PartitionState, *, lineage_id: str, log_end: Offset
) -> PartitionState:
    """Return the partition led by its candidate, whose log ends at ``log_end``."""
    leader = partition.candidate
    assert leader is not None, "only a candidate is confirmed"
    isr = partition.isr
    if leader not in isr:  # eligible: it waits for no member that may have forgotten
        isr = (leader, *(one for one in isr if one not in partition.restarted))
    led = replace(
        _proved(_with_isr(partition, isr), {leader}),
        status="online",
        leader=leader,
        candidate=None,
        tried=(),
        last_known_leader=None,
    )
    if lineage_id:  # absent from a journal that was written before there were lineages
        led = with_leadership(led, lineage_id, log_end)
    return bumped(_reassigned(led))


def taken_offline(partition: PartitionState) -> PartitionState:
    """Return the partition as nobody can lead it now."""
    return bumped(replace(partition, status="offline", candidate=None))


def with_isr(
    partition: PartitionState,
    isr: Iterable[BrokerId],
    *,
    proved: Iterable[BrokerId] = (),
    forgotten: Iterable[BrokerId] = (),
) -> PartitionState:
    """Return the partition with the ISR that its leader proposed.

    ``proved`` were seen to hold everything committed, ``forgotten`` to hold less than they had.
    """
    changed = _with_isr(partition, isr)
    eligible = tuple(one for one in changed.eligible if one not in set(forgotten))
    return bumped(_reassigned(_proved(replace(changed, eligible=eligible), proved)))


def without(partition: PartitionState, broker: BrokerId, *, keeps_data: bool) -> PartitionState:
    """Return the partition after a replica was lost from ISR and eligible.

    ``keeps_data``: what it had synced is still there, so it may be eligible: while nobody leads,
    as while the ISR is below its minimum, nothing is committed without it. Equal to ``partition``
    when the broker was in neither and leads nothing.
    """
    changed = partition
    if broker in partition.isr:
        isr = tuple(one for one in partition.isr if one != broker)
        eligible = set(partition.eligible)
        if broker == partition.leader:
            changed = election_opened(partition)
        if keeps_data and (len(isr) < partition.min_isr or changed.leader is None):
            eligible.add(broker)
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
    if changed is partition:
        return partition
    if changed.partition_epoch == partition.partition_epoch:
        changed = bumped(changed)
    return _proved(changed)


def given_up(partition: PartitionState, loss: Loss) -> PartitionState:
    """Return the partition with the candidate of an unclean election.

    It stays the only one until somebody leads or it loses its log: whoever led before was given up,
    and may have forgotten records that this one has.
    """
    alone = replace(partition, isr=(), eligible=(), restarted=(), last_known_leader=loss.leader)
    named = candidate_named(alone, loss.leader)
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
    """Drop the replicas that a reassignment leaves behind, once all new ones are in the ISR, and
    none of these has restarted since it was compared.
    """  # noqa: D205 - one thought
    target = partition.target
    proved = set(partition.isr) - set(partition.restarted)
    if not target or not set(target) <= proved or partition.status != "online":
        return partition
    done = replace(partition, target=())
    if partition.leader not in target:
        done = candidate_named(done, target[0])
    opened = tuple(one for one in partition.opened if one in target)
    moved = replace(done, replicas=target, isr=tuple(sorted(target)), eligible=(), opened=opened)
    return _proved(moved)


def _proved(partition: PartitionState, proved: Iterable[BrokerId] = ()) -> PartitionState:
    """Drop the marks of members that were compared, and of those that are none any more."""
    if not partition.restarted:
        return partition
    left = set(partition.restarted) & set(members(partition)) - set(proved)
    return replace(partition, restarted=tuple(sorted(left)))
