"""Apply the commands about streams, their cold ends and the leases on them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from broker.core.metadata.answering import refused_answers
from broker.core.metadata.commands import (
    AddPartitions,
    AlterStream,
    CreateStream,
    DeleteStream,
    DropLease,
    ExpireRecords,
    PurgeRecords,
    RecordColdEnd,
    RenewLease,
    RotateDataKey,
    StreamCommand,
    TakeLease,
)
from broker.core.metadata.group_apply import without_stream
from broker.core.metadata.group_positions import without_late_cursors
from broker.core.metadata.new_partitions import new_partitions
from broker.core.metadata.outcome import Applied, Rejected
from broker.core.metadata.partition_apply import find, put, stale_leader, unknown_uuid
from broker.core.metadata.size import refused_growth, weight_of_lease, weight_of_stream
from broker.core.metadata.state import (
    DELETED_KEPT_MAX,
    LeaseState,
    MetadataState,
)
from broker.core.metadata.stream_alter import alter_stream, refused_compaction
from broker.core.metadata.stream_encryption import refused_encryption, rotate_data_key
from broker.core.metadata.stream_expiry import expire_records
from broker.core.metadata.stream_purge import purge_records
from broker.core.metadata.tenant_apply import refused_beyond_tenant
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    StaleColdEndError,
    StreamExistsError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset

_SHARED_WITH_MAX: Final = 16  # how many leases are compared for equal floors


def apply_stream(state: MetadataState, command: StreamCommand) -> Applied:
    """Return the next state and the reply of a command about a stream or a lease."""
    match command:
        case CreateStream():
            return _create_stream(state, command)
        case AlterStream() | AddPartitions():
            return alter_stream(state, command)
        case RotateDataKey():
            return rotate_data_key(state, command)
        case DeleteStream():
            return _delete_stream(state, command)
        case RecordColdEnd():
            return _record_cold_end(state, command)
        case PurgeRecords():
            return purge_records(state, command)
        case ExpireRecords():
            return expire_records(state, command)
        case TakeLease():
            return _take_lease(state, command)
        case RenewLease():
            return _renew_lease(state, command)
        case DropLease():
            leases = {key: one for key, one in state.leases.items() if key != command.lease_id}
            weight = state.weight - _weight_of_absent(state, leases)
            return replace(state, leases=leases, weight=weight), {}


def _create_stream(state: MetadataState, command: CreateStream) -> Applied:
    wanted = command.stream
    present = state.streams.get(wanted.name)
    if present is not None:
        if wanted.config.is_kept_by(present.config):
            return state, {"uuid": present.uuid, "created": False}
        differing = _difference(present.config.to_dict(), wanted.config.to_dict())
        return state, Rejected(
            StreamExistsError(
                f"stream {wanted.name!r} exists with another configuration: {differing}",
                stream=wanted.name,
                differing=differing,
            )
        )
    low = refused_encryption(state, wanted)
    if low is not None:
        return state, Rejected(low)
    if command.one_answers:
        refused = refused_answers(wanted, state.streams.values(), state.tenants)
        if refused is not None:
            return state, Rejected(refused)
    low = refused_compaction(state, wanted)
    if low is not None:
        return state, Rejected(low)
    if wanted.uuid in state.partitions:
        return state, Rejected(InvalidRequestError(f"stream uuid {wanted.uuid} is already in use"))
    rows = new_partitions(
        state,
        wanted,
        range(wanted.config.partitions),
        leader=command.leader,
        assignment=command.assignment,
        min_isr=command.min_isr,
    )
    if isinstance(rows, HeadwaterError):
        return state, Rejected(rows)
    beyond = refused_beyond_tenant(state, wanted.name, streams=1, partitions=len(rows))
    if beyond is not None:
        return state, Rejected(beyond)
    clean = without_late_cursors(state, wanted.name)
    weight = clean.weight + weight_of_stream(wanted, len(rows))
    full = refused_growth(weight, command.weight_max)
    if full is not None:
        return state, Rejected(full)
    return (
        replace(
            clean,
            streams={**state.streams, wanted.name: wanted},
            partitions={**state.partitions, wanted.uuid: rows},
            deleted=tuple(one for one in state.deleted if one != wanted.uuid),
            weight=weight,
        ),
        {"uuid": wanted.uuid, "created": True},
    )


def _difference(present: dict[str, Any], wanted: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} is {present[name]!r}, not {wanted[name]!r}"
        for name in present
        if present[name] != wanted[name]
    )


def _delete_stream(state: MetadataState, command: DeleteStream) -> Applied:
    present = state.streams.get(command.name)
    if present is None:
        return state, Rejected(
            UnknownStreamError(f"no stream is named {command.name!r}", stream=command.name)
        )
    if present.uuid != command.expected_uuid:
        return state, Rejected(
            StreamRecreatedError(
                f"stream {command.name!r} was deleted and created again meanwhile",
                expected=command.expected_uuid,
                found=present.uuid,
            )
        )
    leases = {key: one for key, one in state.leases.items() if one.stream_uuid != present.uuid}
    gone = weight_of_stream(present, len(state.partitions.get(present.uuid, ())))
    state = without_stream(state, command.name)
    return (
        replace(
            state,
            streams={name: one for name, one in state.streams.items() if name != command.name},
            partitions={
                uuid: rows for uuid, rows in state.partitions.items() if uuid != present.uuid
            },
            leases=leases,
            deleted=(*state.deleted, present.uuid)[-DELETED_KEPT_MAX:],
            weight=state.weight - gone - _weight_of_absent(state, leases),
        ),
        {},
    )


def _record_cold_end(state: MetadataState, command: RecordColdEnd) -> Applied:
    present = find(state, command.stream_uuid, command.partition)
    if isinstance(present, HeadwaterError):
        return state, Rejected(present)
    if command.leader_epoch not in (None, present.leader_epoch):
        return state, Rejected(stale_leader(present, command.leader_epoch))
    if command.cold_end < present.cold_end:
        return state, Rejected(
            StaleColdEndError(
                f"cold end {command.cold_end} is below the recorded cold end {present.cold_end}: a "
                "cold end only grows",
                expected=command.cold_end,
                found=present.cold_end,
            )
        )
    moved = replace(present, cold_end=command.cold_end)
    return put(state, command.stream_uuid, command.partition, moved), {}


def _take_lease(state: MetadataState, command: TakeLease) -> Applied:
    rows = state.partitions.get(command.stream_uuid)
    if rows is None:
        return state, Rejected(unknown_uuid(command.stream_uuid))
    alive = {key: one for key, one in state.leases.items() if one.expires_us > command.now_us}
    alive.pop(command.lease_id, None)
    taken = LeaseState(
        stream_uuid=command.stream_uuid,
        owner=command.owner,
        expires_us=command.expires_us,
        floors=_shared(alive, command.stream_uuid, tuple(one.floor for one in rows)),
        taken_us=command.now_us,
    )
    weight = state.weight - _weight_of_absent(state, alive) + weight_of_lease(taken)
    full = refused_growth(weight, command.weight_max)
    if full is not None:
        return state, Rejected(full)
    alive[command.lease_id] = taken
    return replace(state, leases=alive, weight=weight), {}


def _shared(
    leases: dict[LeaseId, LeaseState], stream_uuid: StreamUuid, floors: tuple[Offset, ...]
) -> tuple[Offset, ...]:
    """Return the floors of a recent lease if they are equal, so that both share the memory."""
    for one in itertools.islice(reversed(leases.values()), _SHARED_WITH_MAX):
        if one.stream_uuid == stream_uuid and one.floors == floors:
            return one.floors
    return floors


def _weight_of_absent(state: MetadataState, leases: Mapping[LeaseId, LeaseState]) -> int:
    """Return the weight of the state's leases that are not among ``leases``."""
    if len(leases) == len(state.leases):
        return 0
    return sum(weight_of_lease(one) for key, one in state.leases.items() if key not in leases)


def _renew_lease(state: MetadataState, command: RenewLease) -> Applied:
    present = state.leases.get(command.lease_id)
    if present is None or present.expires_us <= command.now_us:
        return state, Rejected(
            UnknownLeaseError(
                f"lease {command.lease_id} has expired or was dropped, so records that it held may "
                "be deleted: take a new lease or cut",
                lease_id=command.lease_id,
            )
        )
    renewed = replace(present, expires_us=max(present.expires_us, command.expires_us))
    return replace(state, leases={**state.leases, command.lease_id: renewed}), {
        "expires_us": renewed.expires_us
    }
