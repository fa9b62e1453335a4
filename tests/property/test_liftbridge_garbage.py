"""Bytes that no client sends: HTTP/2 frames, header blocks, messages, group calls, envelopes.

Each run is seeded; HEADWATER_FUZZ_SEEDS=200 makes more of them. Whatever comes, the connection
answers with a status, RST_STREAM or GOAWAY, raises nothing, and holds no more than its limits say.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest
from h2 import config, connection, events, exceptions

from broker.adapters.liftbridge.group_calls import GroupCalls
from broker.adapters.liftbridge.http2 import (
    CallOpened,
    ConnectionEnded,
    GrpcConnection,
    Http2Limits,
    MessagesArrived,
    prefixed,
)
from broker.adapters.liftbridge.statuses import OK, Code, Status, StatusError
from broker.adapters.liftbridge.stream_calls import StreamCalls
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.errors import EnvelopeError, HeadwaterError
from broker.wire.liftbridge import api_pb2 as api
from simkit.brokers.memory_broker import MemoryBroker

LIMITS: Final = Http2Limits(
    calls_max=20,
    header_bytes_max=4096,
    message_bytes_max=64 * 1024,
    partial_bytes_max=256 * 1024,
    window_bytes=128 * 1024,
    resets_max=50,
)
HEADERS: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/proto.API/Publish"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
]
SEEDS: Final = range(int(os.environ.get("HEADWATER_FUZZ_SEEDS") or 5))


class Pair:
    """A server's connection, and a client that h2 drives."""

    def __init__(self) -> None:
        self.server = GrpcConnection(LIMITS)
        self.server.start()
        self.client = connection.H2Connection(config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.ended = False
        self.exchange()

    def exchange(self) -> list[object]:
        """Let both ends hear each other once; return the server's events."""
        found = self.feed(self.client.data_to_send())
        self.hear()
        return found

    def feed(self, data: bytes) -> list[object]:
        """Give the server bytes; every message is used at once."""
        found: list[object] = list(self.server.receive(data))
        for one in found:
            if isinstance(one, MessagesArrived):
                self.server.used(one.call, sum(one.windows_bytes))
            self.ended = self.ended or isinstance(one, ConnectionEnded)
        return found

    def hear(self) -> list[events.Event]:
        """Give the client what the server sends."""
        with suppress(exceptions.ProtocolError):
            return self.client.receive_data(self.server.take_output())
        return []


def held_bytes(server: GrpcConnection) -> int:
    """Return what a connection holds of calls that run."""
    calls = server._calls.values()  # the promise is about what is held inside
    return sum(len(one.received) + one.waiting_bytes for one in calls)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some flipped, cut, doubled or inserted."""
    found = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        place = draw.randrange(len(found) + 1)
        match draw.randrange(4):
            case 0 if place < len(found):
                found[place] ^= 1 << draw.randrange(8)
            case 1:
                del found[place : place + draw.randrange(1, 20)]
            case 2:
                found[place:place] = draw.randbytes(draw.randrange(1, 20))
            case _:
                found[place:place] = found[place : place + draw.randrange(1, 40)]
    return bytes(found)


def talk(draw: random.Random) -> Iterator[bytes]:
    """Yield the bytes of a client that makes calls in order."""
    client = connection.H2Connection(config.H2Configuration(client_side=True))
    client.initiate_connection()
    yield client.data_to_send()
    for _ in range(draw.randrange(1, 8)):
        number = client.get_next_available_stream_id()
        client.send_headers(number, HEADERS)
        yield client.data_to_send()
        body = prefixed(
            api.PublishRequest(stream="s", value=draw.randbytes(50)).SerializeToString()
        )
        client.send_data(number, body, end_stream=draw.random() < 0.7)
        yield client.data_to_send()


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_frames(seed: int) -> None:
    """A talk with damage somewhere: an end by GOAWAY, or calls that are answered."""
    draw = random.Random(seed)  # seeded, to repeat it
    for _ in range(20):
        server = GrpcConnection(LIMITS)
        server.start()
        for part in talk(draw):
            data = mutated(part, draw) if draw.random() < 0.4 else part
            for one in server.receive(data):
                if isinstance(one, CallOpened) and draw.random() < 0.5:
                    server.finish(one.call, Status(Code.INTERNAL, "x"))
            assert held_bytes(server) <= LIMITS.partial_bytes_max
            server.take_output()


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_without_form(seed: int) -> None:
    """With and without the preface in front of them."""
    draw = random.Random(seed)  # seeded, to repeat it
    for _ in range(20):
        server = GrpcConnection(LIMITS)
        server.start()
        if draw.random() < 0.7:
            server.receive(next(talk(draw)))
        for _ in range(5):
            server.receive(draw.randbytes(draw.randrange(1, 500)))
            server.take_output()
        assert held_bytes(server) <= LIMITS.partial_bytes_max


def raw_frame(kind: int, flags: int, body: bytes) -> bytes:
    """Return a frame of HTTP/2 on stream 1."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + (1).to_bytes(4, "big") + body


def test_a_header_bomb_ends_the_connection() -> None:
    """A few bytes that name a large header again and again: HPACK's table against the receiver."""
    pair = Pair()
    large = [("x-bomb", "a" * 3000)]
    number = pair.client.get_next_available_stream_id()
    pair.client.send_headers(number, [*HEADERS, *large])
    pair.exchange()
    with suppress(exceptions.ProtocolError):
        number = pair.client.get_next_available_stream_id()
        pair.client.send_headers(number, [*HEADERS, *large * 2000])
    pair.exchange()
    assert pair.ended, "the list of headers is beyond its limit"
    assert held_bytes(pair.server) == 0


def test_endless_continuations_end_the_connection() -> None:
    """A header block that never ends is not collected for ever."""
    pair = Pair()
    pair.exchange()
    pair.feed(raw_frame(1, 0, b"\x00" * 10))
    for _ in range(200):
        pair.feed(raw_frame(9, 0, b"\x40\x01a\x7f\x81\x7d" + b"b" * 10_000))
        if pair.ended:
            break
    assert pair.ended


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_that_lie_about_their_length(seed: int) -> None:
    """Prefixes of any length over calls of any number: a status, and bounded memory."""
    draw = random.Random(seed)  # seeded, to repeat it
    pair = Pair()
    for _ in range(30):
        if pair.ended:
            break
        with suppress(exceptions.ProtocolError):
            number = pair.client.get_next_available_stream_id()
            pair.client.send_headers(number, HEADERS)
            length = draw.choice([0, 10, 1000, 60_000, LIMITS.message_bytes_max + 1, 2**32 - 1])
            body = bytes([draw.choice([0, 0, 0, 1, 255])]) + length.to_bytes(4, "big")
            body += b"x" * min(length, draw.randrange(20_000))
            for at in range(0, len(body), 10_000):
                pair.client.send_data(number, body[at : at + 10_000])
            match draw.randrange(3):
                case 0:
                    pair.client.end_stream(number)
                case 1:
                    pair.client.reset_stream(number)
        pair.exchange()
        assert held_bytes(pair.server) <= LIMITS.partial_bytes_max + LIMITS.message_bytes_max


def test_calls_that_are_opened_and_reset_are_counted() -> None:
    """The rapid reset: the connection ends long before it is work."""
    pair = Pair()
    for _ in range(3 * LIMITS.resets_max):
        if pair.ended:
            break
        number = pair.client.get_next_available_stream_id()
        pair.client.send_headers(number, HEADERS)
        pair.client.reset_stream(number)
        pair.exchange()
    assert pair.ended


def test_a_peer_that_reads_nothing_is_bounded_by_the_producer() -> None:
    """What its window does not take waits, and is told, so that nothing more is produced."""
    pair = Pair()
    number = pair.client.get_next_available_stream_id()
    pair.client.send_headers(number, HEADERS)
    pair.exchange()
    sent = 0
    while pair.server.waiting_bytes(number) < 256 * 1024:
        pair.server.send(number, b"x" * 32_768)
        sent += 32_768
        pair.server.take_output()
        assert sent < 1 << 20, "the window takes no more than it says"
    pair.client.reset_stream(number)
    pair.exchange()
    assert pair.server.waiting_bytes(number) == 0, "what waited for an abandoned call is dropped"
    pair.server.finish(number, OK)


@pytest.fixture(scope="module")
def calls() -> Iterator[dict[str, object]]:
    """Give the unary calls of a broker with a stream."""
    broker = MemoryBroker()
    streams, groups = StreamCalls(broker, advertised=lambda: "127.0.0.1:1"), GroupCalls(broker)
    yield {
        "create": streams.create,
        "delete": streams.delete,
        "metadata": lambda data: streams.fetch_metadata(data, lambda _, names: names),
        "partition": streams.fetch_partition_metadata,
        "set_cursor": groups.set_cursor,
        "fetch_cursor": groups.fetch_cursor,
        "join": groups.join,
        "leave": groups.leave,
        "assignments": groups.assignments,
        "report": groups.report,
    }
    broker.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_bodies_of_calls(seed: int, calls: dict[str, object]) -> None:
    """Random bytes, and damaged requests: an answer, or a typed error."""
    draw = random.Random(seed)  # seeded, to repeat it

    def text() -> str:
        return draw.choice(["", "s", "a.b", "\x00", "é" * 50, "x" * 5000])

    for _ in range(30):
        number = draw.choice([-(2**31), -1, 0, 1, 7, 2**31 - 1])
        requests = [
            api.CreateStreamRequest(name=text(), subject=text(), partitions=abs(number) % 9),
            api.FetchMetadataRequest(streams=[text()] * draw.randrange(4), groups=[text()]),
            api.FetchPartitionMetadataRequest(stream=text(), partition=number),
            api.SetCursorRequest(stream=text(), partition=number, cursorId=text(), offset=number),
            api.JoinConsumerGroupRequest(groupId=text(), consumerId=text(), streams=[text()]),
            api.FetchConsumerGroupAssignmentsRequest(groupId=text(), consumerId=text(), epoch=7),
        ]
        payload = draw.choice(requests).SerializeToString()
        if draw.random() < 0.5:
            payload = mutated(payload, draw) if payload else draw.randbytes(30)
        for call in calls.values():
            with suppress(StatusError, HeadwaterError):
                answer = call(payload)  # type: ignore[operator]
                assert isinstance(answer, bytes)


@pytest.mark.parametrize("seed", SEEDS)
def test_envelopes(seed: int) -> None:
    """Damaged ones are EnvelopeError, nothing else; their payload lies inside of them."""
    draw = random.Random(seed)  # seeded, to repeat it
    for _ in range(200):
        good = envelope.encode(
            EnvelopeKind.PUBLISH, draw.randbytes(40), checksum=draw.random() < 0.5
        )
        data = mutated(good, draw)
        with suppress(EnvelopeError):
            assert envelope.decode(data, EnvelopeKind.PUBLISH) in data
