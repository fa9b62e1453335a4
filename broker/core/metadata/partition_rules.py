"""The steps of one partition: pure functions from one PartitionState to the next.

The rules follow from three facts.

1. A record is committed only when every member of the present ISR, and of each ISR that the leader
   has proposed, has synced it. So every member may become leader.
2. No record is committed while the ISR is below its minimum or there is no leader. So replicas that
   leave the ISR in that time, the *eligible* replicas, have every committed record too.
3. After a restart only the disk itself shows its records, and it may be an older copy. So a
   member that has *restarted* may lead, or counts as compared, only after a comparison with other
   replicas (decision 0014).

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
    """Return a new partition whose living replicas are in sync; None if too few are alive."""
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
    first = Leadership(leader_epoch=LeaderEpoch(1), lineage_id=lineage_id, start=Offset(0))
    return begun((), first)


def with_leadership(
    partition: PartitionState, lineage_id: str, start: Offset, before: LeaderEpoch
) -> PartitionState:
    """Return the partition after its leader has begun to lead, in the present epoch.

    ``start`` and ``before`` are as in :class:`~broker.model.lineage.Leadership`. A second call in
    the same epoch changes nothing: an epoch has one start of leadership.
    """
    if partition.lineage and partition.lineage[-1].leader_epoch >= partition.leader_epoch:
        return partition
    leadership = Leadership(
        leader_epoch=partition.leader_epoch, lineage_id=lineage_id, start=start, before=before
    )
    return replace(partition, lineage=begun(partition.lineage, leadership))


def members(partition: PartitionState) -> tuple[BrokerId, ...]:
    """Return ISR and eligible: the replicas with every committed record, if no disk lost any."""
    return (*partition.isr, *partition.eligible)


def candidates(state: MetadataState, partition: PartitionState) -> tuple[BrokerId, ...]:
    """Return the replicas that may lead now without a loss, in order of preference.

    The ISR comes first, then the eligible replicas. Both are empty after an unclean election: then
    only the candidate of that election may lead, because there was no leader since and so no record
    was committed. Replicas that have restarted are included; they must also pass
    :func:`is_compared`.
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
    """Tell whether these answers show that a candidate's log has every committed record.

    A candidate that did not restart needs no answers. A candidate that has restarted must have a
    log that is not shorter than the log of one member that did not restart, or than the logs of
    min ISR members (itself included). At least one of those members has every committed record: the
    fault model allows at most min ISR - 1 damaged disks, and members whose damage is known, which
    are no members any more, count among these. Logs are compared by (epoch of the last record,
    log end). Decision 0014 has the proof.
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
    """Return the partition with the next partition epoch."""
    return replace(partition, partition_epoch=PartitionEpoch(partition.partition_epoch + 1))


def election_opened(partition: PartitionState) -> PartitionState:
    """Return the partition without a leader. The new leader epoch fences the former leader."""
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

    Its data folder may be a copy, which cannot be told apart from the folder that was in use. So
    the replica must be compared with others first. It does not continue to lead: records that it
    had written and not synced may be gone, and one epoch must never have two different records at
    an offset. It does not stay a candidate either.
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
    """Return the partition with a candidate, in a new leader epoch."""
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
    partition: PartitionState, *, lineage_id: str, log_end: Offset, log_epoch: LeaderEpoch
) -> PartitionState:
    """Return the partition led by its candidate; its log is as in ``ConfirmLeader``."""
    leader = partition.candidate
    assert leader is not None, "only a candidate is confirmed"
    isr = partition.isr
    if leader not in isr:  # an eligible replica; restarted members of the ISR are removed
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
        led = with_leadership(led, lineage_id, log_end, log_epoch)
    return bumped(_reassigned(led))


def taken_offline(partition: PartitionState) -> PartitionState:
    """Return the partition with status Offline: no replica can lead it now."""
    return bumped(replace(partition, status="offline", candidate=None))


def with_isr(
    partition: PartitionState,
    isr: Iterable[BrokerId],
    *,
    proved: Iterable[BrokerId] = (),
    forgotten: Iterable[BrokerId] = (),
) -> PartitionState:
    """Return the partition with the ISR that its leader proposed.

    The replicas in ``proved`` have shown the leader every committed record. The replicas in
    ``forgotten`` have lost records.
    """
    changed = _with_isr(partition, isr)
    eligible = tuple(one for one in changed.eligible if one not in set(forgotten))
    return bumped(_reassigned(_proved(replace(changed, eligible=eligible), proved)))


def with_min_isr(partition: PartitionState, min_isr: int) -> PartitionState:
    """Return the partition with another minimum of its ISR.

    The leader applies the new minimum when it gets the view with it. Without a leader no record is
    committed, so the eligible replicas stay until a leader is confirmed.
    """
    changed = replace(partition, min_isr=min_isr)
    if changed.leader is not None:
        changed = _proved(_with_isr(changed, changed.isr))
    return bumped(changed)


def without(partition: PartitionState, broker: BrokerId, *, keeps_data: bool) -> PartitionState:
    """Return the partition after a replica left the ISR, and eligible if its data is lost.

    With ``keeps_data`` the replica still has its synced records. Then it becomes eligible if there
    is no leader or the ISR is below its minimum, because no record is committed without it.
    Returns ``partition`` itself if nothing changes.
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

    It is the only candidate until a replica leads or this replica loses its log. The former leader
    was given up and is no candidate: it may have lost records that this replica has.
    """
    alone = replace(partition, isr=(), eligible=(), restarted=(), last_known_leader=loss.leader)
    named = candidate_named(alone, loss.leader)
    return replace(named, losses=(*named.losses, loss)[-LOSSES_KEPT:])


def reassigned_to(partition: PartitionState, target: tuple[BrokerId, ...]) -> PartitionState:
    """Return the partition while it moves to other replicas; the present ones stay meanwhile."""
    union = (*target, *(one for one in partition.replicas if one not in target))
    return bumped(_reassigned(replace(partition, replicas=union, target=target)))


def fenced(before: PartitionState, after: PartitionState) -> PartitionState:
    """Return the partition after a step; in a new leader epoch if replicas left a leader.

    A replica that left may come back with an empty log, in the same process. A late fetch of its
    removed log must not count for the new log: its leader epoch is old now (decision 0059). The
    leader confirms itself like any candidate, which begins a leadership with its own lineage id.
    """
    left = set(before.replicas) - set(after.replicas)
    if not left or after.leader is None or after.leader != before.leader:
        return after
    return candidate_named(after, after.leader)


def _with_isr(partition: PartitionState, isr: Iterable[BrokerId]) -> PartitionState:
    members = tuple(sorted(isr))
    eligible: set[BrokerId] = set()
    if len(members) < partition.min_isr:  # no record is committed now: replicas that leave have all
        eligible = (set(partition.eligible) | set(partition.isr)) - set(members)
    return replace(partition, isr=members, eligible=tuple(sorted(eligible)))


def _reassigned(partition: PartitionState) -> PartitionState:
    """Finish a reassignment when all new replicas are in the ISR and none of them has restarted.

    The old replicas are dropped.
    """
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
    """Remove from ``restarted`` the members that were compared, and replicas that left."""
    if not partition.restarted:
        return partition
    left = set(partition.restarted) & set(members(partition)) - set(proved)
    return replace(partition, restarted=tuple(sorted(left)))
