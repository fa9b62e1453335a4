"""What users of ``headwater.liftbridge`` write, for ``mypy --strict``. Nothing here is run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from typing import assert_type

from broker.errors import HeadwaterError
from headwater.liftbridge import (
    AckPolicy,
    AsyncLiftbridge,
    AsyncLiftConsumer,
    Liftbridge,
    LiftConsumer,
    Message,
    Metadata,
    PartitionDescription,
    PublishAck,
    RoundRobin,
    Since,
    StreamOptions,
    Tls,
    Until,
    by_key,
)


def heard(ack: PublishAck | None, error: HeadwaterError | None) -> None:
    """Take an outcome."""


def synchronous() -> None:
    """The calls of the synchronous client."""
    with Liftbridge(["a:9292", "b:9292"], tls=Tls(ca_file="ca.pem"), resend=True) as client:
        client.create_stream("s", options=StreamOptions(partitions=4, compact=True))
        assert_type(client.metadata("s"), Metadata)
        assert_type(client.partition("s", 1), PartitionDescription)
        assert_type(client.publish("s", b"v", key=b"k", partitioner=by_key), PublishAck | None)
        sent = client.publish_async("s", b"v", partitioner=RoundRobin(), callback=heard)
        assert_type(sent, Future[PublishAck | None])
        client.publish("s", b"v", policy=AckPolicy.ALL, expected_offset=7)
        for message in client.subscribe("s", start=Since.offset(3), stop=Until.latest()):
            assert_type(message, Message)
        assert_type(client.cursor("c", "s", 0), int | None)
        with client.consumer("g", ["s"], auto_offset="latest") as member:
            assert_type(member, LiftConsumer)
            assert_type(next(member), Message)
            assert_type(member.checkpoint(), Mapping[tuple[str, int], int])
        client.publish("s", "text")  # type: ignore[arg-type]
        client.consumer("g", ["s"], auto_offset="oldest")  # type: ignore[arg-type]


async def asynchronous() -> None:
    """Those of the client for asyncio."""
    async with AsyncLiftbridge("a:9292,b:9292") as client:
        assert_type(await client.publish("s", b"v"), PublishAck | None)
        assert_type(client.subscribe("s"), AsyncIterator[Message])
        member = await client.consumer("g", ["s"])
        assert_type(member, AsyncLiftConsumer)
        assert_type(await anext(member), Message)
