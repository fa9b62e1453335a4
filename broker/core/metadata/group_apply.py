"""Apply the commands about cursors and consumer groups. Pure.

Every change of a group's members or of its coordinator gives the group the next group epoch of the
whole cluster. So a group that ended and began again has a higher epoch than before.
"""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.group_commands import (
    CursorWrite,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    ReportCoordinator,
    SetCursors,
)
from broker.core.metadata.group_positions import (
    group_of_cursor,
    position_of,
    without_cursors_in,
    without_positions_in,
    written,
)
from broker.core.metadata.group_state import (
    GroupPosition,
    GroupState,
    cursor_key,
    group_named_by,
)
from broker.core.metadata.member_apply import regrouped, reply_of, with_group
from broker.core.metadata.member_rules import NAME_CHARACTERS_MAX
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.size import refused_growth, weight_of_cursor, weight_of_group
from broker.core.metadata.state import (
    FEATURE_LEVEL_LIFTBRIDGE,
    FEATURE_LEVEL_RECREATED,
    MetadataState,
)
from broker.errors import (
    GroupChangedError,
    HeadwaterError,
    InvalidRequestError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.groups import partition_key
from broker.model.offsets import OFFSET_MAX, Offset


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
    state = without_cursors_in(state, name, lambda _: True)
    gone = state.streams.get(name)
    if gone is not None:
        state = without_positions_in(state, gone.uuid)
    return _without_readers(state, name)


def _without_readers(state: MetadataState, name: str) -> MetadataState:
    """Give each group that reads a stream, which is about to be deleted, its next epoch.

    Members with Headwater's client keep the name among their streams: if a stream of this name is
    created again, its partitions are given out to them.
    """
    groups, epoch, weight = dict(state.groups), state.group_epoch, state.weight
    remaining = {one: stream for one, stream in state.streams.items() if one != name}
    for group, present in sorted(state.groups.items()):
        if not any(name in streams for streams in present.members.values()):
            continue
        epoch += 1
        if present.is_own:
            left = replace(state, streams=remaining)
            groups[group] = regrouped(left, present, epoch)
        else:
            members = {
                member: tuple(one for one in streams if one != name)
                for member, streams in present.members.items()
            }
            groups[group] = replace(present, members=members, epoch=epoch, reports=())
        weight += weight_of_group(group, groups[group]) - weight_of_group(group, present)
    if epoch == state.group_epoch:
        return state
    return replace(state, groups=groups, group_epoch=epoch, weight=weight)


def with_new_partitions(state: MetadataState, name: str) -> MetadataState:
    """Return the state after a stream got more partitions: its groups assign them anew.

    A member whose group epoch is older is refused, so no two members of one epoch disagree about
    who reads a partition.
    """
    groups, epoch = dict(state.groups), state.group_epoch
    for group, present in sorted(state.groups.items()):
        if not any(name in streams for streams in present.members.values()):
            continue
        epoch += 1
        changed = replace(present, epoch=epoch, reports=())
        groups[group] = regrouped(state, present, epoch) if present.is_own else changed
    if epoch == state.group_epoch:
        return state
    weight = state.weight + sum(
        weight_of_group(group, one) - weight_of_group(group, state.groups[group])
        for group, one in groups.items()
    )
    return replace(state, groups=groups, group_epoch=epoch, weight=weight)


def _set_cursors(state: MetadataState, command: SetCursors) -> Applied:
    after = state
    for one in command.writes:
        refused: HeadwaterError | None = _refused_names(one.cursor_id, one.stream)
        if refused is None and (one.partition < 0 or not -1 <= one.offset < OFFSET_MAX):
            refused = InvalidRequestError(
                f"a cursor's partition must be 0 or more and its offset -1 or more, not "
                f"{one.partition} and {one.offset}"
            )
        refused = refused or _refused_place(state, one)
        if refused is not None:
            return state, Rejected(refused)
        group = group_of_cursor(after, one.cursor_id, one.stream)
        kind = None if group is None else _refused_kind(group, state.groups.get(group))
        if kind is not None:
            return state, Rejected(kind)
        if group is not None and _is_of_nobody(state, group, one.stream):
            continue
        after = _with_cursor(after, one) if group is None else _with_position(after, group, one)
    grown = after.weight > state.weight
    if grown and (full := refused_growth(after.weight, command.weight_max)) is not None:
        return state, Rejected(full)
    return after, {}


def _refused_place(state: MetadataState, one: CursorWrite) -> HeadwaterError | None:
    """Refuse a group's cursor in a partition that is not there, so that none inherits it later."""
    group = group_named_by(one.cursor_id)
    if group is None or state.feature_level < FEATURE_LEVEL_RECREATED:
        return None
    stream = state.streams.get(one.stream)
    if stream is None:
        return UnknownStreamError(
            f"no stream is named {one.stream!r}, so group {group!r} has no position in it: set "
            "the cursor when the stream is there",
            stream=one.stream,
        )
    if one.partition >= stream.config.partitions:
        return UnknownPartitionError(
            f"stream {one.stream!r} has no partition {one.partition}, so group {group!r} has no "
            "position in it",
            partition=one.partition,
        )
    return None


def _is_of_nobody(state: MetadataState, group: str, stream: str) -> bool:
    """Tell whether a cursor comes from a former reader, because no member reads the stream.

    The stream may have been made again since: the cursor is not about its records.
    """
    if state.feature_level < FEATURE_LEVEL_RECREATED or group not in state.groups:
        return False
    return not any(stream in streams for streams in state.groups[group].members.values())


def _with_cursor(state: MetadataState, one: CursorWrite) -> MetadataState:
    present = state.cursors.get(one.cursor_id, {})
    changed = {**present, cursor_key(one.stream, one.partition): one.offset}
    weight = state.weight + weight_of_cursor(one.cursor_id, changed)
    weight -= weight_of_cursor(one.cursor_id, present)
    return replace(state, cursors={**state.cursors, one.cursor_id: changed}, weight=weight)


def _with_position(state: MetadataState, group: str, one: CursorWrite) -> MetadataState:
    """Store the position of a group that a member with Liftbridge's client has sent.

    These clients send no epoch. So while the group has members, a lower position counts as a late
    message of a former reader, and changes nothing: all records below the present position were
    processed.
    """
    stream, offset = state.streams[one.stream], Offset(one.offset + 1)
    before = position_of(state, group, stream, one.partition)
    if before is not None and group in state.groups and offset < before.offset:
        return state
    position = GroupPosition(
        offset=offset,
        epoch=state.group_epoch if before is None else max(before.epoch, state.group_epoch),
        number=0 if before is None else before.number,
    )
    return written(state, group, partition_key(stream.uuid, one.partition), position)


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
    if refused is None:
        refused = _refused_kind(command.group, present)
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
        named = replace(present, coordinator=command.candidate)
        if present.is_own:
            named = replace(named, appointed=state.group_epoch + 1)
        return _put(state, command.group, named)
    changed = replace(present, reports=reports)
    weight = weight_of_group(command.group, changed) - weight_of_group(command.group, present)
    groups = {**state.groups, command.group: changed}
    return replace(state, groups=groups, weight=state.weight + weight), reply_of(changed)


def _put(state: MetadataState, group: str, changed: GroupState) -> Applied:
    """Return the state with a changed group, under the next epoch; a group without members ends."""
    epoch = state.group_epoch + 1
    changed = replace(changed, epoch=epoch, reports=())
    return with_group(state, group, changed, epoch), reply_of(changed)


def _refused_kind(group: str, present: GroupState | None) -> GroupChangedError | None:
    if present is None or not present.is_own:
        return None
    return GroupChangedError(
        f"group {group!r} has members with Headwater's client, and a group cannot have members "
        "with both clients at once: stop those first, and the group goes on at their positions",
        group=group,
    )


def _group_of_member(
    state: MetadataState, command: LeaveGroup | ReportCoordinator
) -> GroupState | HeadwaterError:
    """Return the group that a command is about, or why its sender is not a member of it."""
    group = command.group
    present = state.groups.get(group)
    if present is None:
        return UnknownGroupError(f"no consumer group is named {group!r}", group=group)
    if isinstance(command, LeaveGroup) and (refused := _refused_kind(group, present)) is not None:
        return refused
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
