"""Expire the records of a partition below an offset: which conditions must hold. Pure.

Remote retention is decided here, and carried out in the table afterwards. So decisions, leases and
protected positions have one order: a lease or a position that comes after the decision
begins at or above the remote start, and one that came before it holds the decision back. The remote
start only grows; no restart, change of leaders or replaced replica brings expired records back.
"""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.commands import ExpireRecords
from broker.core.metadata.group_positions import positions_in
from broker.core.metadata.group_state import cursor_key
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.partition_apply import find, put, stale_leader
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState, PartitionState
from broker.core.metadata.stream_purge import refused_by_leases
from broker.errors import (
    HeadwaterError,
    HeldByPositionError,
    NotShippedError,
)
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import Stream


def expire_records(state: MetadataState, command: ExpireRecords) -> Applied:
    """Return the state with a higher remote start; a lower one than before changes nothing."""
    present = find(state, command.stream_uuid, command.partition)
    if isinstance(present, HeadwaterError):
        return state, Rejected(present)
    low = refused_level(state, FEATURE_LEVEL_STREAMS, "retention of a table")
    if low is not None:
        return state, Rejected(low)
    if present.leader is None or command.leader_epoch != present.leader_epoch:
        return state, Rejected(stale_leader(present, command.leader_epoch))
    if command.before <= present.remote_start:
        return state, {"remote_start": present.remote_start}
    refused = _refused_by_table(command, present)
    if refused is None and not command.is_done:
        refused = _refused_by_readers(state, command)
    if refused is not None:
        return state, Rejected(refused)
    expired = replace(present, remote_start=command.before)
    return (
        put(state, command.stream_uuid, command.partition, expired),
        {"remote_start": command.before},
    )


def lease_limit(state: MetadataState, partition: PartitionId, now_us: int) -> Offset:
    """Return the lowest offset that a live lease on a partition holds; OFFSET_MAX without one."""
    floors = [
        lease.floor(partition.number)
        for lease in state.leases.values()
        if lease.stream_uuid == partition.stream_uuid and lease.expires_us > now_us
    ]
    return min(floors, default=Offset(OFFSET_MAX))


def position_limit(state: MetadataState, stream: Stream, number: int) -> Offset:
    """Return the lowest position that keeps the records of a partition from expiring.

    OFFSET_MAX if the stream does not protect positions, or there is none. A cursor that holds the
    last record that was read, as Liftbridge's clients store it, keeps one record too many.
    """
    if not stream.config.protect_groups:
        return Offset(OFFSET_MAX)
    key = cursor_key(stream.name, number)
    found = [positions[key] for positions in state.cursors.values() if key in positions]
    at = PartitionId(stream.uuid, PartitionNumber(number))
    found += [one.offset for one in positions_in(state, at).values()]
    return Offset(max(0, min(found, default=OFFSET_MAX)))


def expiry_limit(
    state: MetadataState, stream: Stream, number: int, present: PartitionState, now_us: int
) -> Offset:
    """Return the offset up to which the records of a partition may expire, from one state."""
    at = PartitionId(stream.uuid, PartitionNumber(number))
    held = min(lease_limit(state, at, now_us), position_limit(state, stream, number))
    return max(present.remote_start, min(present.cold_end, held))


def _refused_by_table(command: ExpireRecords, present: PartitionState) -> HeadwaterError | None:
    if command.before <= present.cold_end:
        return None
    return NotShippedError(
        f"the records [{present.cold_end}, {command.before}) of partition {command.partition} are "
        "not in the stream's table yet, so they cannot leave it",
        partition=command.partition,
        start=present.cold_end,
        end=command.before,
    )


def _refused_by_readers(state: MetadataState, command: ExpireRecords) -> HeadwaterError | None:
    """Return the error if a lease or a protected position holds what would expire, or None."""
    refused = refused_by_leases(state, command)
    if refused is not None:
        return refused
    stream = next(one for one in state.streams.values() if one.uuid == command.stream_uuid)
    held = position_limit(state, stream, command.partition)
    if held < command.before:
        return HeldByPositionError(
            f"a saved position of stream {stream.name!r} is at offset {held} of partition "
            f"{command.partition}, and the stream protects positions: nothing expires below "
            f"{command.before}",
            partition=command.partition,
            position=held,
        )
    return None
