"""The commands of the metadata log, one frozen class each, and their bytes.

A command carries the epochs that its sender expects; ``apply`` compares them and may reject. The
bytes are JSON with the name of the class, so a command keeps its meaning when commands are added. A
field that was added later has a default, so that older journals stay readable.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from broker.core.metadata.access_commands import (
    AccessCommand,
    CreateToken,
    GrantAccess,
    RevokeAccess,
    RevokeToken,
)
from broker.core.metadata.activity_commands import TrimActivity
from broker.core.metadata.group_commands import (
    CursorWrite,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    ReportCoordinator,
    SetCursors,
)
from broker.core.metadata.member_commands import (
    CommitPositions,
    DeleteGroup,
    JoinMember,
    LeaveMember,
    MemberCommand,
    RebalanceGroup,
    ResetPositions,
)
from broker.core.metadata.partition_commands import (
    AllocateIds,
    BeginLeaderships,
    BegunLeadership,
    BrokerCommand,
    ChangeIsr,
    ConfirmLeader,
    ElectUnclean,
    FenceBroker,
    LogAnswer,
    MarkOpened,
    NameCandidate,
    PartitionCommand,
    ReassignReplicas,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
    StartElection,
    StopBroker,
    TakeOffline,
    UnfenceBroker,
    WithdrawReplica,
)
from broker.core.metadata.pause_commands import (
    PauseCommand,
    PausePartitions,
    ResumePartitions,
    SetReadonly,
)
from broker.core.metadata.quota_commands import QuotaCommand, RemoveQuota, SetQuota
from broker.core.metadata.size import ORDINARY_WEIGHT_MAX, STATE_WEIGHT_MAX
from broker.core.metadata.tenant_commands import (
    AlterTenant,
    CreateTenant,
    DeleteTenant,
    TenantCommand,
)
from broker.core.metadata.typed_json import build
from broker.errors import HeadwaterError, MetadataCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, without_unset
from broker.model.tenant import SHARES

__all__ = [
    "COMMAND_BYTES_MAX",
    "AddPartitions",
    "AllocateIds",
    "AlterStream",
    "AlterTenant",
    "BeginLeaderships",
    "BegunLeadership",
    "ChangeIsr",
    "Command",
    "CommitPositions",
    "ConfirmLeader",
    "CreateStream",
    "CreateTenant",
    "CreateToken",
    "CursorWrite",
    "DeleteGroup",
    "DeleteStream",
    "DeleteTenant",
    "DropLease",
    "ElectUnclean",
    "ExpireRecords",
    "FenceBroker",
    "GrantAccess",
    "JoinGroup",
    "JoinMember",
    "LeaveGroup",
    "LeaveMember",
    "LogAnswer",
    "MarkOpened",
    "NameCandidate",
    "PausePartitions",
    "PurgeRecords",
    "ReassignReplicas",
    "RebalanceGroup",
    "RecordColdEnd",
    "RegisterBroker",
    "RemoveBroker",
    "RemoveQuota",
    "RenewLease",
    "ReportCoordinator",
    "ResetPositions",
    "ResumePartitions",
    "RevokeAccess",
    "RevokeToken",
    "RotateDataKey",
    "SetCursors",
    "SetFeatureLevel",
    "SetQuota",
    "SetReadonly",
    "StartElection",
    "StopBroker",
    "TakeLease",
    "TakeOffline",
    "TrimActivity",
    "UnfenceBroker",
    "WithdrawReplica",
    "decode",
    "encode",
    "encode_new",
]  # fmt: skip

COMMAND_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream:
    """Create a stream.

    ``assignment`` lists the replicas of each partition, the preferred leader first; without it
    ``leader`` alone holds and leads every partition.
    """

    stream: Stream
    leader: BrokerId
    assignment: tuple[tuple[BrokerId, ...], ...] = ()
    min_isr: int = 1
    weight_max: int | None = None  # of all metadata with this stream; None: from an older build
    one_answers: bool = False  # refuse overlapping puback subjects; False: an older build


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterStream:
    """Change the settings of a stream, if the stream still equals ``expected``.

    The command needs ``FEATURE_LEVEL_ALTERED``: a build that does not know the command would refuse
    it while the other brokers apply it.
    """

    expected: Stream
    wanted: Stream
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Add partitions to a stream, if the stream still equals ``expected``.

    ``wanted`` is the stream afterwards; other settings of it may differ, too. ``assignment`` has
    the replicas of each new partition, in their order; without it ``leader`` alone holds and leads
    them. The command needs ``FEATURE_LEVEL_STREAMS``.
    """

    expected: Stream
    wanted: Stream
    leader: BrokerId
    assignment: tuple[tuple[BrokerId, ...], ...] = ()
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateDataKey:
    """Give an encrypted stream a new data key, if the stream still equals ``expected``.

    ``wanted`` has the same versions, perhaps wrapped anew, and one more. The command needs
    ``FEATURE_LEVEL_STREAMS``.
    """

    expected: Stream
    wanted: Stream
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream:
    """Delete a stream, if it still has this uuid."""

    name: str
    expected_uuid: StreamUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColdEnd:
    """Record that all offsets of a partition below ``cold_end`` are in the table.

    A cold end only grows. With ``leader_epoch`` the command is rejected unless this is the current
    leader epoch: so an uploader that was replaced is fenced.
    """

    stream_uuid: StreamUuid
    partition: int
    cold_end: Offset
    leader_epoch: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRecords:
    """Delete the records of a partition below ``before``, because an operator asked for it.

    The sender leads in ``leader_epoch``, and knows that all these records are committed. The
    command needs ``FEATURE_LEVEL_ALTERED``.
    """

    stream_uuid: StreamUuid
    partition: int
    before: Offset
    leader_epoch: LeaderEpoch
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRecords:
    """Let the records of a partition below ``before`` expire: remote retention says so.

    The sender leads in ``leader_epoch``. With ``is_done`` the table has lost these records already,
    by a commit that was proved to be ours: then no reader can hold the command back. The command
    needs ``FEATURE_LEVEL_STREAMS``.
    """

    stream_uuid: StreamUuid
    partition: int
    before: Offset
    leader_epoch: LeaderEpoch
    now_us: int
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """Keep the records of a stream from its recorded cold ends on. Also drops expired leases."""

    lease_id: LeaseId
    stream_uuid: StreamUuid
    owner: str
    expires_us: int
    now_us: int
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """Extend a lease that has not expired."""

    lease_id: LeaseId
    expires_us: int
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLease:
    """End a lease; does nothing if the lease is unknown."""

    lease_id: LeaseId


StreamCommand = (
    CreateStream
    | AlterStream
    | AddPartitions
    | RotateDataKey
    | DeleteStream
    | RecordColdEnd
    | PurgeRecords
    | ExpireRecords
    | TakeLease
    | RenewLease
    | DropLease
)
Command = (
    StreamCommand
    | BrokerCommand
    | PartitionCommand
    | GroupCommand
    | MemberCommand
    | PauseCommand
    | AccessCommand
    | QuotaCommand
    | TenantCommand
    | TrimActivity
)
_LATER_FIELDS: Final = ("membership",)  # left out while they have their default
_STREAM_FIELDS: Final = frozenset({"stream", "expected", "wanted"})
_LIMITED: Final = (  # commands that may make the metadata larger
    AlterStream
    | AddPartitions
    | RotateDataKey
    | TakeLease
    | SetCursors
    | JoinGroup
    | JoinMember
    | CommitPositions
    | ResetPositions
)
# Those of them that administrators alone may send: they find room when nobody else does.
_OF_ADMINISTRATORS: Final = GrantAccess | CreateToken | SetQuota | CreateTenant | AlterTenant
_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Command)}


def encode(command: Command) -> bytes:
    """Return a command's bytes."""
    body = {"op": type(command).__name__, **dataclasses.asdict(command)}
    for name in _STREAM_FIELDS & body.keys():
        if isinstance(body[name], dict):
            body[name] = without_unset(body[name])
    for name in _LATER_FIELDS:
        if name in body and not body[name]:
            del body[name]
    if isinstance(command, CreateTenant):
        body["tenant"] = command.tenant.to_dict()
    if isinstance(command, AlterTenant):  # 0 is a change
        body = {name: one for name, one in body.items() if one is not None or name not in SHARES}
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def encode_new(command: Command) -> bytes:
    """Return the bytes of a command to propose, with the limits and rules of this build."""
    if isinstance(command, CreateStream):
        command = dataclasses.replace(command, weight_max=ORDINARY_WEIGHT_MAX, one_answers=True)
    elif isinstance(command, _LIMITED):
        command = dataclasses.replace(command, weight_max=ORDINARY_WEIGHT_MAX)
    elif isinstance(command, _OF_ADMINISTRATORS):
        command = dataclasses.replace(command, weight_max=STATE_WEIGHT_MAX)
    return encode(command)


def decode(data: bytes) -> Command:
    """Parse a command; raises MetadataCorruptError for anything else."""
    if len(data) > COMMAND_BYTES_MAX:
        raise MetadataCorruptError(f"a metadata command of {len(data)} bytes is too large")
    try:
        body: dict[str, Any] = json.loads(data)
        return cast("Command", build(_KINDS[body.pop("op")], body))
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, HeadwaterError,
    ) as cause:  # fmt: skip
        raise MetadataCorruptError(f"not a metadata command: {cause}") from cause
