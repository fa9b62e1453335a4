"""Apply the commands about cursors and consumer groups. Pure.

Every change of a group's members or of its coordinator gives the group the next group epoch of the
whole cluster. So a group that ended and began again has a higher epoch than it ever had before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker.core.metadata.group_commands import (
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    ReportCoordinator,
    SetCursors,
)
from broker.core.metadata.outcome import Applied, CommandReply, Rejected, refused_level
from broker.core.metadata.size import refused_growth, weight_of_cursor, weight_of_group
from broker.core.metadata.state import FEATURE_LEVEL_LIFTBRIDGE, GroupState, MetadataState
from broker.errors import (
    GroupChangedError,
    HeadwaterError,
    InvalidRequestError,
    UnknownGroupError,
)

NAME_CHARACTERS_MAX = 256


def cursor_key(stream: str, partition: int) -> str:
    """Return the key of a partition's cursor among those of one cursor id."""
    return f"{partition},{stream}"


def apply_group(state: MetadataState, command: GroupCommand) -> Applied:
    """Return the next state and the reply of a command about cursors or groups."""
    low = refused_level(state, FEATURE_LEVEL_LIFTBRIDGE, "a cursor or a consumer group")
    if low is not None:
        return state, Rejected(low)
    match command:
        case SetCursors():
            return _set_cursors(state, command)
        case JoinGroup():
            return _join(state, command)
        case LeaveGroup():
            return _leave(state, command)
        case ReportCoordinator():
            return _report(state, command)


def without_stream(state: MetadataState, name: str) -> MetadataState:
    """Return the state after a stream was deleted: no cursor or member names it any more."""
    cursors = dict(state.cursors)
    weight = state.weight
    for cursor_id, positions in state.cursors.items():
        kept = {key: one for key, one in positions.items() if key.partition(",")[2] != name}
        if len(kept) == len(positions):
            continue
        weight -= weight_of_cursor(cursor_id, positions) - weight_of_cursor(cursor_id, kept)
        if kept:
            cursors[cursor_id] = kept
        else:
            del cursors[cursor_id]
    groups, epoch = dict(state.groups), state.group_epoch
    for group, present in sorted(state.groups.items()):
        if not any(name in streams for streams in present.members.values()):
            continue
        epoch += 1
        members = {
            member: tuple(one for one in streams if one != name)
            for member, streams in present.members.items()
        }
        groups[group] = replace(present, members=members, epoch=epoch, reports=())
        weight += weight_of_group(group, groups[group]) - weight_of_group(group, present)
    if cursors == state.cursors and epoch == state.group_epoch:
        return state
    return replace(state, cursors=cursors, groups=groups, group_epoch=epoch, weight=weight)


def with_new_partitions(state: MetadataState, name: str) -> MetadataState:
    """Return the state after a stream got more partitions: its groups divide them anew.

    A member whose group epoch is older is refused, so no two members of one epoch disagree about
    who reads a partition.
    """
    groups, epoch = dict(state.groups), state.group_epoch
    for group, present in sorted(state.groups.items()):
        if any(name in streams for streams in present.members.values()):
            epoch += 1
            groups[group] = replace(present, epoch=epoch, reports=())
    if epoch == state.group_epoch:
        return state
    weight = state.weight + sum(
        weight_of_group(group, one) - weight_of_group(group, state.groups[group])
        for group, one in groups.items()
    )
    return replace(state, groups=groups, group_epoch=epoch, weight=weight)


def _set_cursors(state: MetadataState, command: SetCursors) -> Applied:
    cursors: dict[str, Mapping[str, int]] = dict(state.cursors)
    weight = state.weight
    for one in command.writes:
        refused = _refused_names(one.cursor_id, one.stream)
        if refused is None and (one.partition < 0 or one.offset < -1):
            refused = InvalidRequestError(
                f"a cursor's partition must be at least 0 and its offset at least -1, not "
                f"{one.partition} and {one.offset}"
            )
        if refused is not None:
            return state, Rejected(refused)
        present = cursors.get(one.cursor_id, {})
        cursors[one.cursor_id] = {**present, cursor_key(one.stream, one.partition): one.offset}
        weight += weight_of_cursor(one.cursor_id, cursors[one.cursor_id])
        weight -= weight_of_cursor(one.cursor_id, present)
    if weight > state.weight and (full := refused_growth(weight, command.weight_max)) is not None:
        return state, Rejected(full)
    return replace(state, cursors=cursors, weight=weight), {}


def _refused_names(*names: str) -> InvalidRequestError | None:
    for name in names:
        if not 0 < len(name) <= NAME_CHARACTERS_MAX:
            return InvalidRequestError(
                f"a name of a cursor, group, consumer or stream has {len(name)} characters; it "
                f"must have 1 to {NAME_CHARACTERS_MAX}"
            )
    return None


def _join(state: MetadataState, command: JoinGroup) -> Applied:
    refused: HeadwaterError | None = _refused_names(command.group, command.member, *command.streams)
    present = state.groups.get(command.group)
    missing = [one for one in command.streams if one not in state.streams]
    if refused is None and not command.streams:
        refused = InvalidRequestError("a member of a group must name at least one stream")
    if refused is None and missing:
        refused = GroupChangedError(f"no stream is named {missing[0]!r}", stream=missing[0])
    if refused is None and present is not None and command.member in present.members:
        refused = GroupChangedError(
            f"consumer {command.member!r} is already a member of group {command.group!r}",
            group=command.group,
        )
    if refused is not None:
        return state, Rejected(refused)
    if present is None:
        present = GroupState(coordinator=command.coordinator, epoch=0)
    members = {**present.members, command.member: tuple(sorted(set(command.streams)))}
    changed = replace(present, members=members)
    grown = weight_of_group(command.group, changed)
    if command.group in state.groups:
        grown -= weight_of_group(command.group, present)
    full = refused_growth(state.weight + grown, command.weight_max)
    if full is not None:
        return state, Rejected(full)
    return _put(state, command.group, changed)


def _leave(state: MetadataState, command: LeaveGroup) -> Applied:
    present = _group_of_member(state, command)
    if isinstance(present, HeadwaterError):
        return state, Rejected(present)
    if command.epoch not in (None, present.epoch):
        return state, Rejected(_stale(command.group, command.epoch, present.epoch))
    members = {one: streams for one, streams in present.members.items() if one != command.member}
    return _put(state, command.group, replace(present, members=members))


def _report(state: MetadataState, command: ReportCoordinator) -> Applied:
    present = _group_of_member(state, command)
    if isinstance(present, HeadwaterError):
        return state, Rejected(present)
    if (command.coordinator, command.epoch) != (present.coordinator, present.epoch):
        return state, Rejected(_stale(command.group, command.epoch, present.epoch))
    reports = tuple(sorted({*present.reports, command.member}))
    gone = not state.is_alive(present.coordinator)
    if gone or len(reports) > len(present.members) // 2:
        return _put(state, command.group, replace(present, coordinator=command.candidate))
    changed = replace(present, reports=reports)
    weight = weight_of_group(command.group, changed) - weight_of_group(command.group, present)
    groups = {**state.groups, command.group: changed}
    return replace(state, groups=groups, weight=state.weight + weight), _reply(changed)


def _put(state: MetadataState, group: str, changed: GroupState) -> Applied:
    """Return the state with a changed group, under the next epoch; a group without members ends."""
    epoch = state.group_epoch + 1
    changed = replace(changed, epoch=epoch, reports=())
    groups, weight = dict(state.groups), state.weight
    before = groups.pop(group, None)
    if before is not None:
        weight -= weight_of_group(group, before)
    if changed.members:
        groups[group] = changed
        weight += weight_of_group(group, changed)
    after = replace(state, groups=groups, group_epoch=epoch, weight=weight)
    return after, _reply(changed)


def _reply(group: GroupState) -> CommandReply:
    return {"group_epoch": group.epoch, "coordinator": group.coordinator}


def _group_of_member(
    state: MetadataState, command: LeaveGroup | ReportCoordinator
) -> GroupState | HeadwaterError:
    """Return the group that a command is about, or why its sender is not a member of it."""
    group = command.group
    present = state.groups.get(group)
    if present is None:
        return UnknownGroupError(f"no consumer group is named {group!r}", group=group)
    if command.member not in present.members:
        return GroupChangedError(
            f"consumer {command.member!r} is not a member of group {group!r}", group=group
        )
    return present


def _stale(group: str, got: int | None, current: int) -> GroupChangedError:
    return GroupChangedError(
        f"group {group!r} is at epoch {current}, not {got}, or has another coordinator",
        group=group,
        got=got,
        current=current,
    )
