"""A member of Liftbridge's groups: joins though an answer is lost, commits what is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.errors import NotLeaderError, UnknownStreamError
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.groups import AsyncLiftConsumer
from headwater.liftbridge.grpc_calls import CallRefused
from headwater.liftbridge.values import Message

MEMBER = CallRefused("FAILED_PRECONDITION", "consumer 'c' is already a member of group 'g'")
LOST = CallRefused("UNAVAILABLE", "the connection broke")


class Servers:
    """Servers that answer joins with these, one after the other."""

    def __init__(self, *joins: CallRefused) -> None:
        self._joins = [*joins]

    async def anywhere(self, call: Callable[[Any, float], Awaitable[Any]]) -> Any:
        """See ``GroupServers``: who is not there is passed over."""
        while True:
            try:
                return await call(self, 1.0)
            except CallRefused as refused:
                if refused.code != "UNAVAILABLE":
                    raise refused.error() from refused

    async def JoinConsumerGroup(self, request: Any, timeout: float) -> Any:  # noqa: ASYNC109, N802
        """See the API."""
        raise self._joins.pop(0)

    async def FetchMetadata(self, request: Any, timeout: float) -> Any:  # noqa: ASYNC109, N802
        """See the API."""
        place = api.ConsumerGroupMetadata(groupId="g", coordinator="b", epoch=7)
        return SimpleNamespace(groupMetadata=[place])

    async def at_broker(
        self, broker: str, call: Callable[[Any, float], Awaitable[Any]]
    ) -> api.FetchConsumerGroupAssignmentsResponse:
        """See ``GroupServers``: the coordinator assigns two partitions under epoch 6."""
        given = api.PartitionAssignment(stream="s", partitions=[0, 1])
        return api.FetchConsumerGroupAssignmentsResponse(epoch=6, assignments=[given])


def member_of(servers: Servers, *, id_is_new: bool = True) -> AsyncLiftConsumer:
    """Return a member that has not joined yet."""
    return AsyncLiftConsumer(
        cast("Any", servers),
        "g",
        ["s"],
        "c",
        auto_offset="earliest",
        checkpoint_s=None,
        poll_s=None,
        id_is_new=id_is_new,
    )


def join(servers: Servers, *, id_is_new: bool) -> tuple[str, int]:
    """Join; return the coordinator and the epoch that the member knows."""
    member = member_of(servers, id_is_new=id_is_new)
    asyncio.run(member._join())
    return member._member.coordinator, member._member.epoch


def test_a_join_that_has_counted_is_a_join() -> None:
    """The repeat is refused, because it is a member already."""
    assert join(Servers(LOST, MEMBER), id_is_new=True) == ("b", 7)


@pytest.mark.parametrize(
    ("joins", "id_is_new"), [([MEMBER], True), ([LOST, MEMBER], False), ([MEMBER], False)]
)
def test_a_member_of_the_same_name_is_an_error(joins: list[CallRefused], id_is_new: bool) -> None:
    """It may be another process: two of one name would process every message twice."""
    with pytest.raises(NotLeaderError):
        join(Servers(*joins), id_is_new=id_is_new)


def test_a_member_reads_under_the_epoch_that_gave_it_the_partition() -> None:
    """It may know of a newer epoch, in which the partition is another's: chaos saw both read."""

    async def live() -> tuple[int, int]:
        member = member_of(Servers())
        await member._fetch_assignments()
        await member._look_for_coordinator(LOST)
        for reader in member._member.readers.values():
            reader.task.cancel()
        return member._member.epoch, member._consumer().groupEpoch

    assert asyncio.run(live()) == (7, 6)


class TwoStreams(Servers):
    """Servers of the streams s and t with one partition each. ``deleted``: when s ends."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted = asyncio.Event()
        self.absent: set[str] = set()  # streams in which no cursor can be set
        self.cursors: dict[str, int] = {}

    async def at_broker(
        self, broker: str, call: Callable[[Any, float], Awaitable[Any]]
    ) -> api.FetchConsumerGroupAssignmentsResponse:
        """See ``GroupServers``."""
        given = [api.PartitionAssignment(stream=one, partitions=[0]) for one in "st"]
        return api.FetchConsumerGroupAssignmentsResponse(epoch=6, assignments=given)

    async def cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """See ``GroupServers``."""
        return None

    async def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        """See ``GroupServers``."""
        if stream in self.absent:
            raise UnknownStreamError(f"no stream is named {stream!r}", stream=stream)
        self.cursors[stream] = offset

    async def LeaveConsumerGroup(self, request: Any, timeout: float) -> Any:  # noqa: ASYNC109, N802
        """See the API."""

    async def follow(self, following: Any, consumer: object) -> AsyncIterator[Message]:
        """See ``GroupServers``: a message, then nothing, or the end of the stream."""
        yield Message(following.stream, 0, 41, 1, b"x")
        if following.stream == "s":
            await self.deleted.wait()
            raise UnknownStreamError("no stream is named 's'", stream="s")
        await asyncio.Event().wait()


def test_the_place_in_a_stream_that_has_ended_is_not_committed() -> None:
    """Another stream of its name may be there by now, whose records nobody has processed."""

    async def live() -> dict[str, int]:
        servers = TwoStreams()
        member = member_of(servers)
        await member._fetch_assignments()
        await anext(member)
        await anext(member)
        member.processed()
        servers.deleted.set()
        with pytest.raises(UnknownStreamError):
            await anext(member)
        assert await member.checkpoint() == {("t", 0): 41}
        await member.close()
        return servers.cursors

    assert asyncio.run(live()) == {"t": 41}


def test_a_place_that_the_servers_refuse_does_not_keep_the_others_from_being_set() -> None:
    """A stream is deleted before its reader has heard of it."""

    async def live() -> dict[str, int]:
        servers = TwoStreams()
        servers.absent.add("s")
        member = member_of(servers)
        await member._fetch_assignments()
        await anext(member)
        await anext(member)
        member.processed()
        assert await member.checkpoint() == {("t", 0): 41}
        await member.close()
        return servers.cursors

    assert asyncio.run(live()) == {"t": 41}


class Elections(TwoStreams):
    """Servers of a partition that loses its leader behind each message.

    ``starts``: where each reading began, as position and offset.
    """

    def __init__(self, position: int | None) -> None:
        super().__init__()
        self._position = position
        self.starts: list[tuple[int, int]] = []

    async def at_broker(
        self, broker: str, call: Callable[[Any, float], Awaitable[Any]]
    ) -> api.FetchConsumerGroupAssignmentsResponse:
        """See ``GroupServers``."""
        given = [api.PartitionAssignment(stream="s", partitions=[0])]
        return api.FetchConsumerGroupAssignmentsResponse(epoch=6, assignments=given)

    async def cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """See ``GroupServers``."""
        return self._position

    async def follow(self, following: Any, consumer: object) -> AsyncIterator[Message]:
        """See ``GroupServers``: the message at offset 41, 42, 43, and then a change of leader."""
        asked = following.request()
        self.starts.append((asked.startPosition, asked.startOffset))
        yield Message("s", 0, 40 + len(self.starts), 1, b"x")
        raise NotLeaderError("s/0 has another leader now", leader=None)


@pytest.mark.parametrize("cursor", [None, 20])
def test_a_member_goes_on_behind_what_it_has_read_after_an_election(cursor: int | None) -> None:
    """A start at "latest", or at the cursor, would drop messages or hand them out again."""

    async def live() -> tuple[list[tuple[int, int]], list[int]]:
        servers = Elections(cursor)
        member = member_of(servers)
        got = []
        for _ in range(3):
            await member._fetch_assignments()
            got.append((await asyncio.wait_for(anext(member), 10)).offset)
            await asyncio.wait([one.task for one in member._member.readers.values()])
        await member.close()
        return servers.starts, got

    offset = api.StartPosition.OFFSET
    first = (api.StartPosition.EARLIEST, 0) if cursor is None else (offset, cursor + 1)
    assert asyncio.run(live()) == ([first, (offset, 42), (offset, 43)], [41, 42, 43])


def test_a_new_stream_of_the_name_is_read_from_its_beginning() -> None:
    """Its offsets have nothing to do with those of the deleted stream."""

    async def live() -> list[int]:
        servers = TwoStreams()
        servers.deleted.set()
        member = member_of(servers)
        await member._fetch_assignments()
        first = member._member.readers["s", 0]
        await asyncio.wait([first.task])
        await member._fetch_assignments()
        second = member._member.readers["s", 0]
        places = [one.next_offset or 0 for one in (first, second)]
        await member.close()
        return places

    assert asyncio.run(live()) == [42, 0]
