"""Delete the records of a partition below an offset: which conditions must hold. Pure.

The purged end of a partition is in the metadata, so it survives every restart, every change of
leaders and every replica that is replaced. It only grows. Records below it are not read any more,
even if a disk still has them; their segments are freed as retention frees segments.

Kafka's DeleteRecords moves the log start of the leader, which its followers learn with their next
fetch; the request waits until all of them have, and a segment that holds the offset stays on disk
(KIP-107). JetStream's purge removes messages below a sequence (``seq``, exclusive; also ``keep``
and ``filter``) and leaves the sequence numbers alone (ADR-10). Neither protects readers. Here
readers have leases, and the history may be in a table. So a purge never deletes records that a
lease holds, and never makes a hole in a table.
"""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.commands import ExpireRecords, PurgeRecords
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.partition_apply import find, put, stale_leader
from broker.core.metadata.state import FEATURE_LEVEL_ALTERED, MetadataState, PartitionState
from broker.errors import HeadwaterError, HeldByLeaseError, NotShippedError

_SHOWN_MAX = 5  # leases that a refusal names


def purge_records(state: MetadataState, command: PurgeRecords) -> Applied:
    """Return the state with a higher purged end; a lower one than before changes nothing."""
    present = find(state, command.stream_uuid, command.partition)
    if isinstance(present, HeadwaterError):
        return state, Rejected(present)
    low = refused_level(state, FEATURE_LEVEL_ALTERED, "a purge")
    if low is not None:
        return state, Rejected(low)
    if present.leader is None or command.leader_epoch != present.leader_epoch:
        return state, Rejected(stale_leader(present, command.leader_epoch))
    if command.before <= present.purged_end:
        return state, {"purged_from": present.purged_end}
    refused = _refused_by_table(state, command, present) or refused_by_leases(state, command)
    if refused is not None:
        return state, Rejected(refused)
    purged = replace(present, purged_end=command.before)
    return (
        put(state, command.stream_uuid, command.partition, purged),
        {"purged_from": present.purged_end},
    )


def _refused_by_table(
    state: MetadataState, command: PurgeRecords, present: PartitionState
) -> HeadwaterError | None:
    """Return the error if records would be missing from a stream's table, or None."""
    stream = next(one for one in state.streams.values() if one.uuid == command.stream_uuid)
    if not stream.config.tiering or command.before <= present.cold_end:
        return None
    return NotShippedError(
        f"the records [{present.cold_end}, {command.before}) of {stream.name}/{command.partition} "
        "are not in the stream's table yet, and a purge would leave a hole in the table: ship them "
        f"first, or purge below {present.cold_end}",
        stream=stream.name,
        partition=command.partition,
        start=present.cold_end,
        end=command.before,
    )


def refused_by_leases(
    state: MetadataState, command: PurgeRecords | ExpireRecords
) -> HeadwaterError | None:
    """Return the error if a lease holds a record that would be deleted or expire, or None."""
    holding = sorted(
        (lease.floor(command.partition), lease_id, lease.owner)
        for lease_id, lease in state.leases.items()
        if lease.stream_uuid == command.stream_uuid
        and lease.expires_us > command.now_us
        and lease.floor(command.partition) < command.before
    )
    if not holding:
        return None
    owners = sorted({owner for _, _, owner in holding})
    return HeldByLeaseError(
        f"{len(holding)} lease(s) hold records below {command.before} of partition "
        f"{command.partition}, from {holding[0][0]} on, for {', '.join(owners[:_SHOWN_MAX])}: wait "
        "until these readers are done, or end their leases (`headwater lease list`, `lease drop`)",
        owners=owners[:_SHOWN_MAX],
        lease_ids=[lease_id for _, lease_id, _ in holding[:_SHOWN_MAX]],
        floor=holding[0][0],
    )
