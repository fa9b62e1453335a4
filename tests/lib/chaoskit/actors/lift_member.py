"""A member of a group of Liftbridge's API, with Headwater's client of that API.

Between the member and its client stands a layer that notes: when it asks for its position, under
which epoch it subscribes, which cursors it sets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from broker.errors import HeadwaterError, UnavailableError
from broker.wire.liftbridge import api_pb2 as api
from chaoskit.actors.notes import Notes
from chaoskit.actors.task import MemberTask
from headwater.client.group.calls import monotonic_ms
from headwater.liftbridge import AsyncLiftbridge, Message
from headwater.liftbridge.following import FollowedPartition
from headwater.liftbridge.groups import AsyncLiftConsumer

_POLL_S: Final = 0.5  # between requests for the assignments
_CHECKPOINT_S: Final = 0.5
_TURN_S: Final = 0.1
_AGAIN_S: Final = 0.3


def read_as_member(task: MemberTask, over: threading.Event) -> None:
    """Read until it is over."""
    asyncio.run(_read(task, over))


class _Given:
    """Messages that the application was given, noted range by range."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._ranges: dict[int, tuple[int, int, int]] = {}  # by partition: claim, start, end

    def add(self, partition: int, epoch: int, offset: int) -> None:
        before, start, end = self._ranges.get(partition, (epoch, offset, offset))
        if (before, end) != (epoch, offset):
            self.note()
            start = offset
        self._ranges[partition] = epoch, start, offset + 1

    def note(self) -> None:
        for partition, one in self._ranges.items():
            self._notes.given(partition, *one, at_ms=monotonic_ms())
        self._ranges.clear()


class _NotingServers:
    """Implements ``GroupServers`` by a client, and notes."""

    def __init__(self, client: AsyncLiftbridge, notes: Notes) -> None:
        self._client, self._notes = client, notes
        self.given = _Given(notes)
        self._epochs: dict[int, int] = {}  # by partition: of the newest message that was given
        self._received: dict[tuple[int, int], int] = {}  # by partition and offset: the epoch

    def hand(self, message: Message) -> None:
        """Note a message that the application was given."""
        epoch = self._received.pop((message.partition, message.offset))
        self._epochs[message.partition] = epoch
        self.given.add(message.partition, epoch, message.offset)

    async def anywhere(self, call: Callable[[Any, float], Awaitable[Any]]) -> Any:
        """See ``GroupServers``."""
        return await self._client.anywhere(call)

    async def at_broker(self, broker: str, call: Callable[[Any, float], Awaitable[Any]]) -> Any:
        """See ``GroupServers``."""
        return await self._client.at_broker(broker, call)

    async def cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """See ``GroupServers``: a reading begins, and an earlier one of the partition is over."""
        self.given.note()
        self._notes.asked(partition)
        self._notes.lost(partition, self._epochs.get(partition, 0))
        return await self._client.cursor(cursor, stream, partition)

    async def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        """See ``GroupServers``."""
        self.given.note()
        number = self._notes.sent(partition, self._epochs[partition], offset + 1)
        await self._client.set_cursor(cursor, stream, partition, offset)
        self._notes.confirmed([number])

    async def follow(
        self, following: FollowedPartition, consumer: Callable[[], api.Consumer] | None
    ) -> AsyncIterator[Message]:
        """See ``GroupServers``."""
        assert consumer is not None, "it reads as a member"
        epoch = 0

        def told() -> api.Consumer:
            nonlocal epoch
            found = consumer()
            epoch = epoch or found.groupEpoch  # a reading goes on where it was, at any later epoch
            return found

        async for message in self._client.follow(following, told):
            self._received[message.partition, message.offset] = epoch
            yield message


async def _read(task: MemberTask, over: threading.Event) -> None:
    notes = Notes(Path(task.notes))
    async with task.login.async_liftbridge(task.addresses) as client:
        servers = _NotingServers(client, notes)
        consumer = AsyncLiftConsumer(
            servers,
            task.group,
            [task.stream],
            task.process,
            auto_offset="earliest",
            checkpoint_s=_CHECKPOINT_S,
            poll_s=_POLL_S,
            id_is_new=True,
        )
        if await _joined(consumer, over):
            await _consume(consumer, servers, over)
    notes.close()


async def _joined(consumer: AsyncLiftConsumer, over: threading.Event) -> bool:
    """Join once a server answers; False: it is over."""
    while not over.is_set():
        with suppress(UnavailableError):
            await consumer.join()
            return True
        await asyncio.sleep(_AGAIN_S)
    return False


async def _consume(
    consumer: AsyncLiftConsumer, servers: _NotingServers, over: threading.Event
) -> None:
    waiting: asyncio.Task[Message] | None = None
    while not over.is_set():
        if waiting is None:
            waiting = asyncio.ensure_future(anext(consumer))
        done, _ = await asyncio.wait({waiting}, timeout=_TURN_S)
        if done:
            servers.hand(waiting.result())
            waiting = None
        else:
            servers.given.note()
    servers.given.note()
    with suppress(HeadwaterError):
        await consumer.close()
    if waiting is not None:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
