"""What each stream and each tenant has of the metadata. Counted on each broker.

No stream and no tenant may take all of it: administrators give a tenant its share.

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

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    AddPartitions,
    AlterStream,
    Command,
    CommitPositions,
    CreateStream,
    CursorWrite,
    JoinGroup,
    JoinMember,
    ResetPositions,
    SetCursors,
    TakeLease,
)
from broker.core.metadata.group_positions import group_of_cursor
from broker.core.metadata.group_state import cursor_key
from broker.core.metadata.size import (
    STATE_WEIGHT_MAX,
    weight_of_cursor,
    weight_of_group,
    weight_of_lease,
    weight_of_positions,
    weight_of_stream,
)
from broker.core.metadata.state import LeaseState, MetadataState
from broker.errors import HeadwaterError, MetadataFullError, QuotaExceededError
from broker.model.groups import partition_key
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.model.tenant import AFTER_NAME, Tenant, tenant_of

# Cursors, and positions of groups, of a stream: so many for each of its partitions.
PLACES_OF_PARTITION_MAX: Final = 4_096
TENANT_WEIGHT_MAX: Final = STATE_WEIGHT_MAX // 4  # of a tenant that has no share of its own

_PLACING: Final = SetCursors | CommitPositions | ResetPositions
# A new data key passes: a key has to be given up when it is known, and a stream has few.
_ADDING: Final = CreateStream | AlterStream | AddPartitions | TakeLease | JoinGroup | JoinMember
_Growing = (
    SetCursors
    | CommitPositions
    | ResetPositions
    | CreateStream
    | AlterStream
    | AddPartitions
    | TakeLease
    | JoinGroup
    | JoinMember
)
_K = TypeVar("_K")
_V = TypeVar("_V")


class Shares:
    """What streams and tenants have, and who may have more. One thread at a time.

    A tenant has its streams with their leases and cursors, and its groups with their positions. A
    cursor counts for each stream with the whole weight of its id.
    """

    def __init__(self) -> None:
        """Know of no metadata yet."""
        self._seen = MetadataState()
        self._cursors: Counter[str] = Counter()  # by the name of the stream, which may not exist
        self._positions: Counter[str] = Counter()  # by the uuid of the stream
        self._weights: Counter[str] = Counter()  # by what would be the tenant's name
        self._names: dict[str, str] = {}  # of streams, by uuid

    def refusal(self, state: MetadataState, command: Command) -> HeadwaterError | None:
        """Return the error of a command that takes more than is its share, or None."""
        cursors, positions = _new_places(state, command)
        if isinstance(command, _PLACING) and not cursors and not positions:
            return None
        if not isinstance(command, _PLACING | _ADDING):
            return None
        self._follow(state)
        return (
            self._refused_cursors(state, cursors)
            or self._refused_positions(state, positions)
            or self._refused_weight(state, command)
        )

    def weight(self, tenant: Tenant) -> int:
        """Return the weight of what a tenant had at the last look."""
        return self._weights[tenant.name]

    def _refused_weight(self, state: MetadataState, command: _Growing) -> QuotaExceededError | None:
        tenants = [tenant_of(state.tenants, name) for name in self._names_in(state, command)]
        for tenant in {one.name: one for one in tenants if one is not None}.values():
            most = tenant.metadata_bytes_max or TENANT_WEIGHT_MAX
            grown = _growth(state, command)
            needed = self._weights[tenant.name] + grown
            if grown > 0 and needed > most:
                return QuotaExceededError(
                    f"tenant {tenant.name!r} may have {most} bytes of the cluster's metadata, and "
                    f"would have {needed}: delete streams or consumer groups, wait until leases "
                    "have ended, or ask an administrator for more",
                    tenant=tenant.name,
                    limit="metadata_bytes_max",
                )
        return None

    def _names_in(self, state: MetadataState, command: _Growing) -> Iterator[str]:
        """Yield the names of streams and groups to which a command adds."""
        match command:
            case CreateStream():
                yield command.stream.name
            case AlterStream() | AddPartitions():
                yield command.expected.name
            case TakeLease():
                yield self._names.get(command.stream_uuid, "")
            case SetCursors():
                for one in command.writes:
                    yield group_of_cursor(state, one.cursor_id, one.stream) or one.stream
            case _:
                yield command.group

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
        streams = list(_changed(seen.streams, state.streams))
        for _, old, new in streams:
            self._count_stream(old, -1)
            self._count_stream(new, 1)
        for _, ended, taken in _changed(seen.leases, state.leases):
            self._count_lease(ended, -1)
            self._count_lease(taken, 1)
        for group, left, joined in _changed(seen.groups, state.groups):
            self._weigh(group, 0 if left is None else -weight_of_group(group, left))
            self._weigh(group, 0 if joined is None else weight_of_group(group, joined))
        for cursor_id, before, after in _changed(seen.cursors, state.cursors):
            self._count_cursors(cursor_id, before or {}, -1)
            self._count_cursors(cursor_id, after or {}, 1)
        for group, was, now in _changed(seen.positions, state.positions):
            self._count_positions(group, was or {}, -1)
            self._count_positions(group, now or {}, 1)
        for _, old, new in streams:  # after the leases, which are counted by these names
            if old is not None and (new is None or new.uuid != old.uuid):
                del self._names[old.uuid]

    def _count_stream(self, stream: Stream | None, sign: int) -> None:
        if stream is not None:
            self._names[stream.uuid] = stream.name
            self._weigh(stream.name, sign * weight_of_stream(stream, stream.config.partitions))

    def _count_lease(self, lease: LeaseState | None, sign: int) -> None:
        if lease is not None:
            self._weigh(self._names.get(lease.stream_uuid, ""), sign * weight_of_lease(lease))

    def _count_cursors(self, cursor_id: str, cursors: Mapping[str, int], sign: int) -> None:
        for key, last in cursors.items():
            stream = key.partition(",")[2]
            _add(self._cursors, stream, sign)
            self._weigh(stream, sign * weight_of_cursor(cursor_id, {key: last}))

    def _count_positions(self, group: str, positions: Mapping[str, object], sign: int) -> None:
        for key in positions:
            _add(self._positions, key.partition("/")[0], sign)
        self._weigh(group, sign * weight_of_positions(group, positions))

    def _weigh(self, name: str, weight: int) -> None:
        """Add to the weight of the tenant that has, or would have, a stream or group."""
        tenant, mark, _ = name.partition(AFTER_NAME)
        if mark:
            _add(self._weights, tenant, weight)


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


def _growth(state: MetadataState, command: _Growing) -> int:
    """Return by how much a command makes the metadata heavier; 0 if it would be refused."""
    if isinstance(command, TakeLease):  # it also drops the leases that have ended
        floors = (Offset(0),) * len(state.partitions.get(command.stream_uuid, ()))
        return weight_of_lease(
            LeaseState(
                stream_uuid=command.stream_uuid,
                owner=command.owner,
                expires_us=command.expires_us,
                floors=floors,
            )
        )
    return apply(state, command)[0].weight - state.weight


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
    before: Mapping[_K, _V], after: Mapping[_K, _V]
) -> Iterator[tuple[_K, _V | None, _V | None]]:
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
