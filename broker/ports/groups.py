"""What the cluster keeps for consumers: cursors, and groups that share partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
