"""The part of the metadata that is about consumer groups. Immutable values.

A group has members of one kind. Members with Liftbridge's clients have names and streams only, from
which follows who reads which partition (``broker/core/group_assignment.py``). Members with
Headwater's own client also have a session, and *claims*: a partition that moves stays with its
holder, until the holder has given it up or is expelled.

Positions outlive their group's members. A position belongs to one incarnation of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.model.groups import NO_LEADER_EPOCH
from broker.model.ids import BrokerId
from broker.model.offsets import Offset

# Liftbridge's clients keep the position of a group as a cursor of this id, and of the last offset
# that was processed instead of the next one.
GROUP_CURSOR_PREFIX: Final = "__group:"
REPLACED_KEPT_MAX: Final = 8  # processes that a static member remembers, to refuse their joins


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A member with Headwater's own client."""

    instance: str  # random id of the process; the next process of this member has another one
    session_ms: int  # how long the member may be silent
    static: bool = False  # the next process that joins under this name takes its place
    owner: str = ""  # user, host and process, for people
    membership: int = 0  # how many memberships this process had in the group before
    replaced: tuple[str, ...] = ()  # former processes of the member: their late joins are refused

    def is_same_membership(self, other: MemberState) -> bool:
        """Whether both are one membership, so that claims under one are claims under the other."""
        return (self.instance, self.membership) == (other.instance, other.membership)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClaim:
    """Who reads a partition for the group."""

    member: str
    epoch: int  # of the group, when this process of the member got the claim
    heir: str = ""  # the member that gets the partition when this one gives it up; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """All records below ``offset`` were processed by the group."""

    offset: Offset
    epoch: int = 0  # of the claim under which it was committed, or of the group at a reset
    number: int = 0  # of the commit, under that claim
    leader_epoch: int = NO_LEADER_EPOCH  # of the record before ``offset``
    lineage_id: str = ""  # of the leadership that wrote it; empty: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A consumer group; it has at least one member."""

    coordinator: BrokerId  # receives the members' requests, and removes silent members
    epoch: int  # grows with every change of members, claims or coordinator
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # sorted streams, by id
    reports: tuple[str, ...] = ()  # sorted; members to whom the coordinator does not answer
    appointed: int = 0  # group epoch at which the coordinator was named; own groups only
    sessions: Mapping[str, MemberState] = field(default_factory=dict)  # by id; all members or none
    claims: Mapping[str, PartitionClaim] = field(
        default_factory=dict
    )  # by "<stream uuid>/<partition>"

    @property
    def is_own(self) -> bool:
        """Whether its members use Headwater's own client."""
        return bool(self.sessions)


def group_named_by(cursor_id: str) -> str | None:
    """Return the group whose position a cursor of this id is; None: the cursor is no group's."""
    group = cursor_id.removeprefix(GROUP_CURSOR_PREFIX)
    return group if group and group != cursor_id else None


def cursor_key(stream: str, partition: int) -> str:
    """Return the key of a partition's cursor among those of one cursor id."""
    return f"{partition},{stream}"
