"""Apply one committed command. Every node computes the same answer; ``apply`` never raises.

An exception would stop the metadata log on all brokers at once. So a refusal is a value: it holds
the error that is raised on the broker that proposed the command.
"""

from __future__ import annotations

from typing import Final, cast, get_args

from broker.core.metadata.access_apply import apply_access
from broker.core.metadata.access_commands import AccessCommand
from broker.core.metadata.activity import noted, trim_activity
from broker.core.metadata.activity_commands import TrimActivity
from broker.core.metadata.broker_apply import apply_broker
from broker.core.metadata.commands import Command, StreamCommand
from broker.core.metadata.group_apply import apply_group
from broker.core.metadata.group_commands import GroupCommand
from broker.core.metadata.member_apply import apply_member
from broker.core.metadata.member_commands import MemberCommand
from broker.core.metadata.outcome import Applied, CommandReply, Rejected
from broker.core.metadata.partition_apply import apply_partition
from broker.core.metadata.partition_commands import BrokerCommand, PartitionCommand
from broker.core.metadata.pause_commands import PauseCommand
from broker.core.metadata.quota_apply import apply_quota
from broker.core.metadata.quota_commands import QuotaCommand
from broker.core.metadata.state import MetadataState
from broker.core.metadata.stream_apply import apply_stream
from broker.core.metadata.stream_pause import apply_pause
from broker.core.metadata.tenant_apply import apply_tenant
from broker.core.metadata.tenant_commands import TenantCommand

__all__ = ["Applied", "CommandReply", "Rejected", "apply"]

_STREAM_KINDS: Final = get_args(StreamCommand)
_GROUP_KINDS: Final = get_args(GroupCommand)
_MEMBER_KINDS: Final = get_args(MemberCommand)
_PAUSE_KINDS: Final = get_args(PauseCommand)
_ACCESS_KINDS: Final = get_args(AccessCommand)
_QUOTA_KINDS: Final = get_args(QuotaCommand)
_TENANT_KINDS: Final = get_args(TenantCommand)
_PARTITION_KINDS: Final = get_args(PartitionCommand)


def apply(state: MetadataState, command: Command) -> Applied:
    """Return the next state and the reply, for every command. Deterministic."""
    after, reply = _apply(state, command)
    if after is state:
        return after, reply
    return noted(state, command, after), reply


def _apply(state: MetadataState, command: Command) -> Applied:
    if isinstance(command, TrimActivity):
        return trim_activity(state, command)
    if isinstance(command, _STREAM_KINDS):
        return apply_stream(state, cast("StreamCommand", command))
    if isinstance(command, _PARTITION_KINDS):
        return apply_partition(state, cast("PartitionCommand", command))
    if isinstance(command, _GROUP_KINDS):
        return apply_group(state, cast("GroupCommand", command))
    if isinstance(command, _MEMBER_KINDS):
        return apply_member(state, cast("MemberCommand", command))
    if isinstance(command, _PAUSE_KINDS):
        return apply_pause(state, cast("PauseCommand", command))
    if isinstance(command, _ACCESS_KINDS):
        return apply_access(state, cast("AccessCommand", command))
    if isinstance(command, _QUOTA_KINDS):
        return apply_quota(state, cast("QuotaCommand", command))
    if isinstance(command, _TENANT_KINDS):
        return apply_tenant(state, cast("TenantCommand", command))
    return apply_broker(state, cast("BrokerCommand", command))
