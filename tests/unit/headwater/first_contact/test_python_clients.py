"""Issue 11, item 15: all partitions in one consumer, asyncio, and a read without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import headwater
from broker.errors import OffsetOutOfRangeError, ShuttingDownError, UnknownStreamError
from broker.model.partitioner import partition_of_key
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker

KEYS = [f"k{number}" for number in range(30)]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """Return a client with a stream of three partitions and thirty records."""
    with Client(address) as found:
        found.create_stream("s", partitions=3)
        with found.partitioned_producer("s") as producer:
            producer.send([{"key": key, "value": key} for key in KEYS]).result(10)
        yield found


def _values(consumed: headwater.Consumed) -> list[bytes]:
    values: list[bytes] = consumed.fetched.batch.column("value").to_pylist()
    return values


def test_one_consumer_reads_every_partition(client: Client) -> None:
    """Every record once, with its partition; positions go on where it ended."""
    seen: dict[int, list[str]] = {}
    with client.consume("s") as consumer:
        for one in consumer:
            seen.setdefault(one.partition, []).extend(value.decode() for value in _values(one))
    assert seen == {
        number: [key for key in KEYS if partition_of_key(key.encode(), 3) == number]
        for number in range(3)
    }
    assert consumer.positions == {number: len(keys) for number, keys in seen.items()}
    with client.partitioned_producer("s") as producer:
        producer.send([{"key": "k1", "value": b"new"}]).result(10)
    with client.consume("s", consumer.positions, columns=["value"]) as again:
        assert [value for one in again for value in _values(one)] == [b"new"]


def test_a_consumer_that_follows_ends_when_it_is_closed(client: Client) -> None:
    """Another thread may close it, too, and no call hangs."""
    with client.consume("s", follow=True) as consumer:
        count = 0
        while count < len(KEYS):
            count += len(_values(next(consumer)))
        closing = threading.Timer(0.05, consumer.close)
        closing.start()
        assert list(consumer) == []
        closing.join()


def test_an_error_of_a_partition_ends_the_consumer(client: Client) -> None:
    """It is raised where the rows are taken."""
    with client.consume("s", {0: 999}) as consumer, pytest.raises(OffsetOutOfRangeError):
        list(consumer)


def test_coroutines_produce_and_consume(address: str, broker: MemoryBroker) -> None:
    """Many sends wait at a time; a consumer is an asynchronous iterator."""

    async def story() -> tuple[int, set[bytes]]:
        async with headwater.AsyncClient(address) as client:
            await client.create_stream("a", partitions=2)
            with pytest.raises(UnknownStreamError):
                await client.stream("absent")
            async with client.producer("a") as producer:
                sends = [producer.send([{"key": key, "value": key}]) for key in KEYS]
                results = await asyncio.gather(*sends)
            values: set[bytes] = set()
            async with client.consume("a", follow=True) as rows:
                async for one in rows:
                    values.update(_values(one))
                    if len(values) == len(KEYS):
                        break
            described = await client.describe("a")
            assert [one.name for one in await client.streams()] == ["a"]
            assert described.records_count == sum(len(result) for result in results)
            return described.records_count, values

    assert asyncio.run(story()) == (len(KEYS), {key.encode() for key in KEYS})
    assert broker.partitions.handle("a", 0).high_watermark > 0


def test_read_without_spark_is_one_call(client: Client, address: str) -> None:
    """Rows and their certificate; at an earlier moment; the newest of each key."""
    rows, proof = headwater.read_table("s", server=address)
    assert (rows.num_rows, proof.records_count) == (30, 30)
    with client.partitioned_producer("s") as producer:
        producer.send([{"key": "k1", "value": b"new"}]).result(10)
    newest, _ = headwater.read_table("s", columns=["key", "value"], latest=True, server=address)
    found = dict(
        zip(newest.column("key").to_pylist(), newest.column("value").to_pylist(), strict=True)
    )
    assert newest.column_names == ["key", "value"]
    assert (len(found), found[b"k1"]) == (30, b"new")
    before, proof = headwater.read_table("s", as_of=dict.fromkeys(range(3), 1), server=address)
    assert (before.num_rows, proof.records_count) == (3, 3)
    client.create_stream("empty")
    nothing, _ = headwater.read_table("empty", columns=["value"], server=address)
    assert (nothing.num_rows, nothing.column_names) == (0, ["value"])


def test_a_producer_is_closed_more_than_once(client: Client) -> None:
    """A clean-up may close again what is closed: nothing is raised, nothing more is sent."""
    client.create_stream("orders", partitions=2)
    producer = client.partitioned_producer("orders")
    producer.send([{"key": b"%d" % number, "value": b"v"} for number in range(8)]).result(30)
    single = client.producer("orders", 0)
    single.send([b"v"]).result(30)
    for one in (producer, single):
        one.close()
        one.close()
        one.flush()  # nothing is unsettled
        with pytest.raises(ShuttingDownError):
            one.send([b"v"])
