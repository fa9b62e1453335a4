"""The commands of the metadata log, one frozen class each, and their bytes.

A command carries what its sender expects; ``apply`` compares and rejects. The bytes are JSON with
the class's name, so a command keeps its meaning when others are added.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import MetadataCorruptError
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream

COMMAND_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker started: a new broker epoch, and a new leader epoch where it leads."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream:
    """Create a stream whose partitions ``leader`` leads."""

    stream: Stream
    leader: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream:
    """Delete this incarnation of a stream."""

    name: str
    expected_uuid: StreamUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColdEnd:
    """``[.., cold_end)`` of a partition is safe in the table. Only ever forward."""

    stream_uuid: StreamUuid
    partition: int
    cold_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """Hold a stream from its recorded cold ends on; expired leases are dropped on the way."""

    lease_id: LeaseId
    stream_uuid: StreamUuid
    owner: str
    expires_us: int
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """Extend a lease that has not expired."""

    lease_id: LeaseId
    expires_us: int
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLease:
    """End a lease; unknown is fine."""

    lease_id: LeaseId


Command = (
    RegisterBroker
    | CreateStream
    | DeleteStream
    | RecordColdEnd
    | TakeLease
    | RenewLease
    | DropLease
)
_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        RegisterBroker, CreateStream, DeleteStream, RecordColdEnd, TakeLease, RenewLease, DropLease,
    )
}  # fmt: skip


def encode(command: Command) -> bytes:
    """Return a command's bytes."""
    body = {"op": type(command).__name__, **dataclasses.asdict(command)}
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> Command:
    """Parse a command; raises MetadataCorruptError for anything that is not one."""
    try:
        body: dict[str, Any] = json.loads(data)
        kind = _KINDS[body.pop("op")]
        if kind is CreateStream:
            body["stream"] = Stream.from_dict(body["stream"])
        command: Command = kind(**body)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise MetadataCorruptError(f"not a metadata command: {cause}") from cause
    return command
