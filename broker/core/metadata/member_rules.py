"""The rules for joining and leaving a group of Headwater's own client. Pure.

A process counts its memberships of a group. A command may arrive late, for example from a broker
that was suspended. So a command of an earlier membership than the present one is refused, and so is
a command of a process that another process has replaced.
"""

from __future__ import annotations

from broker.core.metadata.group_state import GroupState, MemberState
from broker.core.metadata.member_commands import JoinMember, LeaveMember
from broker.core.metadata.state import MetadataState
from broker.errors import (
    GroupChangedError,
    HeadwaterError,
    InvalidRequestError,
    StaleMemberError,
    UnknownGroupError,
    UnknownStreamError,
)
from broker.model.groups import MEMBER_STREAMS_MAX, SESSION_MS_MAX, SESSION_MS_MIN

NAME_CHARACTERS_MAX = 256


def refused_join(state: MetadataState, command: JoinMember) -> HeadwaterError | None:
    """Return the error of a process that may not be this member, or None."""
    malformed = _malformed(command)
    if malformed is not None:
        return malformed
    present = state.groups.get(command.group)
    if present is not None and not present.is_own:
        return GroupChangedError(
            f"group {command.group!r} has members with Liftbridge's clients, and a group cannot "
            "have members with both clients at once: stop those first, and the group goes on at "
            "their positions",
            group=command.group,
        )
    for name in command.streams:
        if name not in state.streams:
            return UnknownStreamError(f"no stream is named {name!r}", stream=name)
    known = None if present is None else present.sessions.get(command.member)
    return None if known is None else _refused_process(known, command)


def refused_leave(present: GroupState | None, command: LeaveMember) -> HeadwaterError | None:
    """Return the error of a command that would not end a present membership, or None."""
    known = None if present is None else present.sessions.get(command.member)
    if present is None or known is None or known.instance != command.instance:
        return stale_member(command.group, command.member, replaced=known is not None)
    if command.membership < known.membership:
        return _earlier(command, known)
    if command.expelled_by not in (None, present.coordinator):
        return GroupChangedError(
            f"{present.coordinator} coordinates group {command.group!r}, not {command.expelled_by}",
            group=command.group,
        )
    if command.epoch not in (None, present.epoch):
        return other_epoch(command.group, command.epoch, present.epoch)
    return None


def _malformed(command: JoinMember) -> InvalidRequestError | None:
    for name in (command.group, command.member, command.instance, *command.streams):
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            return InvalidRequestError(
                f"a name of a group, member or stream must have 1 to {NAME_CHARACTERS_MAX} "
                "printable characters"
            )
    if len(command.owner) > NAME_CHARACTERS_MAX or not command.owner.isprintable():
        return InvalidRequestError(
            f"the owner of a member must have at most {NAME_CHARACTERS_MAX} printable characters"
        )
    if not 0 < len(command.streams) <= MEMBER_STREAMS_MAX:
        return InvalidRequestError(
            f"a member must name 1 to {MEMBER_STREAMS_MAX} streams, not {len(command.streams)}"
        )
    if not SESSION_MS_MIN <= command.session_ms <= SESSION_MS_MAX:
        return InvalidRequestError(
            f"session_ms must be {SESSION_MS_MIN} to {SESSION_MS_MAX}, not {command.session_ms}",
            field="session_ms",
        )
    if command.membership < 0:
        return InvalidRequestError(
            f"membership must be 0 or more, not {command.membership}", field="membership"
        )
    return None


def _refused_process(known: MemberState, command: JoinMember) -> HeadwaterError | None:
    if known.instance == command.instance:
        return _earlier(command, known) if command.membership < known.membership else None
    if command.instance in known.replaced:
        return stale_member(command.group, command.member, replaced=True)
    if known.static and command.static:
        return None
    return GroupChangedError(
        f"{known.owner or 'another process'} is member {command.member!r} of group "
        f"{command.group!r} already: choose another name, or none to get one of your own",
        group=command.group,
    )


def _earlier(command: JoinMember | LeaveMember, known: MemberState) -> StaleMemberError:
    return StaleMemberError(
        f"membership {command.membership} of member {command.member!r} of group "
        f"{command.group!r} is over; the same process has begun membership {known.membership}",
        group=command.group,
        member=command.member,
        replaced=False,
    )


def other_epoch(group: str, got: int | None, current: int) -> GroupChangedError:
    """Return the error of a command that was meant for another epoch of a group."""
    return GroupChangedError(
        f"group {group!r} is at epoch {current}, not {got}", group=group, got=got, current=current
    )


def stale_member(group: str, member: str, *, replaced: bool) -> StaleMemberError:
    """Return the error of a process that is not the member (any more)."""
    why = "another process has taken its place" if replaced else "it was expelled, or never joined"
    return StaleMemberError(
        f"this process is not member {member!r} of group {group!r}: {why}",
        group=group,
        member=member,
        replaced=replaced,
    )


def unknown_group(group: str) -> UnknownGroupError:
    """Return the error about a group that has neither members nor positions."""
    return UnknownGroupError(f"no consumer group is named {group!r}", group=group)
