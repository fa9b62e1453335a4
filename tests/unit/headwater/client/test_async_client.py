"""Coroutines that are cancelled: sends keep their order, and nothing stays open unseen."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, cast

import pytest

from broker.errors import InvalidRequestError
from headwater.client.async_client import AsyncClient, AsyncProducer
from headwater.client.client import Client
from headwater.client.partitioned_producer import PartitionedProducer

WAIT_S = 20.0
_TURNS = 20


class Slow:
    """A producer in whose ``send`` the first batch waits, as for room or for a connection."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.order: list[int] = []

    def send(self, records: list[int]) -> Future[dict[int, Any]]:
        """Note the batch, and answer for it at once."""
        if records == [0]:
            self.begun.set()
            assert self.goes_on.wait(WAIT_S)
        if records == [-1]:
            raise InvalidRequestError("not a record")
        self.order += records
        done: Future[dict[int, Any]] = Future()
        done.set_result({0: records[0]})
        return done


async def others_had_their_turn() -> None:
    """Let every coroutine go on, and every thread that one has begun."""
    for _ in range(_TURNS):
        await asyncio.to_thread(int)


def producer_over(slow: Slow) -> AsyncProducer:
    """Return the producer of coroutines."""
    return AsyncProducer(cast(PartitionedProducer, slow))


def test_sends_keep_the_order_in_which_they_were_begun() -> None:
    """Also if the first one waits for a long time."""
    slow = Slow()

    async def program() -> list[Any]:
        producer = producer_over(slow)
        sends = [asyncio.create_task(producer.send(cast(Any, [n]))) for n in range(8)]
        await asyncio.to_thread(slow.begun.wait, WAIT_S)
        await others_had_their_turn()
        slow.goes_on.set()
        return await asyncio.gather(*sends)

    assert asyncio.run(program()) == [{0: n} for n in range(8)]
    assert slow.order == list(range(8))


def test_a_cancelled_send_is_not_overtaken_by_the_next_one() -> None:
    """Its thread goes on; a send that is cancelled before its turn sends nothing."""
    slow = Slow()

    async def program() -> None:
        producer = producer_over(slow)
        sends = [asyncio.create_task(producer.send(cast(Any, [n]))) for n in range(3)]
        await asyncio.to_thread(slow.begun.wait, WAIT_S)
        for one in sends[:2]:
            one.cancel()
        await others_had_their_turn()
        assert not sends[2].done()
        assert slow.order == []
        slow.goes_on.set()
        assert cast(Any, await sends[2]) == {0: 2}
        for one in sends[:2]:
            with pytest.raises(asyncio.CancelledError):
                await one

    asyncio.run(program())
    assert slow.order == [0, 2]


def test_a_send_that_is_refused_lets_the_next_one_in() -> None:
    """The error is that of its own batch."""
    slow = Slow()

    async def program() -> None:
        producer = producer_over(slow)
        with pytest.raises(InvalidRequestError):
            await producer.send(cast(Any, [-1]))
        assert cast(Any, await producer.send(cast(Any, [1]))) == {0: 1}

    asyncio.run(program())
    assert slow.order == [1]


class Opening:
    """A client whose consumers take long to open, and note that they are closed."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.closed = threading.Event()

    def consume(self, *_: Any, **__: Any) -> Opening:
        """Wait, as for a broker."""
        self.begun.set()
        assert self.goes_on.wait(WAIT_S)
        return self

    consumer = consume

    def close(self, **_: Any) -> None:
        """Note it."""
        self.closed.set()


@pytest.mark.parametrize("kind", ["consume", "consumer"])
def test_a_consumer_that_nobody_waits_for_any_more_is_closed(kind: str) -> None:
    """A member that nobody reads from would keep its partitions from the group."""
    opening = Opening()

    async def program() -> None:
        client = AsyncClient("grpc://127.0.0.1:1")
        client.client = cast(Client, opening)

        async def read() -> None:
            async with (
                client.consume("s") if kind == "consume" else client.consumer("s", group="g")
            ):
                pytest.fail("nobody waits for it")

        reading = asyncio.create_task(read())
        await asyncio.to_thread(opening.begun.wait, WAIT_S)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not opening.closed.is_set()
        opening.goes_on.set()
        assert await asyncio.to_thread(opening.closed.wait, WAIT_S)

    asyncio.run(program())
