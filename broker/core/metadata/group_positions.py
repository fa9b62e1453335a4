"""Read, write and drop the positions of consumer groups in the metadata. Pure.

Liftbridge's clients keep a group's position as the cursor ``__group:<group>``, whose offset is the
last one that was processed. Such a cursor and a position are the same value in two forms:
`position_of` and `cursor_of` convert. A cursor that was set at a feature level without positions,
or below FEATURE_LEVEL_RECREATED for a stream that does not exist, stays a cursor until the group's
next commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from broker.core.metadata.group_state import (
    GROUP_CURSOR_PREFIX,
    GroupPosition,
    cursor_key,
    group_named_by,
)
from broker.core.metadata.size import weight_of_cursor, weight_of_positions
from broker.core.metadata.state import (
    FEATURE_LEVEL_RECREATED,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.model.groups import NO_LEADER_EPOCH, partition_key
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.lineage import holds, is_forgotten
from broker.model.offsets import Offset
from broker.model.stream import Stream


def group_of_cursor(state: MetadataState, cursor_id: str, stream: str) -> str | None:
    """Return the group whose position is this cursor; None if the cursor is not a group's."""
    has_positions = state.feature_level >= FEATURE_LEVEL_STREAMS and stream in state.streams
    return group_named_by(cursor_id) if has_positions else None


def position_of(
    state: MetadataState, group: str, stream: Stream, partition: int
) -> GroupPosition | None:
    """Return a group's position in a partition; None: it has none."""
    found = state.positions.get(group, {}).get(partition_key(stream.uuid, partition))
    if found is not None:
        return found
    cursors = state.cursors.get(GROUP_CURSOR_PREFIX + group, {})
    last = cursors.get(cursor_key(stream.name, partition))
    return None if last is None else GroupPosition(offset=Offset(last + 1))


def cursor_of(state: MetadataState, cursor_id: str, stream: str, partition: int) -> int | None:
    """Return a cursor as Liftbridge's clients set it; None: it was never set."""
    group = group_of_cursor(state, cursor_id, stream)
    if group is None:
        return state.cursors.get(cursor_id, {}).get(cursor_key(stream, partition))
    found = position_of(state, group, state.streams[stream], partition)
    return None if found is None else found.offset - 1


def positions_in(state: MetadataState, partition_id: PartitionId) -> dict[str, GroupPosition]:
    """Return the position of each group that has one in a partition, by group."""
    key = partition_key(partition_id.stream_uuid, partition_id.number)
    found = {group: at[key] for group, at in state.positions.items() if key in at}
    names = [one.name for one in state.streams.values() if one.uuid == partition_id.stream_uuid]
    for cursor_id, cursors in state.cursors.items():
        group = cursor_id.removeprefix(GROUP_CURSOR_PREFIX)
        if not names or group == cursor_id or group in found:
            continue
        last = cursors.get(cursor_key(names[0], partition_id.number))
        if last is not None:
            found[group] = GroupPosition(offset=Offset(last + 1))
    return found


def is_lost(state: MetadataState, key: str, position: GroupPosition) -> bool:
    """Tell whether a position belongs to a history that the partition no longer has.

    An unclean election or a restored copy ends a history early. A position of a leadership that is
    too old to be remembered counts as not lost.
    """
    if not position.lineage_id:
        return False
    uuid, _, number = key.partition("/")
    row = state.partition(PartitionId(StreamUuid(uuid), PartitionNumber(int(number))))
    if row is None or not row.lineage:
        return False
    at = (row.lineage, position.lineage_id, position.offset)
    return not holds(*at) and not is_forgotten(*at)


def written(state: MetadataState, group: str, key: str, position: GroupPosition) -> MetadataState:
    """Return the state with a position in place of the former one."""
    before = state.positions.get(group, {})
    after = {**before, key: position}
    weight = state.weight + weight_of_positions(group, after) - weight_of_positions(group, before)
    state = replace(state, positions={**state.positions, group: after}, weight=weight)
    return _without_cursor(state, group, key)


def with_lineage(
    state: MetadataState, key: str, offset: int, *, epoch: int, number: int, leader_epoch: int
) -> GroupPosition:
    """Return a position, with the lineage id of its leader epoch if that is still known."""
    uuid, _, partition = key.partition("/")
    row = state.partition(PartitionId(StreamUuid(uuid), PartitionNumber(int(partition))))
    lineage = () if row is None or leader_epoch == NO_LEADER_EPOCH else row.lineage
    ids = [one.lineage_id for one in lineage if one.leader_epoch == leader_epoch]
    return GroupPosition(
        offset=Offset(offset),
        epoch=epoch,
        number=number,
        leader_epoch=leader_epoch,
        lineage_id=ids[0] if ids else "",
    )


def without_group(state: MetadataState, group: str) -> MetadataState:
    """Return the state without any position of a group."""
    positions, cursors = dict(state.positions), dict(state.cursors)
    weight = state.weight - weight_of_positions(group, positions.pop(group, {}))
    cursor_id = GROUP_CURSOR_PREFIX + group
    weight -= weight_of_cursor(cursor_id, cursors.pop(cursor_id, {}))
    return replace(state, positions=positions, cursors=cursors, weight=weight)


def without_cursors_in(
    state: MetadataState, name: str, dropped: Callable[[str], bool]
) -> MetadataState:
    """Return the state without the cursors of a stream whose cursor ids are to be ``dropped``."""
    cursors, weight = dict(state.cursors), state.weight
    for cursor_id, before in state.cursors.items():
        after = {key: last for key, last in before.items() if key.partition(",")[2] != name}
        if len(after) == len(before) or not dropped(cursor_id):
            continue
        weight += weight_of_cursor(cursor_id, after) - weight_of_cursor(cursor_id, before)
        if after:
            cursors[cursor_id] = after
        else:
            del cursors[cursor_id]
    return replace(state, cursors=cursors, weight=weight)


def has_late_cursors(state: MetadataState, name: str) -> bool:
    """Tell whether groups have cursors in a stream that does not exist: of a former one."""
    return name not in state.streams and any(
        group_named_by(cursor_id) is not None and key.partition(",")[2] == name
        for cursor_id, cursors in state.cursors.items()
        for key in cursors
    )


def without_late_cursors(state: MetadataState, name: str) -> MetadataState:
    """Return the state for a stream that is made now: it has no positions of a former one.

    Below the feature level the state stays as it is in older builds.
    """
    if state.feature_level < FEATURE_LEVEL_RECREATED or not has_late_cursors(state, name):
        return state
    return without_cursors_in(state, name, lambda cursor_id: group_named_by(cursor_id) is not None)


def without_positions_in(state: MetadataState, stream_uuid: str) -> MetadataState:
    """Return the state without positions in a deleted stream."""
    positions: dict[str, Mapping[str, GroupPosition]] = dict(state.positions)
    weight, prefix = state.weight, f"{stream_uuid}/"
    for group, before in state.positions.items():
        after = {key: one for key, one in before.items() if not key.startswith(prefix)}
        if len(after) == len(before):
            continue
        weight += weight_of_positions(group, after) - weight_of_positions(group, before)
        if after:
            positions[group] = after
        else:
            del positions[group]
    if positions == state.positions:
        return state
    return replace(state, positions=positions, weight=weight)


def _without_cursor(state: MetadataState, group: str, key: str) -> MetadataState:
    """Drop the cursor that a position has replaced."""
    cursor_id = GROUP_CURSOR_PREFIX + group
    before = state.cursors.get(cursor_id)
    if before is None:
        return state
    uuid, _, partition = key.partition("/")
    names = {one.name for one in state.streams.values() if one.uuid == uuid}
    after = {
        one: last
        for one, last in before.items()
        if not (one.partition(",")[0] == partition and one.partition(",")[2] in names)
    }
    if len(after) == len(before):
        return state
    weight = state.weight + weight_of_cursor(cursor_id, after) - weight_of_cursor(cursor_id, before)
    cursors = {**state.cursors, cursor_id: after}
    if not after:
        del cursors[cursor_id]
    return replace(state, cursors=cursors, weight=weight)
