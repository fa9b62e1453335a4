"""Which members of consumer groups have been silent for too long. Pure.

Only the coordinator of a group judges its members. A member's time begins when the coordinator
first knows of the member, so a new coordinator gives every member a whole time-out. After a pause
of the coordinator itself (a stopped process, a suspended machine) every time begins again, because
the coordinator could not receive anything meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.core.metadata.group_commands import LeaveGroup
from broker.core.metadata.state import GroupState
from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True)
class Silent:
    """A member that was silent for too long; the command removes it, at this epoch of its group."""

    command: LeaveGroup


class GroupLiveness:
    """The times at which members were last heard. Not thread-safe: callers share one lock."""

    def __init__(self, me: BrokerId, *, consumer_ms: int) -> None:
        """``me`` is this broker; a member may be silent for ``consumer_ms``."""
        self._me = me
        self._consumer_ms = consumer_ms
        self._heard: dict[tuple[str, str], int] = {}
        self._last_ms: int | None = None

    def heard(self, group: str, member: str, now_ms: int) -> None:
        """Note that a member has sent a request."""
        self._heard[group, member] = now_ms

    def step(self, groups: Mapping[str, GroupState], now_ms: int) -> list[Silent]:
        """Return the silent members, at most one of a group: each removal changes its epoch."""
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
