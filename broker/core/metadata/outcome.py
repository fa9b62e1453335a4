"""The result of applying a command: the next state, and a reply or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from broker.core.metadata.state import MetadataState
from broker.errors import FeatureLevelError, HeadwaterError
from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command changed nothing; its proposer gets this error."""

    error: HeadwaterError


class CommandReply(TypedDict, total=False):
    """The reply to a command; the comments say which commands set a key."""

    broker_epoch: int  # RegisterBroker
    created: bool  # CreateStream: False if the same stream was there
    uuid: str  # CreateStream: of the stream
    purged_from: int  # PurgeRecords: the purged end before the command
    remote_start: int  # ExpireRecords
    changed: bool  # AlterStream, RotateDataKey, grants, tokens, quotas: False: it was so already
    expires_us: int  # RenewLease
    group_epoch: int  # commands about groups
    coordinator: str  # the same
    refused: list[str]  # CommitPositions: partitions whose claim has ended, or would move back
    feature_level: int  # SetFeatureLevel
    first: int  # AllocateIds: the first of the ids
    partition_epoch: int  # every command about one partition sets this key and the next three
    leader_epoch: int
    status: str
    isr: list[BrokerId]


Applied = tuple[MetadataState, CommandReply | Rejected]


def refused_level(state: MetadataState, needed: int, purpose: str) -> FeatureLevelError | None:
    """Return the error if the cluster's feature level is below the needed one, or None."""
    if state.feature_level >= needed:
        return None
    return FeatureLevelError(
        f"{purpose} needs feature level {needed}; the cluster is at level {state.feature_level}: "
        "upgrade every broker, then try again",
        level=state.feature_level,
    )
