"""What the cluster keeps for consumers: cursors, and groups that share partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.model.groups import (
    GroupDescription,
    MemberView,
    PositionCommit,
    PositionReset,
)
from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """A consumer group as it is now."""

    coordinator: BrokerId
    epoch: int
    members: Mapping[str, Sequence[str]]  # streams by member


class CursorsApi(Protocol):
    """Cursors of consumers, durable on every broker. The methods block."""

    def set(self, cursor_id: str, stream: str, partition: int, offset: int) -> None:
        """Store a cursor in place of the former one; a majority has it on disk at the return.

        Raises:
            InvalidRequestError: a name is empty or too long, or a number is out of bounds.
            UnknownStreamError, UnknownPartitionError: the cursor is a group's, and its place is not
                there; a place in a stream that no member of the group reads changes nothing.
            GroupChangedError: the cursor is that of a group of Headwater's client.
            FeatureLevelError: a broker of the cluster runs a build that has no cursors.
            MetadataFullError, UnavailableError.
        """

    def get(self, cursor_id: str, stream: str, partition: int) -> int | None:
        """Return a cursor at least as new as any that was stored before this call; None: no cursor.

        Raises UnavailableError if no majority of the controllers confirms it.
        """


class GroupsApi(Protocol):
    """Consumer groups. Any thread; the methods block.

    A group's epoch grows with every change of its members or coordinator. Its coordinator receives
    the requests of its members, and removes members that are silent for ``consumer_ms``.
    """

    consumer_ms: int
    coordinator_ms: int  # a member reports a coordinator that was silent for so long

    def join(self, group: str, member: str, streams: Sequence[str]) -> GroupPlace:
        """Make a consumer a member; the first member begins the group.

        Raises:
            GroupChangedError: the consumer is a member already, or a stream does not exist.
            InvalidRequestError, FeatureLevelError, MetadataFullError, UnavailableError.
        """

    def leave(self, group: str, member: str) -> None:
        """End a membership; raises UnknownGroupError, GroupChangedError (no member)."""

    def assignments(self, group: str, member: str, epoch: int) -> Mapping[str, Sequence[int]]:
        """Return a member's partitions by stream. The call also shows that the member lives.

        Raises:
            UnknownGroupError.
            GroupChangedError: this broker is not the coordinator, the group has another epoch, or
                the consumer is no member (any more).
        """

    def report(self, group: str, member: str, coordinator: str, epoch: int) -> None:
        """Note that a member does not reach its coordinator.

        If more than half of the members say so, or the coordinator is fenced, the group gets
        another coordinator. Raises UnknownGroupError, GroupChangedError.
        """

    def find(self, group: str) -> GroupPlace | None:
        """Return a group as this broker knows it; None if it has no such group."""


class MembersApi(Protocol):
    """Groups whose members use Headwater's own client. Any thread; the methods block.

    Every broker answers, except that heartbeats go to the group's coordinator.
    """

    def join(
        self,
        group: str,
        member: str,
        instance: str,
        streams: Sequence[str],
        *,
        session_ms: int,
        static: bool,
        owner: str,
        membership: int = 0,
    ) -> GroupPlace:
        """Make a process a member; the same membership of it again changes nothing.

        ``instance`` is a random id of the process, ``membership`` counts how often it has joined
        anew, from 0. A process that joins under the name of a static
        member takes its place and its partitions. ``owner`` names the process for people.

        Raises:
            GroupChangedError: another process is this member; or the group has members with
                Liftbridge's clients.
            StaleMemberError: the process has begun a later membership, or was replaced.
            InvalidRequestError, UnknownStreamError, FeatureLevelError, MetadataFullError,
            UnavailableError.
        """

    def leave(self, group: str, member: str, instance: str, membership: int = 0) -> None:
        """End a membership; raises StaleMemberError, also if a later one has begun."""

    def heartbeat(self, group: str, member: str, instance: str, epoch: int) -> MemberView:
        """Show that a member lives, and learn its claims if the group is not at ``epoch`` any more.

        Raises:
            NotCoordinatorError: another broker coordinates the group.
            StaleMemberError: the process is not the member (any more).
            UnavailableError: no majority of the controllers answers.
        """

    def report(self, group: str, member: str, instance: str, coordinator: str) -> GroupPlace:
        """Note that a member does not reach its coordinator; return who coordinates now.

        Raises StaleMemberError, GroupChangedError, UnavailableError.
        """

    def commit(
        self, group: str, member: str, instance: str, writes: Sequence[PositionCommit]
    ) -> None:
        """Store positions, and give claims up; the same writes again change nothing.

        Raises:
            StaleMemberError: nothing was stored.
            StaleClaimError: some partitions are not the member's any more; the rest was stored.
            MetadataFullError, UnavailableError.
        """

    def groups(self) -> list[str]:
        """Return the names of all groups that have members or positions."""

    def describe(self, group: str) -> GroupDescription:
        """Return a group; raises UnknownGroupError."""

    def reset(self, group: str, writes: Sequence[PositionReset]) -> None:
        """Store positions that an operator chose.

        Raises:
            GroupInUseError: members read one of these streams.
            UnknownPartitionError, InvalidRequestError, FeatureLevelError, UnavailableError.
        """

    def delete(self, group: str) -> None:
        """Forget a group's positions; raises UnknownGroupError, GroupInUseError."""
