"""What each stream has of the metadata, so that none takes all of it. Counted on each broker.

A broker refuses a command before it proposes it, by the metadata that it has applied. So a refusal
is no part of the log, and every build replays the log to the same state. Brokers that decide at the
same moment may go a few commands beyond a bound; the weight of the metadata bounds all strictly.

The values of the metadata are immutable. So only values that are other objects than at the last
look are counted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from broker.core.metadata.commands import (
    Command,
    CommitPositions,
    CursorWrite,
    ResetPositions,
    SetCursors,
)
from broker.core.metadata.group_positions import group_of_cursor
from broker.core.metadata.group_state import cursor_key
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError, MetadataFullError
from broker.model.groups import partition_key
from broker.model.stream import Stream

# Cursors, and positions of groups, of a stream: so many for each of its partitions.
PLACES_OF_PARTITION_MAX: Final = 4_096

_V = TypeVar("_V")


class Shares:
    """The cursors and positions of each stream, and who may have more. One thread at a time."""

    def __init__(self) -> None:
        """Know of no metadata yet."""
        self._seen = MetadataState()
        self._cursors: Counter[str] = Counter()  # by the name of the stream, which may not exist
        self._positions: Counter[str] = Counter()  # by the uuid of the stream

    def refusal(self, state: MetadataState, command: Command) -> HeadwaterError | None:
        """Return the error of a command that takes more than its stream may have, or None."""
        cursors, positions = _new_places(state, command)
        if not cursors and not positions:
            return None
        self._follow(state)
        return self._refused_cursors(state, cursors) or self._refused_positions(state, positions)

    def _refused_cursors(
        self, state: MetadataState, added: Mapping[str, int]
    ) -> MetadataFullError | None:
        for name, count in added.items():
            most = PLACES_OF_PARTITION_MAX * _partitions(state.streams.get(name))
            if self._cursors[name] + count > most:
                return MetadataFullError(
                    f"stream {name!r} has {self._cursors[name]} cursors of the {most} that it may "
                    f"have, {PLACES_OF_PARTITION_MAX} for each of its partitions: set those that "
                    "are there again, under their ids. Cursors go when the stream is deleted",
                    stream=name,
                    cursors=self._cursors[name],
                    limit=most,
                )
        return None

    def _refused_positions(
        self, state: MetadataState, added: Mapping[str, int]
    ) -> MetadataFullError | None:
        streams = [one for one in state.streams.values() if one.uuid in added]
        for stream in streams:
            most = PLACES_OF_PARTITION_MAX * _partitions(stream)
            present = self._positions[stream.uuid]
            if present + added[stream.uuid] > most:
                return MetadataFullError(
                    f"consumer groups have {present} positions in stream {stream.name!r} of the "
                    f"{most} that there may be, {PLACES_OF_PARTITION_MAX} for each of its "
                    "partitions: delete groups that nobody needs (`headwater group delete`)",
                    stream=stream.name,
                    positions=present,
                    limit=most,
                )
        return None

    def _follow(self, state: MetadataState) -> None:
        """Count what has changed since the last look; the metadata may also be older than then."""
        seen, self._seen = self._seen, state
        for _, before, after in _changed(seen.cursors, state.cursors):
            self._count_cursors(before, -1)
            self._count_cursors(after, 1)
        for _, was, now in _changed(seen.positions, state.positions):
            self._count_positions(was, -1)
            self._count_positions(now, 1)

    def _count_cursors(self, cursors: Mapping[str, int] | None, sign: int) -> None:
        for key in cursors or ():
            _add(self._cursors, key.partition(",")[2], sign)

    def _count_positions(self, positions: Mapping[str, object] | None, sign: int) -> None:
        for key in positions or ():
            _add(self._positions, key.partition("/")[0], sign)


def _new_places(
    state: MetadataState, command: Command
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return how many cursors a command adds to each stream, and positions by the stream's uuid."""
    cursors: Counter[str] = Counter()
    positions: Counter[str] = Counter()
    match command:
        case SetCursors():
            for one in command.writes:
                group = group_of_cursor(state, one.cursor_id, one.stream)
                if group is None:
                    cursors[one.stream] += _is_new_cursor(state, one)
                else:
                    uuid = state.streams[one.stream].uuid
                    positions[uuid] += _is_new(state, group, partition_key(uuid, one.partition))
        case CommitPositions() | ResetPositions():
            for write in command.writes:
                key = partition_key(write.stream_uuid, write.partition)
                if write.offset is not None:
                    positions[write.stream_uuid] += _is_new(state, command.group, key)
        case _:
            pass
    return +cursors, +positions


def _is_new_cursor(state: MetadataState, write: CursorWrite) -> bool:
    key = cursor_key(write.stream, write.partition)
    return key not in state.cursors.get(write.cursor_id, {})


def _is_new(state: MetadataState, group: str, key: str) -> bool:
    return key not in state.positions.get(group, {})


def _partitions(stream: Stream | None) -> int:
    """Return a stream's number of partitions; a cursor may be of a stream that is not there."""
    return 1 if stream is None else stream.config.partitions


def _add(counts: Counter[str], name: str, amount: int) -> None:
    """Add to a count, and forget it when nothing is left: names come and go."""
    counts[name] += amount
    if not counts[name]:
        del counts[name]


def _changed(
    before: Mapping[str, _V], after: Mapping[str, _V]
) -> Iterator[tuple[str, _V | None, _V | None]]:
    """Yield each key whose value is another object, with both values; None: it has none."""
    if before is after:
        return
    for key, now in after.items():
        was = before.get(key)
        if was is not now:
            yield key, was, now
    for key, was in before.items():
        if key not in after:
            yield key, was, None
