"""The actions of consumer groups: a method for each, with its name.

``broker/codec/flight/group_actions.py`` has their table and checks the fields, which are the
parameters here.
"""

from __future__ import annotations

from typing import Any

from broker.model.groups import PositionCommit, PositionReset
from broker.ports.groups import GroupPlace, MembersApi


class GroupActions:
    """Performs an action and returns its results, as JSON has them. Any thread."""

    def __init__(self, members: MembersApi) -> None:
        self._members = members

    def join_group(  # noqa: PLR0917  # the fields of the action
        self,
        group: str,
        member: str,
        instance: str,
        streams: list[str],
        session_ms: int,
        static: bool,
        owner: str,
        membership: int,
    ) -> list[dict[str, Any]]:
        """Make a process a member."""
        place = self._members.join(
            group,
            member,
            instance,
            streams,
            session_ms=session_ms,
            static=static,
            owner=owner,
            membership=membership,
        )
        return [_place(place)]

    def leave_group(
        self, group: str, member: str, instance: str, membership: int
    ) -> list[dict[str, Any]]:
        """End a membership."""
        self._members.leave(group, member, instance, membership)
        return [{}]

    def group_heartbeat(
        self, group: str, member: str, instance: str, epoch: int
    ) -> list[dict[str, Any]]:
        """Hear a member, and tell it what it claims."""
        return [self._members.heartbeat(group, member, instance, epoch).to_dict()]

    def report_coordinator(
        self, group: str, member: str, instance: str, coordinator: str
    ) -> list[dict[str, Any]]:
        """Note that a coordinator does not answer."""
        return [_place(self._members.report(group, member, instance, coordinator))]

    def commit_positions(
        self, group: str, member: str, instance: str, positions: list[PositionCommit]
    ) -> list[dict[str, Any]]:
        """Store positions of a member."""
        self._members.commit(group, member, instance, positions)
        return [{}]

    def list_groups(self) -> list[dict[str, Any]]:
        """Return the names of the groups."""
        return [{"group": name} for name in self._members.groups()]

    def describe_group(self, group: str) -> list[dict[str, Any]]:
        """Return one group."""
        return [self._members.describe(group).to_dict()]

    def reset_group(self, group: str, positions: list[PositionReset]) -> list[dict[str, Any]]:
        """Store positions that an operator chose."""
        self._members.reset(group, positions)
        return [{}]

    def delete_group(self, group: str) -> list[dict[str, Any]]:
        """Forget a group."""
        self._members.delete(group)
        return [{}]


def _place(place: GroupPlace) -> dict[str, Any]:
    return {"coordinator": place.coordinator, "epoch": place.epoch}
