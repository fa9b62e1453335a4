"""Which members of consumer groups have been silent for too long. Pure.

Only the coordinator of a group decides which members are silent. A member's time-out starts when
the coordinator first knows of the member. So a new coordinator gives every member a whole time-out,
also if it has coordinated the group before. After the coordinator itself was suspended, all
time-outs start again, because it could not receive anything meanwhile.

Requests of a member that was found silent are refused until its removal is applied: with an answer
the member would continue after others have its partitions. The next membership of its process has a
whole time-out of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.core.metadata.group_commands import LeaveGroup
from broker.core.metadata.group_state import GroupState
from broker.core.metadata.member_commands import LeaveMember
from broker.model.ids import BrokerId

LOOK_MS: Final = 250  # between two steps, unless the coordinator was suspended
_Key = tuple[str, str, str, int]  # group, member, process, membership of the process


@dataclass(frozen=True, slots=True)
class Silent:
    """A member that was silent for too long; the command removes it, if nothing changed since."""

    command: LeaveGroup | LeaveMember


class GroupLiveness:
    """The times at which members were last heard. Not thread-safe: callers share one lock."""

    def __init__(self, me: BrokerId, *, consumer_ms: int) -> None:
        """``me`` is this broker; a member without a session may be silent for ``consumer_ms``."""
        self._me = me
        self._consumer_ms = consumer_ms
        self._heard: dict[_Key, int] = {}
        self._appointed: dict[str, int] = {}  # by group: when this broker was named coordinator
        self._removals: dict[_Key, int] = {}  # the group epoch of the last one proposed
        self._last_ms: int | None = None

    def heard(
        self, group: str, member: str, now_ms: int, *, instance: str = "", membership: int = 0
    ) -> bool:
        """Note that a member has sent a request; False: its removal is under way, so refuse it."""
        key = (group, member, instance, membership)
        if key in self._removals:
            return False
        self._heard[key] = now_ms
        return True

    def removed(self, command: LeaveGroup | LeaveMember) -> None:
        """Note that a removal is applied: the same process may be a member again."""
        if isinstance(command, LeaveMember):
            key = (command.group, command.member, command.instance, command.membership)
            if self._removals.get(key) == command.epoch:
                del self._removals[key]
                self._heard.pop(key, None)

    def step(self, groups: Mapping[str, GroupState], now_ms: int) -> list[Silent]:
        """Return the silent members, at most one of a group: each removal changes its epoch."""
        gap_ms = 0 if self._last_ms is None else now_ms - self._last_ms
        self._last_ms = now_ms
        heard: dict[_Key, int] = {}
        appointed: dict[str, int] = {}
        removals: dict[_Key, int] = {}
        silent: dict[str, Silent] = {}
        for group, one in sorted(groups.items()):
            if one.coordinator != self._me:
                continue
            appointed[group] = one.appointed
            is_new = self._appointed.get(group) != one.appointed
            for member in sorted(one.members):
                session = one.sessions.get(member)
                limit_ms = self._consumer_ms if session is None else session.session_ms
                process = ("", 0) if session is None else (session.instance, session.membership)
                key = (group, member, *process)
                at_ms = now_ms if is_new else self._heard.get(key, now_ms)
                if gap_ms > max(limit_ms // 2, 2 * LOOK_MS):
                    at_ms = now_ms  # this broker was suspended, and received nothing meanwhile
                heard[key] = at_ms
                is_under_way = key in self._removals and not is_new
                if is_under_way:
                    removals[key] = self._removals[key]
                if (is_under_way or now_ms - at_ms > limit_ms) and group not in silent:
                    silent[group] = Silent(_removal(group, member, one, self._me))
                    if session is not None:
                        removals[key] = one.epoch
        self._heard, self._appointed, self._removals = heard, appointed, removals
        return list(silent.values())


def _removal(
    group: str, member: str, present: GroupState, me: BrokerId
) -> LeaveGroup | LeaveMember:
    session = present.sessions.get(member)
    if session is None:
        return LeaveGroup(group=group, member=member, epoch=present.epoch)
    return LeaveMember(
        group=group,
        member=member,
        instance=session.instance,
        expelled_by=me,
        epoch=present.epoch,
        membership=session.membership,
    )
