"""Which members of consumer groups are silent for too long: the coordinator's clock. Pure.

Only the coordinator of a group judges its members. It begins to count when it first knows of a
member, so a new coordinator gives every member a whole time-out. After a pause of its own, of a
stopped process or a suspended machine, it begins again: it could not have heard anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.core.metadata.group_commands import LeaveGroup
from broker.core.metadata.state import GroupState
from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True)
class Silent:
    """A member that was not heard in time, at an epoch of its group."""

    command: LeaveGroup


class GroupLiveness:
    """Owner: whoever drives :meth:`step`, under its lock."""

    def __init__(self, me: BrokerId, *, consumer_ms: int) -> None:
        """``me`` is this broker; a member may be silent for ``consumer_ms``."""
        self._me = me
        self._consumer_ms = consumer_ms
        self._heard: dict[tuple[str, str], int] = {}
        self._last_ms: int | None = None

    def heard(self, group: str, member: str, now_ms: int) -> None:
        """Note that a member asked."""
        self._heard[group, member] = now_ms

    def step(self, groups: Mapping[str, GroupState], now_ms: int) -> list[Silent]:
        """Return who has to leave; of one group one at a time, because its epoch changes."""
        if self._last_ms is not None and now_ms - self._last_ms > self._consumer_ms // 2:
            self._heard = dict.fromkeys(self._heard, now_ms)
        self._last_ms = now_ms
        mine = {name: one for name, one in groups.items() if one.coordinator == self._me}
        self._heard = {
            (group, member): self._heard.get((group, member), now_ms)
            for group, one in mine.items()
            for member in one.members
        }
        silent: dict[str, Silent] = {}
        for (group, member), at_ms in sorted(self._heard.items()):
            if now_ms - at_ms > self._consumer_ms and group not in silent:
                epoch = mine[group].epoch
                silent[group] = Silent(LeaveGroup(group=group, member=member, epoch=epoch))
        return list(silent.values())
