"""Pause, resume and read-only: which partitions take records. Pure.

A paused partition takes no records: its broker does not listen on NATS for it, and the broker ends
subscriptions. A publish to a broker resumes the partition. A read-only partition is read as before,
and takes no records until an operator allows it. Both are properties of the partition in
the metadata, so they survive every restart and every change of leaders, and neither changes the
leader or the ISR. The leader refuses writes from the moment that it applies the change.

Liftbridge is the model (PauseStream, SetStreamReadonly), and the times of these events have its
names. Here the times are in the metadata; in Liftbridge a new leader does not know them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.partition_apply import find, stale_leader
from broker.core.metadata.pause_commands import (
    PauseCommand,
    PausePartitions,
    ResumePartitions,
    SetReadonly,
)
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState, PartitionState
from broker.errors import HeadwaterError, InvalidRequestError
from broker.model.ids import StreamUuid

_Step = Callable[[PartitionState], PartitionState]


def apply_pause(state: MetadataState, command: PauseCommand) -> Applied:
    """Return the next state and the reply of a command that stops or allows writes."""
    low = refused_level(state, FEATURE_LEVEL_STREAMS, "a pause or a read-only partition")
    if low is not None:
        return state, Rejected(low)
    numbers = _numbers(state, command)
    if isinstance(numbers, HeadwaterError):
        return state, Rejected(numbers)
    match command:
        case PausePartitions():
            return _pause(state, command, numbers)
        case ResumePartitions():
            return _resume(state, command, numbers)
        case SetReadonly():
            after = _changed(
                state, command.stream_uuid, numbers, lambda one: _with_readonly(one, command)
            )
            return after, {}


def _numbers(state: MetadataState, command: PauseCommand) -> frozenset[int] | HeadwaterError:
    """Return the partitions that a command names, or the error if one of them does not exist."""
    first = find(state, command.stream_uuid, 0)
    if isinstance(first, HeadwaterError):
        return first
    for number in command.partitions:
        present = find(state, command.stream_uuid, number)
        if isinstance(present, HeadwaterError):
            return present
    rows = state.partitions[command.stream_uuid]
    return frozenset(command.partitions or range(len(rows)))


def _pause(state: MetadataState, command: PausePartitions, numbers: frozenset[int]) -> Applied:
    uuid, epoch = command.stream_uuid, command.leader_epoch
    rows = state.partitions[uuid]
    if epoch is not None:
        if len(command.partitions) != 1 or command.resume_all:
            reason = "a leader may pause exactly one partition, without resume_all"
            return state, Rejected(InvalidRequestError(reason))
        (row,) = (rows[number] for number in numbers)
        if row.leader is None or row.leader_epoch != epoch:
            return state, Rejected(stale_leader(row, epoch))
    after = _changed(state, uuid, numbers, lambda one: _paused(one, True, command.now_us))
    if epoch is None:
        every = frozenset(range(len(rows)))
        after = _changed(after, uuid, every, lambda one: _resuming(one, command.resume_all))
    return after, {}


def _resume(state: MetadataState, command: ResumePartitions, numbers: frozenset[int]) -> Applied:
    uuid = command.stream_uuid
    every = frozenset(range(len(state.partitions[uuid])))
    if any(one.resumes_all for one in state.partitions[uuid]):
        numbers = every
    after = _changed(state, uuid, numbers, lambda one: _paused(one, False, command.now_us))
    return _changed(after, uuid, numbers, lambda one: _resuming(one, False)), {}


def _paused(row: PartitionState, paused: bool, now_us: int) -> PartitionState:
    if row.paused == paused:
        return row
    return replace(
        row,
        paused=paused,
        pause_first_us=row.pause_first_us or now_us,
        pause_latest_us=max(row.pause_latest_us, now_us),
    )


def _resuming(row: PartitionState, resumes_all: bool) -> PartitionState:
    return row if row.resumes_all == resumes_all else replace(row, resumes_all=resumes_all)


def _with_readonly(row: PartitionState, command: SetReadonly) -> PartitionState:
    """Return the partition read-only or writable; the latest time changes in any case."""
    return replace(
        row,
        readonly=command.readonly,
        readonly_first_us=row.readonly_first_us or command.now_us,
        readonly_latest_us=max(row.readonly_latest_us, command.now_us),
    )


def _changed(
    state: MetadataState, uuid: StreamUuid, numbers: frozenset[int], step: _Step
) -> MetadataState:
    """Return the state with a step taken in these partitions; the state itself if none changed."""
    before = state.partitions[uuid]
    after = tuple(step(one) if number in numbers else one for number, one in enumerate(before))
    if all(was is now for was, now in zip(before, after, strict=True)):
        return state
    return replace(state, partitions={**state.partitions, uuid: after})
