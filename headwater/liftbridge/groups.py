"""A member of a consumer group: its partitions, their readers, and its positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    NotLeaderError,
    UnavailableError,
    UnknownStreamError,
)
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.following import FollowedPartition
from headwater.liftbridge.grpc_calls import CallRefused, ask
from headwater.liftbridge.values import AutoOffset, Message, Since, Until

_QUEUED: Final = 1000  # messages read ahead, of all partitions
_POLLS: Final = 0.3  # of the time after which a silent member is expelled
_PAUSE_S: Final = 0.5
_NS: Final = 1_000_000_000

Place = tuple[str, int]  # a stream and a partition


class GroupServers(Protocol):
    """The calls of the client that a member needs."""

    async def anywhere(self, call: Callable[[Any, float], Awaitable[Any]]) -> Any:
        """Make a call that any server answers."""

    async def at_broker(self, broker: str, call: Callable[[Any, float], Awaitable[Any]]) -> Any:
        """Make a call at one broker; raises CallRefused."""

    def follow(
        self, following: FollowedPartition, consumer: Callable[[], api.Consumer] | None
    ) -> AsyncIterator[Message]:
        """Make the calls of a subscription."""

    async def cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """Return a position."""

    async def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        """Set a position."""


@dataclass(slots=True, eq=False)
class _Reader:
    """The reading of one partition, by one task after the other while the member keeps it."""

    task: asyncio.Task[None] = field(init=False)
    next_offset: int | None = None  # of the message behind the last one that was queued
    processed: int | None = None
    committed: int | None = None
    ended: bool = False  # the stream was deleted: another one of its name has other records


@dataclass(frozen=True, slots=True)
class _Got:
    reader: _Reader
    message: Message


@dataclass(slots=True)
class _Membership:
    coordinator: str = ""
    epoch: int = 0  # the newest that this member knows
    assigned_epoch: int = 0  # under which ``readers`` were assigned: they subscribe under this one
    consumer_s: float = 15.0
    coordinator_s: float = 15.0
    heard_s: float = 0.0  # when the coordinator answered last
    readers: dict[Place, _Reader] = field(default_factory=dict)


class AsyncLiftConsumer:
    """Iterates over the messages of the partitions that this member has; see ``consumer()``.

    Messages of one partition come in order. Owner: one task.
    """

    def __init__(
        self,
        client: GroupServers,
        group: str,
        streams: list[str],
        consumer_id: str,
        *,
        auto_offset: AutoOffset,
        checkpoint_s: float | None,
        poll_s: float | None,
        id_is_new: bool = False,
    ) -> None:
        """Made by ``AsyncLiftbridge.consumer``; ``id_is_new``: no other process has the id."""
        self._client = client
        self.group = group
        self.consumer_id = consumer_id
        self._streams = streams
        self._auto_offset = auto_offset
        self._checkpoint_s = checkpoint_s
        self._poll_s = poll_s
        self._id_is_new = id_is_new
        self._member = _Membership()
        self._queue: asyncio.Queue[_Got | HeadwaterError] = asyncio.Queue(_QUEUED)
        self._handed: _Got | None = None  # the message that the caller has
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self.processed()
        while not self._closed:
            got = await self._queue.get()
            if isinstance(got, HeadwaterError):
                raise got
            if self._is_mine(got):
                self._handed = got
                return got.message
        raise StopAsyncIteration

    def _is_mine(self, got: _Got) -> bool:
        place = (got.message.stream, got.message.partition)
        return self._member.readers.get(place) is got.reader

    def processed(self) -> None:
        """Count the message that was handed out last as processed."""
        if self._handed is not None:
            self._handed.reader.processed = self._handed.message.offset
            self._handed = None

    @property
    def assigned(self) -> list[Place]:
        """The partitions that this member has now, as (stream, number)."""
        return sorted(self._member.readers)

    async def checkpoint(self) -> Mapping[Place, int]:
        """Set the positions of processed messages as the group's cursors; return those set."""
        found = {}
        for place, reader in list(self._member.readers.items()):
            with suppress(UnknownStreamError):  # it was deleted; the other places are set
                offset = await self._commit(place, reader)
                if offset is not None:
                    found[place] = offset
        return found

    async def _commit(self, place: Place, reader: _Reader) -> int | None:
        offset = reader.processed
        if offset is None or offset == reader.committed or reader.ended:
            return None
        await self._client.set_cursor(f"__group:{self.group}", *place, offset)
        reader.committed = offset
        return offset

    # ------------------------------------------------------------------ membership

    async def join(self) -> None:
        """Join the group; called by ``AsyncLiftbridge.consumer``."""
        await self._join()
        self._tasks.append(asyncio.ensure_future(self._coordinate()))
        if self._checkpoint_s is not None:
            self._tasks.append(asyncio.ensure_future(self._checkpoints(self._checkpoint_s)))

    async def _join(self) -> None:
        request = api.JoinConsumerGroupRequest(
            groupId=self.group, consumerId=self.consumer_id, streams=self._streams
        )
        attempts_count = 0

        async def join(stub: Any, timeout_s: float) -> Any:
            nonlocal attempts_count
            attempts_count += 1
            return await ask(stub.JoinConsumerGroup, request, timeout_s)

        member = self._member
        try:
            told = await self._client.anywhere(join)
        except NotLeaderError:
            # A repeat is refused if the request before it has counted and its answer was lost.
            if attempts_count == 1 or not self._id_is_new:
                raise
            place = await _place_of(self.group, self._client)
            if place.error != api.ConsumerGroupMetadata.OK:
                raise
            member.coordinator, member.epoch, member.heard_s = (
                place.coordinator,
                place.epoch,
                _now(),
            )
            return
        member.coordinator, member.epoch = told.coordinator, told.epoch
        member.consumer_s = told.consumerTimeout / _NS
        member.coordinator_s = told.coordinatorTimeout / _NS
        member.heard_s = _now()

    async def _coordinate(self) -> None:
        """Ask for the assignments again and again; each request is also a heartbeat."""
        while True:
            pause_s = self._poll_s or _POLLS * self._member.consumer_s
            try:
                await self._fetch_assignments()
            except (CallRefused, HeadwaterError) as refused:
                pause_s = min(pause_s, _PAUSE_S)
                with suppress(HeadwaterError):  # no server answers: the next turn asks again
                    await self._look_for_coordinator(refused)
            await asyncio.sleep(pause_s)

    async def _fetch_assignments(self) -> None:
        member = self._member
        request = api.FetchConsumerGroupAssignmentsRequest(
            groupId=self.group, consumerId=self.consumer_id, epoch=member.epoch
        )
        told = await self._client.at_broker(
            member.coordinator,
            lambda stub, s: ask(stub.FetchConsumerGroupAssignments, request, s),
        )
        member.heard_s = _now()
        member.epoch = told.epoch
        wanted = {(one.stream, number) for one in told.assignments for number in one.partitions}
        lost = {place: self._drop(place) for place in set(member.readers) - wanted}
        member.assigned_epoch = told.epoch
        for place, dropped in lost.items():
            await self._commit_last(place, dropped)
        for place in sorted(wanted):
            reader = member.readers.get(place)
            if reader is None or reader.ended:
                reader = member.readers[place] = _Reader()
            elif not reader.task.done():
                continue
            reader.task = asyncio.ensure_future(self._run(place, reader))

    async def _look_for_coordinator(self, refused: Exception) -> None:
        """Find the group's coordinator and epoch anew; report one that stays silent."""
        member = self._member
        place = await _place_of(self.group, self._client)
        if place.error == api.ConsumerGroupMetadata.OK:
            if (place.coordinator, place.epoch) != (member.coordinator, member.epoch):
                member.coordinator, member.epoch = place.coordinator, place.epoch
                return
            if isinstance(refused, CallRefused) and refused.code == "UNAVAILABLE":
                await self._report()
                return
        await self._rejoin()

    async def _report(self) -> None:
        member = self._member
        if _now() - member.heard_s < member.coordinator_s:
            return
        request = api.ReportConsumerGroupCoordinatorRequest(
            groupId=self.group,
            consumerId=self.consumer_id,
            coordinator=member.coordinator,
            epoch=member.epoch,
        )
        await self._client.anywhere(
            lambda stub, s: ask(stub.ReportConsumerGroupCoordinator, request, s)
        )

    async def _rejoin(self) -> None:
        """Join again: the group has expelled this member, so its partitions are others' now."""
        for place in list(self._member.readers):
            self._drop(place)
        with suppress(NotLeaderError):  # it is a member already
            await self._join()

    # ------------------------------------------------------------------ partitions

    async def _run(self, place: Place, reader: _Reader) -> None:
        try:
            start = await self._start(*place, reader.next_offset)
            following = FollowedPartition(*place, start, Until.never())
            async for message in self._client.follow(following, self._consumer):
                await self._queue.put(_Got(reader, message))
                reader.next_offset = message.offset + 1
        except NotLeaderError:
            return  # another member reads, or the partition has no leader: the next turn looks
        except HeadwaterError as error:
            reader.ended = isinstance(error, UnknownStreamError)
            if not isinstance(error, UnavailableError):
                await self._queue.put(error)

    def _consumer(self) -> api.Consumer:
        return api.Consumer(
            groupId=self.group, groupEpoch=self._member.assigned_epoch, consumerId=self.consumer_id
        )

    async def _start(self, stream: str, partition: int, next_offset: int | None) -> Since:
        """Begin behind the group's cursor, or behind what this member has read if that is more.

        What was read is not committed yet: from the cursor alone a member would get it again, and
        without a cursor ``auto_offset="latest"`` would pass over what came in between.
        """
        offset = await self._client.cursor(f"__group:{self.group}", stream, partition)
        known = [next_offset] if next_offset is not None else []
        if offset is not None:
            known.append(offset + 1)
        if known:
            return Since.offset(max(known))
        if self._auto_offset == "none":
            raise InvalidRequestError(
                f"group {self.group} has no position in {stream}/{partition}, "
                "and auto_offset is none"
            )
        return Since(self._auto_offset)

    async def _commit_last(self, place: Place, reader: _Reader) -> None:
        """Let the next member of a partition begin behind what was processed here."""
        with suppress(HeadwaterError):  # the next member repeats what was not committed
            await self._commit(place, reader)

    def _drop(self, place: Place) -> _Reader:
        reader = self._member.readers.pop(place)
        reader.task.cancel()
        return reader

    async def _checkpoints(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            with suppress(HeadwaterError):  # tried again at the next turn
                await self.checkpoint()

    async def close(self) -> None:
        """Set the positions, give the partitions up, and leave the group."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for place in list(self._member.readers):
            await self._commit_last(place, self._drop(place))
        request: Any = api.LeaveConsumerGroupRequest(
            groupId=self.group, consumerId=self.consumer_id
        )
        with suppress(HeadwaterError):  # the group expels a silent member by itself
            await self._client.anywhere(lambda stub, s: ask(stub.LeaveConsumerGroup, request, s))
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _place_of(group: str, client: GroupServers) -> api.ConsumerGroupMetadata:
    """Ask where a group's coordinator is, and for its epoch."""
    asked = api.FetchMetadataRequest(groups=[group])
    told = await client.anywhere(lambda stub, s: ask(stub.FetchMetadata, asked, s))
    (place,) = told.groupMetadata
    return place  # type: ignore[no-any-return]


def _now() -> float:
    return asyncio.get_running_loop().time()
