"""Apply one committed command. Every node computes the same answer; nothing here raises.

An exception would stop the metadata log on all brokers at once, so a refusal is a value: the error
that the proposer's side raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    DropLease,
    RecordColdEnd,
    RegisterBroker,
    RenewLease,
    TakeLease,
)
from broker.core.metadata.state import LeaseState, MetadataState, PartitionState
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    StaleColdEndError,
    StreamExistsError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command changes nothing; the proposer gets this error."""

    error: HeadwaterError


Reply = Mapping[str, Any]
Applied = tuple[MetadataState, Reply | Rejected]


def apply(state: MetadataState, command: Command) -> Applied:
    """Return the next state and the reply. Total and deterministic."""
    match command:
        case RegisterBroker():
            return _register_broker(state, command)
        case CreateStream():
            return _create_stream(state, command)
        case DeleteStream():
            return _delete_stream(state, command)
        case RecordColdEnd():
            return _record_cold_end(state, command)
        case TakeLease():
            return _take_lease(state, command)
        case RenewLease():
            return _renew_lease(state, command)
        case DropLease():
            leases = {key: one for key, one in state.leases.items() if key != command.lease_id}
            return replace(state, leases=leases), {}


def _register_broker(state: MetadataState, command: RegisterBroker) -> Applied:
    epoch = BrokerEpoch(state.broker_epochs.get(command.broker, 0) + 1)
    partitions = {
        uuid: tuple(
            replace(one, leader_epoch=LeaderEpoch(one.leader_epoch + 1))
            if one.leader == command.broker
            else one
            for one in rows
        )
        for uuid, rows in state.partitions.items()
    }
    epochs = {**state.broker_epochs, command.broker: epoch}
    return replace(state, broker_epochs=epochs, partitions=partitions), {"broker_epoch": epoch}


def _create_stream(state: MetadataState, command: CreateStream) -> Applied:
    wanted = command.stream
    present = state.streams.get(wanted.name)
    if present is not None:
        if present.config == wanted.config:
            return state, {"uuid": present.uuid, "created": False}
        differing = _difference(present.config.to_dict(), wanted.config.to_dict())
        return state, Rejected(
            StreamExistsError(
                f"stream {wanted.name!r} exists with another configuration: {differing}",
                stream=wanted.name,
                differing=differing,
            )
        )
    if wanted.uuid in state.partitions:
        return state, Rejected(InvalidRequestError(f"stream uuid {wanted.uuid} is used twice"))
    first = PartitionState(leader=command.leader, leader_epoch=LeaderEpoch(1), cold_end=Offset(0))
    return (
        replace(
            state,
            streams={**state.streams, wanted.name: wanted},
            partitions={**state.partitions, wanted.uuid: (first,) * wanted.config.partitions},
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
                f"stream {command.name!r} was created again meanwhile",
                expected=command.expected_uuid,
                found=present.uuid,
            )
        )
    return (
        replace(
            state,
            streams={name: one for name, one in state.streams.items() if name != command.name},
            partitions={
                uuid: rows for uuid, rows in state.partitions.items() if uuid != present.uuid
            },
            leases={
                key: one for key, one in state.leases.items() if one.stream_uuid != present.uuid
            },
        ),
        {},
    )


def _record_cold_end(state: MetadataState, command: RecordColdEnd) -> Applied:
    rows = state.partitions.get(command.stream_uuid)
    if rows is None or not 0 <= command.partition < len(rows):
        return state, Rejected(_unknown_uuid(command.stream_uuid))
    present = rows[command.partition]
    if command.cold_end < present.cold_end:
        return state, Rejected(
            StaleColdEndError(
                f"cold end {command.cold_end} is behind the recorded {present.cold_end}",
                expected=command.cold_end,
                found=present.cold_end,
            )
        )
    moved = replace(present, cold_end=command.cold_end)
    changed = (*rows[: command.partition], moved, *rows[command.partition + 1 :])
    return replace(state, partitions={**state.partitions, command.stream_uuid: changed}), {}


def _take_lease(state: MetadataState, command: TakeLease) -> Applied:
    rows = state.partitions.get(command.stream_uuid)
    if rows is None:
        return state, Rejected(_unknown_uuid(command.stream_uuid))
    alive = {key: one for key, one in state.leases.items() if one.expires_us > command.now_us}
    alive[command.lease_id] = LeaseState(
        stream_uuid=command.stream_uuid,
        owner=command.owner,
        expires_us=command.expires_us,
        floors=tuple(one.cold_end for one in rows),
    )
    return replace(state, leases=alive), {}


def _renew_lease(state: MetadataState, command: RenewLease) -> Applied:
    present = state.leases.get(command.lease_id)
    if present is None or present.expires_us <= command.now_us:
        return state, Rejected(
            UnknownLeaseError(
                f"lease {command.lease_id} has expired or was dropped; what it held may be gone",
                lease_id=command.lease_id,
            )
        )
    renewed = replace(present, expires_us=max(present.expires_us, command.expires_us))
    return replace(state, leases={**state.leases, command.lease_id: renewed}), {
        "expires_us": renewed.expires_us
    }


def _unknown_uuid(stream_uuid: StreamUuid) -> UnknownStreamError:
    return UnknownStreamError(
        f"no stream has uuid {stream_uuid} (any more)", stream_uuid=stream_uuid
    )
