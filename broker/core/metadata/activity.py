"""Puts an event of each change of streams and groups into an outbox, for the activity stream. Pure.

The outbox is a part of the metadata. So an event is added exactly when its command is applied, on
every broker alike, and survives every change of controllers. The first event is the creation of the
activity stream. The leader of that stream stores the events, the oldest first, and then trims the
outbox. After a crash it may store an event again: both records have the same event id.

The outbox is bounded. If the activity stream takes no records for long, the oldest events are
dropped, because an event must never be the reason to refuse a command. Ids have no gap, so a reader
sees how many events were dropped.

Liftbridge reads its Raft log instead, and stops with a panic if an entry was compacted before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from broker.core.metadata.activity_commands import TrimActivity
from broker.core.metadata.group_commands import JoinGroup, LeaveGroup
from broker.core.metadata.member_commands import JoinMember, LeaveMember
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.pause_commands import PausePartitions, ResumePartitions, SetReadonly
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState
from broker.errors import StreamRecreatedError
from broker.model.activity import ACTIVITY_STREAM, ActivityEvent, ActivityOutbox

OUTBOX_EVENTS_MAX: Final = 4096
OUTBOX_WEIGHT_MAX: Final = 2 * 1024 * 1024


def trim_activity(state: MetadataState, command: TrimActivity) -> Applied:
    """Return the state without the events that are stored."""
    low = refused_level(state, FEATURE_LEVEL_STREAMS, "an activity stream")
    if low is not None:
        return state, Rejected(low)
    stream, outbox = state.streams.get(ACTIVITY_STREAM), state.activity
    if stream is None or outbox is None or stream.uuid != command.stream_uuid:
        return state, Rejected(
            StreamRecreatedError(
                f"stream {ACTIVITY_STREAM} was deleted or created again meanwhile",
                expected=command.stream_uuid,
                found=None if stream is None else stream.uuid,
            )
        )
    left = tuple(one for one in outbox.events if one.id > command.through)
    if len(left) == len(outbox.events):
        return state, {}
    return _with_outbox(state, replace(outbox, events=left)), {}


def noted(before: MetadataState, command: Any, after: MetadataState) -> MetadataState:
    """Return the state after a command with the events of the command in its outbox."""
    outbox = after.activity
    made = ACTIVITY_STREAM in after.streams
    if outbox is None or outbox.open != made:
        if not made and outbox is not None:  # the activity stream was deleted
            return _with_outbox(after, replace(outbox, open=False, events=()))
        if (
            not made
            or ACTIVITY_STREAM in before.streams  # an older build let users make one
            or after.feature_level < FEATURE_LEVEL_STREAMS
        ):
            return after
        outbox = replace(outbox or ActivityOutbox(), open=True)
    elif not made:
        return after
    found = tuple(_events(before, command, after, outbox.last_id + 1))
    if not found:
        return after
    events, given_up = _bounded((*outbox.events, *found))
    return _with_outbox(
        after,
        replace(outbox, events=events, last_id=found[-1].id, given_up=outbox.given_up + given_up),
    )


def _bounded(events: tuple[ActivityEvent, ...]) -> tuple[tuple[ActivityEvent, ...], int]:
    """Return the newest events that fit, and how many do not."""
    weight, first = sum(one.weight for one in events), 0
    while len(events) - first > OUTBOX_EVENTS_MAX or weight > OUTBOX_WEIGHT_MAX:
        weight -= events[first].weight
        first += 1
    return events[first:], first


def _with_outbox(state: MetadataState, outbox: ActivityOutbox) -> MetadataState:
    weight = sum(one.weight for one in outbox.events)
    former = 0 if state.activity is None else state.activity.weight
    return replace(
        state, activity=replace(outbox, weight=weight), weight=state.weight + weight - former
    )


def _events(
    before: MetadataState, command: Any, after: MetadataState, next_id: int
) -> Iterator[ActivityEvent]:
    """Yield the events of an applied command: one for each change that it made."""
    match command:
        case JoinGroup() | JoinMember():
            present = before.groups.get(command.group)
            if present is None or command.member not in present.members:
                yield ActivityEvent(
                    id=next_id,
                    op="join_consumer_group",
                    group=command.group,
                    member=command.member,
                    streams=command.streams,
                )
        case LeaveGroup() | LeaveMember():
            expelled = (
                command.epoch is not None
                if isinstance(command, LeaveGroup)
                else command.expelled_by is not None
            )
            yield ActivityEvent(
                id=next_id,
                op="leave_consumer_group",
                group=command.group,
                member=command.member,
                flag=expelled,
            )
        case PausePartitions() | ResumePartitions() | SetReadonly():
            yield from _pause_events(before, command, after, next_id)
        case _ if before.streams is not after.streams:
            for name in sorted(after.streams.keys() - before.streams.keys()):
                count = after.streams[name].config.partitions
                yield ActivityEvent(
                    id=next_id, op="create_stream", stream=name, partitions=tuple(range(count))
                )
                next_id += 1
            for name in sorted(before.streams.keys() - after.streams.keys()):
                yield ActivityEvent(id=next_id, op="delete_stream", stream=name)
                next_id += 1


def _pause_events(
    before: MetadataState,
    command: PausePartitions | ResumePartitions | SetReadonly,
    after: MetadataState,
    next_id: int,
) -> Iterator[ActivityEvent]:
    uuid = command.stream_uuid
    rows = zip(before.partitions[uuid], after.partitions[uuid], strict=True)
    touched = tuple(number for number, (was, now) in enumerate(rows) if was is not now)
    if not touched:
        return
    name = next(one.name for one in after.streams.values() if one.uuid == uuid)
    match command:
        case PausePartitions():
            named = command.partitions or touched
            yield ActivityEvent(
                id=next_id,
                op="pause_stream",
                stream=name,
                partitions=tuple(sorted(set(named))),
                flag=command.resume_all,
            )
        case ResumePartitions():
            yield ActivityEvent(id=next_id, op="resume_stream", stream=name, partitions=touched)
        case SetReadonly():
            yield ActivityEvent(
                id=next_id,
                op="set_stream_readonly",
                stream=name,
                partitions=touched,
                flag=command.readonly,
            )
