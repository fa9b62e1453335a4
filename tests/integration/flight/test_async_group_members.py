"""Members of consumer groups in coroutines, over Flight: nothing is skipped by a cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import headwater
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.errors import InvalidRequestError
from headwater.client import Client, GroupConsumer
from simkit.brokers.memory_broker import MemoryBroker

pytestmark = pytest.mark.integration

WAIT_S = 60.0


@pytest.fixture
def address() -> Iterator[str]:
    """Give the address of a service with stream s of one partition."""
    broker = MemoryBroker()
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0, idle_check_ms=20))
    service.start()
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s", tiering=False)
    yield f"127.0.0.1:{service.port}"
    assert service.close(timeout_ms=10_000)
    broker.close()


def send(address: str, *values: bytes) -> None:
    """Store records."""
    with Client(address) as client, client.producer("s") as producer:
        producer.send(list(values)).result(WAIT_S)


def until_given(consumer: GroupConsumer) -> None:
    """Wait until a call that was abandoned has taken a record."""
    deadline = time.monotonic() + WAIT_S
    while not consumer.positions:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def position(address: str) -> int | None:
    """Return the group's position."""
    with Client(address) as client:
        (told,) = client.describe_group("g").partitions
        return told.offset


def test_a_coroutine_reads_as_a_member(address: str) -> None:
    """Records, a commit, an end: the position is behind what was processed."""

    async def story() -> list[bytes | None]:
        found = []
        async with (
            headwater.AsyncClient(address) as client,
            client.consumer("s", group="g", commit_ms=None) as consumer,
        ):
            async for record in consumer:
                found.append(record.value)
                if len(found) == 3:
                    break
            await consumer.commit()
        return found

    send(address, b"a", b"b", b"c", b"d")
    assert asyncio.run(story()) == [b"a", b"b", b"c"]
    assert position(address) == 3


@pytest.mark.parametrize("how", ["poll", "iteration"])
def test_a_cancelled_read_leaves_its_records_to_the_next(address: str, how: str) -> None:
    """What arrives after the cancellation is returned, and not committed before."""

    async def story() -> bytes | None:
        async with (
            headwater.AsyncClient(address) as client,
            client.consumer("s", group="g", commit_ms=50) as consumer,
        ):

            async def read() -> bytes | None:
                if how == "iteration":
                    return (await anext(aiter(consumer))).value
                batch = await consumer.poll(None)
                assert batch is not None
                values: list[bytes] = batch.rows.column("value").to_pylist()
                return values[0]

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(), 0.3)
            await asyncio.to_thread(send, address, b"a")
            with pytest.raises(InvalidRequestError):
                await consumer.commit()
            return await asyncio.wait_for(read(), WAIT_S)

    assert asyncio.run(story()) == b"a"
    assert position(address) == 1


def test_an_end_after_a_cancelled_read_commits_nothing_that_nobody_was_given(address: str) -> None:
    """The next member is given it."""

    async def story() -> None:
        async with (
            headwater.AsyncClient(address) as client,
            client.consumer("s", group="g", commit_ms=50) as consumer,
        ):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(None), 0.3)
            await asyncio.to_thread(send, address, b"a")
            await asyncio.to_thread(until_given, consumer.consumer)

    asyncio.run(story())
    with Client(address) as client, client.consumer("s", group="g") as consumer:
        assert next(iter(consumer)).value == b"a"
