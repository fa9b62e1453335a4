"""headwater.liftbridge on a running server: the calls, their errors, and both fronts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from broker.errors import (
    ConditionFailedError,
    InvalidRequestError,
    NoAnswerError,
    ShuttingDownError,
    StreamExistsError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from clusterkit.lift_brokers import LiftServer, lift_up
from clusterkit.lift_calls import new_name
from headwater.liftbridge import (
    AckPolicy,
    AsyncLiftbridge,
    Liftbridge,
    PublishAck,
    RoundRobin,
    Since,
    StreamOptions,
    Until,
    by_key,
)
from headwater.local.embedded import free_port

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftServer]:
    """Run `headwater up`."""
    with lift_up(tmp_path_factory.mktemp("client") / "data") as running:
        yield running


@pytest.fixture
def client(up: LiftServer) -> Iterator[Liftbridge]:
    """Give a client."""
    with Liftbridge(up.address) as made:
        yield made


def filled(client: Liftbridge, count: int = 10, partitions: int = 1) -> str:
    """Return a stream with messages 0 to count - 1 in partition 0."""
    stream = new_name()
    client.create_stream(stream, options=StreamOptions(partitions=partitions))
    sent = [client.publish_async(stream, b"%d" % number) for number in range(count)]
    assert [_offset(one.result()) for one in sent] == list(range(count))
    return stream


def _offset(ack: PublishAck | None) -> int:
    assert ack is not None
    return ack.offset


def test_streams_are_made_described_and_deleted(client: Liftbridge) -> None:
    """Errors have the classes that Headwater's own client has."""
    stream = new_name()
    client.create_stream(stream, f"{stream}.in", StreamOptions(partitions=2, min_isr=1))
    with pytest.raises(StreamExistsError):
        client.create_stream(stream, "other")
    with pytest.raises(InvalidRequestError):
        client.create_stream(new_name(), "a b")
    told = client.metadata(stream, "nobody")
    assert list(told.streams) == [stream]
    found = told.streams[stream]
    assert (found.subject, sorted(found.partitions)) == (f"{stream}.in", [0, 1])
    assert found.partitions[0].leader in told.brokers
    assert client.partition(stream, 1).newest_offset == -1
    client.delete_stream(stream)
    with pytest.raises(UnknownStreamError):
        client.delete_stream(stream)
    with pytest.raises(UnknownStreamError):
        client.partition(stream)


def test_a_message_comes_back_as_it_was(client: Liftbridge) -> None:
    """Key, value, headers, time, subject; a message without a key has none."""
    stream = filled(client, 0)
    ack = client.publish(stream, b"v", key=b"k", headers={"h": b"1"}, correlation_id="c")
    assert ack is not None
    assert (ack.stream, ack.offset, ack.correlation_id) == (stream, 0, "c")
    assert client.publish(stream, b"w", policy=AckPolicy.ALL) is not None
    assert client.publish(stream, b"x", policy=AckPolicy.NONE) is None
    with client.subscribe(stream, start=Since.earliest()) as messages:
        first, second, third = (next(messages) for _ in range(3))
    assert (first.key, first.value, first.headers["h"]) == (b"k", b"v", b"1")
    assert (first.stream, first.partition, first.subject) == (stream, 0, stream)
    assert abs(datetime.now(UTC).timestamp() - first.timestamp_ns / 1e9) < 600
    assert (second.key, third.value) == (None, b"x")


def test_refused_messages_are_errors_of_their_own(client: Liftbridge) -> None:
    """One message's error is no other one's; a call-back gets what the future has."""
    stream = new_name()
    client.create_stream(stream, options=StreamOptions(optimistic_concurrency=True))
    told: list[object] = []
    heard = threading.Semaphore(0)

    def note(ack: PublishAck | None, error: Exception | None) -> None:
        told.append((None if ack is None else ack.offset, type(error)))
        heard.release()

    client.publish_async(stream, b"0", expected_offset=0, callback=note)
    client.publish_async(stream, b"x", expected_offset=0, callback=note)
    client.publish_async(stream, b"1", callback=note)
    for _ in range(3):
        assert heard.acquire(timeout=60)
    kinds = [(0, type(None)), (None, ConditionFailedError), (1, type(None))]
    assert sorted(told, key=repr) == sorted(kinds, key=repr)
    with pytest.raises(UnknownPartitionError):
        client.publish("nobody", b"x")
    with pytest.raises(UnknownPartitionError):
        client.publish(stream, b"x", partition=7)
    with pytest.raises(InvalidRequestError):
        client.publish(stream, b"x" * (9 << 20))
    assert _offset(client.publish(stream, b"2")) == 2


def test_partitioners_choose(client: Liftbridge) -> None:
    """By key as Liftbridge's Go client does, by turns, and by a function of the caller."""
    stream = filled(client, 0, partitions=3)
    for number in range(6):
        client.publish(stream, b"r%d" % number, partitioner=RoundRobin())
    turns = RoundRobin()
    for number in range(3):
        client.publish(stream, b"t%d" % number, partitioner=turns)
    for _ in range(4):
        client.publish(stream, b"k", key=b"key", partitioner=by_key)
    client.publish(stream, b"mine", partitioner=lambda _stream, _key, _value, count: count - 1)
    read = {
        number: [one.value for one in client.subscribe(
            stream, number, start=Since.earliest(), stop=Until.latest())]
        for number in range(3)
    }  # fmt: skip
    assert read[0].count(b"t0") == read[1].count(b"t1") == read[2].count(b"t2") == 1
    assert read[by_key(stream, b"key", b"", 3)].count(b"k") == 4
    assert read[2][-1] == b"mine"


def test_subscriptions_begin_and_end_where_they_say(client: Liftbridge) -> None:
    """Five starts, four stops, and backwards."""
    stream = filled(client)
    every = list(client.subscribe(stream, start=Since.earliest(), stop=Until.latest()))
    assert [one.offset for one in every] == list(range(10))

    def read(start: Since, stop: Until, *, reverse: bool = False) -> list[int]:
        messages = client.subscribe(stream, start=start, stop=stop, reverse=reverse)
        return [one.offset for one in messages]

    assert read(Since.offset(4), Until.offset(6)) == [4, 5, 6]
    assert read(Since.latest(), Until.latest()) == [9]
    moment = every[3].timestamp_ns
    assert read(Since.time(moment), Until.latest())[-1] == 9
    assert read(Since.earliest(), Until.time(moment))[:4] == [0, 1, 2, 3]
    past = datetime.now(UTC) - timedelta(days=1)
    assert read(Since.time(past), Until.latest()) == list(range(10))
    assert read(Since.latest(), Until.never(), reverse=True) == list(range(9, -1, -1))
    with pytest.raises(ValueError, match="time zone"):
        Since.time(datetime(2026, 1, 1))  # noqa: DTZ001  # that is the mistake
    with pytest.raises(UnknownStreamError):
        next(client.subscribe("nobody"))


def test_new_messages_are_followed(client: Liftbridge) -> None:
    """What is published after the call comes, and what was there before does not."""
    stream = filled(client, 3)
    messages = client.subscribe(stream)
    got: list[bytes] = []
    waits = threading.Thread(target=lambda: got.append(next(messages).value))
    waits.start()
    while waits.is_alive():
        client.publish(stream, b"new")
        waits.join(0.05)
    assert got == [b"new"]
    client.delete_stream(stream)
    with pytest.raises(UnknownStreamError):
        list(messages)


def test_cursors(client: Liftbridge) -> None:
    """None while it was never set."""
    stream = filled(client, 0)
    assert client.cursor("c", stream, 0) is None
    client.set_cursor("c", stream, 0, 41)
    assert client.cursor("c", stream, 0) == 41


def test_a_group_shares_and_goes_on_behind_its_cursors(client: Liftbridge) -> None:
    """One member has everything; the next one begins behind what was processed."""
    stream, group = new_name(), new_name()
    client.create_stream(stream, options=StreamOptions(partitions=2))
    for number in range(20):
        client.publish(stream, b"%d" % number, partition=number % 2)
    with client.consumer(group, [stream], poll_s=0.1, checkpoint_s=None) as member:
        found = [next(member) for _ in range(20)]
        assert sorted(int(one.value) for one in found) == list(range(20))
        assert member.assigned == [(stream, 0), (stream, 1)]
        member.processed()
        assert member.checkpoint() == {(stream, 0): 9, (stream, 1): 9}
    client.publish(stream, b"20", partition=0)
    with client.consumer(group, [stream], poll_s=0.1) as member:
        assert next(member).value == b"20"
    assert client.cursor(f"__group:{group}", stream, 1) == 9
    again = client.consumer(group, [stream], poll_s=0.1)
    assert next(again).value == b"20", "the last message was handed out and not processed"
    again.close()
    assert list(again) == []


def test_asyncio(up: LiftServer) -> None:
    """Many messages under way, a subscription and a group, on one event loop."""

    async def main() -> None:
        stream, group = new_name(), new_name()
        async with AsyncLiftbridge([up.address]) as client:
            await client.create_stream(stream, options=StreamOptions(partitions=2))
            acks = await asyncio.gather(
                *(client.publish(stream, b"%d" % one, partition=one % 2) for one in range(200))
            )
            assert sorted(one.offset for one in acks if one) == sorted([*range(100)] * 2)
            messages = client.subscribe(stream, start=Since.earliest(), stop=Until.latest())
            assert [one.offset async for one in messages] == list(range(100))
            first = await client.consumer(group, [stream], poll_s=0.05)
            second = await client.consumer(group, [stream], poll_s=0.05)
            async with asyncio.timeout(60):
                while not (len(first.assigned) == len(second.assigned) == 1):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert first.assigned != second.assigned
            async with first, second:
                for member in (first, second):
                    (place,) = member.assigned
                    assert (await anext(member)).partition == place[1]

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_an_error_in_time() -> None:
    """It takes the connection and says nothing; the error names its address."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Liftbridge(address, timeout_s=0.5) as client,
            pytest.raises(NoAnswerError, match=f"no answer from {address}"),
        ):
            client.metadata()


def test_no_server_is_an_error_in_time() -> None:
    """Named by its class and its address; a closed client says that it is closed."""
    address = f"127.0.0.1:{free_port()}"
    with Liftbridge(address, timeout_s=0.5) as client:
        with pytest.raises(UnavailableError, match=f"no answer from {address}"):
            client.metadata()
        with pytest.raises(UnavailableError, match=address):
            client.publish("s", b"x")
        with pytest.raises(UnavailableError, match=address):
            next(client.subscribe("s", start=Since.earliest()))
    with pytest.raises(ShuttingDownError):
        client.metadata()
    with pytest.raises(ValueError, match="no address"):
        Liftbridge("")
