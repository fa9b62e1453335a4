"""Liftbridge's API as a foreign gRPC client meets it: grpcio, over real connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from simkit.brokers.memory_broker import MemoryBroker

pytestmark = pytest.mark.integration

WAIT_S = 60.0
Call = Callable[..., Any]


@dataclass
class Server:
    """A running service, the broker behind it, and a client."""

    broker: MemoryBroker
    service: LiftbridgeService
    stub: APIStub
    channel: grpc.Channel

    def publish(self, value: bytes, **fields: object) -> wire.Ack:
        """Publish one message to stream s and return its ack."""
        request = api.PublishRequest(stream="s", value=value, **fields)  # type: ignore[arg-type]
        ack: wire.Ack = self.stub.Publish(request, timeout=WAIT_S).ack
        return ack

    def read(self, **fields: object) -> list[wire.Message]:
        """Return what a subscription to stream s sends before it ends, without the first message.

        The subscription has to end by itself.
        """
        request = api.SubscribeRequest(stream="s", **fields)  # type: ignore[arg-type]
        call = self.stub.Subscribe(request, timeout=WAIT_S)
        found = []
        with pytest.raises(grpc.RpcError) as ended:
            found.extend(call)
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert found[0] == wire.Message(), "the first message has to be empty"
        return found[1:]


@pytest.fixture
def server() -> Iterator[Server]:
    """Give a service with an empty stream s of one partition on subject foo."""
    broker = MemoryBroker()
    service = LiftbridgeService(broker, broker.clock, LiftbridgeServiceConfig(port=0))
    service.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{service.port}")
    broker.create("s", StreamConfig(subject="foo"))
    stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
    yield Server(broker, service, stub, channel)
    channel.close()
    assert service.close(timeout_ms=10_000)
    broker.close()


def code_of(call: Call, request: object) -> grpc.StatusCode:
    """Return the status with which a call is refused; a stream of answers is read to its end."""
    with pytest.raises(grpc.RpcError) as refused:
        for _ in call(request, timeout=WAIT_S):
            pass
    code: grpc.StatusCode = refused.value.code()
    return code


def filled(server: Server, count: int = 10) -> None:
    """Publish messages 0 to count - 1, a second after one another."""
    for number in range(count):
        server.broker.clock.advance(us=1_000_000)
        assert server.publish(str(number).encode()).offset == number


# ---------------------------------------------------------------------------- streams


def test_a_stream_is_created_described_and_deleted(server: Server) -> None:
    """The life of a stream; its name is unique whatever its subject."""
    server.stub.CreateStream(
        api.CreateStreamRequest(name="t", subject="bar.*", partitions=1), timeout=WAIT_S
    )
    again = api.CreateStreamRequest(name="t", subject="other")
    assert code_of(server.stub.CreateStream, again) is grpc.StatusCode.ALREADY_EXISTS
    told = server.stub.FetchMetadata(api.FetchMetadataRequest(streams=["t", "no"]), timeout=WAIT_S)
    found = {one.name: one for one in told.streamMetadata}
    assert found["t"].subject == "bar.*"
    assert list(found["t"].partitions) == [0]
    assert found["t"].partitions[0].leader == told.brokers[0].id
    assert found["t"].creationTimestamp > 0
    assert found["no"].error == api.StreamMetadata.UNKNOWN_STREAM
    assert (told.brokers[0].host, told.brokers[0].port) == ("127.0.0.1", server.service.port)
    assert (told.brokers[0].partitionCount, told.brokers[0].leaderCount) == (2, 2)
    server.stub.DeleteStream(api.DeleteStreamRequest(name="t"), timeout=WAIT_S)
    gone = api.DeleteStreamRequest(name="t")
    assert code_of(server.stub.DeleteStream, gone) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (api.CreateStreamRequest(subject="x"), grpc.StatusCode.INVALID_ARGUMENT),
        (api.CreateStreamRequest(name="x"), grpc.StatusCode.INVALID_ARGUMENT),
        (api.CreateStreamRequest(name="x", subject="a b"), grpc.StatusCode.INVALID_ARGUMENT),
        (api.CreateStreamRequest(name="x", subject="a..b"), grpc.StatusCode.INVALID_ARGUMENT),
        (
            api.CreateStreamRequest(name="__cursors", subject="x"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            api.CreateStreamRequest(name="x", subject="x", replicationFactor=2),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            api.CreateStreamRequest(name="x", subject="x", replicationFactor=-2),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    server: Server, request_: api.CreateStreamRequest, code: grpc.StatusCode
) -> None:
    """Refused: no name, bad subjects, reserved names, too many replicas, unsupported settings."""
    assert code_of(server.stub.CreateStream, request_) is code


# ---------------------------------------------------------------------------- publishing


def test_publish_answers_with_the_offset(server: Server) -> None:
    """Key, headers and correlation id come back; each ack policy is served."""
    ack = server.publish(b"a", key=b"k", headers={"h": b"1"}, correlationId="c")
    assert (ack.offset, ack.correlationId, ack.partitionSubject) == (0, "c", "foo")
    assert ack.receptionTimestamp > 0
    assert ack.commitTimestamp >= ack.receptionTimestamp
    assert server.publish(b"b", ackPolicy=wire.ALL).offset == 1
    server.publish(b"c", ackPolicy=wire.NONE)
    assert server.publish(b"d").offset == 3
    first = server.read(startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)[0]
    assert (first.key, first.value) == (b"k", b"a")
    assert dict(first.headers) == {"h": b"1", "subject": b"foo", "reply": b""}
    assert (first.stream, first.partition, first.subject) == ("s", 0, "foo")
    assert first.timestamp == server.broker.clock.now_us() * 1000


def test_publish_to_what_is_not_there_is_refused(server: Server) -> None:
    """Streams and partitions."""
    unknown = api.PublishRequest(stream="no", value=b"x")
    assert code_of(server.stub.Publish, unknown) is grpc.StatusCode.NOT_FOUND
    partition = api.PublishRequest(stream="s", partition=1, value=b"x")
    assert code_of(server.stub.Publish, partition) is grpc.StatusCode.NOT_FOUND
    unnamed = api.PublishRequest(value=b"x")
    assert code_of(server.stub.Publish, unnamed) is grpc.StatusCode.INVALID_ARGUMENT


def test_publish_async_answers_each_message_and_outlives_errors(server: Server) -> None:
    """A bad message is one answer; the messages behind it are stored; half-close ends the call."""
    requests = [
        api.PublishRequest(stream="s", value=b"0", correlationId="0"),
        api.PublishRequest(stream="no", value=b"x", correlationId="1"),
        api.PublishRequest(stream="s", value=b"x" * (9 << 20), correlationId="2"),
        api.PublishRequest(stream="s", value=b"1", correlationId="3", ackPolicy=wire.NONE),
        api.PublishRequest(stream="s", value=b"2", correlationId="4"),
        api.PublishRequest(stream="s", partition=7, value=b"2", correlationId="5"),
    ]
    answers = list(server.stub.PublishAsync(iter(requests), timeout=WAIT_S))
    told = {one.correlationId: one for one in answers}
    assert sorted(told) == ["0", "1", "2", "4", "5"]
    assert (told["0"].ack.offset, told["4"].ack.offset) == (0, 2)
    assert not told["0"].HasField("asyncError")
    error = api.PublishAsyncError
    assert told["1"].asyncError.code == error.NOT_FOUND
    assert told["1"].HasField("ack")
    assert told["1"].ack.correlationId == ""
    assert told["2"].asyncError.code == error.BAD_REQUEST
    assert told["5"].asyncError.code == error.NOT_FOUND


MIB = 1 << 20


def test_a_stream_made_here_takes_messages_of_one_mebibyte(server: Server) -> None:
    """As Liftbridge by default: so a subscriber with gRPC's default limit gets each of them."""
    server.stub.CreateStream(api.CreateStreamRequest(name="o", subject="o"), timeout=WAIT_S)
    beside = {"stream": "o", "key": b"k", "headers": {"h": b"1"}}
    largest = api.PublishRequest(value=b"x" * (MIB - 3), **beside)  # type: ignore[arg-type]
    assert server.stub.Publish(largest, timeout=WAIT_S).ack.offset == 0
    for larger in (
        api.PublishRequest(value=b"x" * (MIB - 2), **beside),  # type: ignore[arg-type]
        api.PublishRequest(value=b"x" * (MIB + 1), stream="o"),
    ):
        assert code_of(server.stub.Publish, larger) is grpc.StatusCode.INVALID_ARGUMENT
        (told,) = server.stub.PublishAsync(iter([larger]), timeout=WAIT_S)
        assert told.asyncError.code == api.PublishAsyncError.BAD_REQUEST
    call = server.stub.Subscribe(
        api.SubscribeRequest(stream="o", startPosition=api.EARLIEST), timeout=WAIT_S
    )
    assert next(call) == wire.Message()
    assert next(call).value == largest.value
    call.cancel()


def test_a_larger_message_ends_the_subscription_of_a_client_with_grpcs_limit(
    server: Server,
) -> None:
    """In a stream that takes it, made elsewhere; a client with a higher limit reads on."""
    large = b"x" * (5 * MIB)
    server.publish(large)
    server.publish(b"next")
    request = api.SubscribeRequest(stream="s", startPosition=api.EARLIEST)
    assert code_of(server.stub.Subscribe, request) is grpc.StatusCode.RESOURCE_EXHAUSTED
    address = f"127.0.0.1:{server.service.port}"
    options = [("grpc.max_receive_message_length", 9 * MIB)]
    with grpc.insecure_channel(address, options=options) as channel:
        stub: Any = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
        call = stub.Subscribe(request, timeout=WAIT_S)
        assert [next(call).value for _ in range(3)] == [b"", large, b"next"]
        call.cancel()


def test_expected_offsets_are_checked_where_the_stream_says_so(server: Server) -> None:
    """Each message names its expected offset, -1 for any; other streams ignore it."""
    server.publish(b"any", expectedOffset=9)
    server.stub.CreateStream(
        api.CreateStreamRequest(
            name="o", subject="o", optimisticConcurrencyControl=api.NullableBool(value=True)
        ),
        timeout=WAIT_S,
    )

    def asked(expected: int, **fields: Any) -> api.PublishRequest:
        return api.PublishRequest(stream="o", value=b"x", expectedOffset=expected, **fields)

    assert server.stub.Publish(asked(0), timeout=WAIT_S).ack.offset == 0
    assert code_of(server.stub.Publish, asked(0)) is grpc.StatusCode.FAILED_PRECONDITION
    requests = [
        asked(1, correlationId="right"),
        asked(1, correlationId="wrong"),
        asked(-1, correlationId="any"),
        asked(3, correlationId="next"),
        asked(-1, correlationId="none", ackPolicy=wire.NONE),
    ]
    answers = server.stub.PublishAsync(iter(requests), timeout=WAIT_S)
    told = {one.correlationId: one for one in answers}
    assert [told[one].ack.offset for one in ("right", "any", "next")] == [1, 2, 3]
    assert told["wrong"].asyncError.code == api.PublishAsyncError.INCORRECT_OFFSET
    assert told["none"].asyncError.code == api.PublishAsyncError.BAD_REQUEST


def test_publish_async_moves_many_messages(server: Server) -> None:
    """More messages than a window holds arrive in order."""
    count = 5_000
    requests = (
        api.PublishRequest(stream="s", value=b"%06d" % number + b"x" * 1000)
        for number in range(count)
    )
    offsets = [one.ack.offset for one in server.stub.PublishAsync(requests, timeout=WAIT_S * 3)]
    assert offsets == list(range(count))
    found = server.read(startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)
    assert [one.offset for one in found] == offsets
    assert all(int(one.value[:6]) == one.offset for one in found)


# ---------------------------------------------------------------------------- subscribing


def test_subscriptions_start_where_they_say(server: Server) -> None:
    """The five starts on ten records; offsets outside of the log are moved into it."""
    filled(server)
    first_ns = server.read(startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)[0].timestamp

    def starts(**fields: object) -> list[int]:
        return [one.offset for one in server.read(stopPosition=api.STOP_LATEST, **fields)]

    assert starts(startPosition=api.OFFSET, startOffset=4) == [4, 5, 6, 7, 8, 9]
    assert starts(startPosition=api.OFFSET, startOffset=-5) == list(range(10))
    assert starts(startPosition=api.LATEST) == [9]
    fourth = first_ns + 4_000_000_000
    assert starts(startPosition=api.TIMESTAMP, startTimestamp=fourth)[0] == 4
    assert starts(startPosition=api.TIMESTAMP, startTimestamp=fourth + 1)[0] == 5
    behind = api.SubscribeRequest(
        stream="s", startPosition=api.NEW_ONLY, stopPosition=api.STOP_LATEST
    )
    assert code_of(server.stub.Subscribe, behind) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("position", [api.NEW_ONLY, api.OFFSET])
def test_a_subscription_waits_for_new_records(server: Server, position: int) -> None:
    """An offset beyond the log is the next record that is committed, as in Liftbridge."""
    filled(server)
    call = server.stub.Subscribe(
        api.SubscribeRequest(stream="s", startPosition=position, startOffset=100),  # type: ignore[arg-type]
        timeout=WAIT_S,
    )
    assert next(call) == wire.Message()
    server.publish(b"new")
    assert next(call).offset == 10
    call.cancel()


def test_subscriptions_stop_where_they_say(server: Server) -> None:
    """Offset, latest, time; a stop in the future waits; an empty stream has no latest."""
    nothing = api.SubscribeRequest(stream="s", stopPosition=api.STOP_LATEST)
    assert code_of(server.stub.Subscribe, nothing) is grpc.StatusCode.RESOURCE_EXHAUSTED
    filled(server)
    everything = server.read(startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)

    def stops(**fields: object) -> list[int]:
        return [one.offset for one in server.read(startPosition=api.EARLIEST, **fields)]

    assert stops(stopPosition=api.STOP_OFFSET, stopOffset=5) == [0, 1, 2, 3, 4, 5]
    third = everything[3].timestamp
    assert stops(stopPosition=api.STOP_TIMESTAMP, stopTimestamp=third) == [0, 1, 2, 3]
    assert stops(stopPosition=api.STOP_TIMESTAMP, stopTimestamp=third - 1) == [0, 1, 2]
    below = api.SubscribeRequest(
        stream="s",
        startPosition=api.OFFSET,
        startOffset=5,
        stopPosition=api.STOP_OFFSET,
        stopOffset=4,
    )
    assert code_of(server.stub.Subscribe, below) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_subscription_reads_backwards(server: Server) -> None:
    """The records come from the newest down to the oldest, and then the subscription ends."""
    filled(server)
    found = server.read(startPosition=api.LATEST, reverse=True)
    assert [one.offset for one in found] == list(range(9, -1, -1))
    part = server.read(
        startPosition=api.OFFSET,
        startOffset=6,
        stopPosition=api.STOP_OFFSET,
        stopOffset=3,
        reverse=True,
    )
    assert [one.offset for one in part] == [6, 5, 4, 3]


def test_a_subscription_reads_what_is_only_in_the_table(server: Server) -> None:
    """Forwards and backwards across the seam."""
    filled(server)
    server.broker.flush("s", timeout_ms=1000)
    server.broker.clock.advance(us=1_000_000)
    assert server.publish(b"10").offset == 10
    forwards = server.read(startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)
    assert [int(one.value) for one in forwards] == list(range(11))
    backwards = server.read(startPosition=api.LATEST, reverse=True)
    assert backwards == forwards[::-1]
    assert server.broker.cold_reads


def test_subscriptions_to_what_is_not_there(server: Server) -> None:
    """Unknown streams, partitions and start positions; also a stream deleted during the read."""
    for request in (
        api.SubscribeRequest(stream="no"),
        api.SubscribeRequest(stream="s", partition=1),
    ):
        assert code_of(server.stub.Subscribe, request) is grpc.StatusCode.NOT_FOUND
    for request in (
        api.SubscribeRequest(stream="s", startPosition=9),  # type: ignore[arg-type]
        api.SubscribeRequest(stream="s", stopPosition=9),  # type: ignore[arg-type]
    ):
        assert code_of(server.stub.Subscribe, request) is grpc.StatusCode.INVALID_ARGUMENT
    call = server.stub.Subscribe(api.SubscribeRequest(stream="s"), timeout=WAIT_S)
    assert next(call) == wire.Message()
    server.broker.delete("s")
    with pytest.raises(grpc.RpcError) as ended:
        next(call)
    assert ended.value.code() is grpc.StatusCode.NOT_FOUND


# ---------------------------------------------------------------------------- the rest


def test_partition_metadata_is_the_leaders(server: Server) -> None:
    """High watermark and newest offset are inclusive; -1 is none."""
    request = api.FetchPartitionMetadataRequest(stream="s", partition=0)
    empty = server.stub.FetchPartitionMetadata(request, timeout=WAIT_S).metadata
    assert (empty.highWatermark, empty.newestOffset) == (-1, -1)
    filled(server, 3)
    three = server.stub.FetchPartitionMetadata(request, timeout=WAIT_S).metadata
    assert (three.highWatermark, three.newestOffset) == (2, 2)
    unknown = api.FetchPartitionMetadataRequest(stream="s", partition=5)
    assert code_of(server.stub.FetchPartitionMetadata, unknown) is grpc.StatusCode.NOT_FOUND


def test_an_unknown_call_is_refused(server: Server) -> None:
    """A method that no release has is refused."""
    other: Call = server.channel.unary_unary("/proto.API/Fly")
    assert code_of(other, b"") is grpc.StatusCode.UNIMPLEMENTED


def test_a_late_answer_is_a_deadline(server: Server) -> None:
    """A subscription ends at its caller's deadline."""
    call = server.stub.Subscribe(api.SubscribeRequest(stream="s"), timeout=6)
    assert next(call) == wire.Message()
    with pytest.raises(grpc.RpcError) as ended:
        next(call)
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_health_names_the_service(server: Server) -> None:
    """grpc.health.v1 answers for the server and for proto.API."""
    check: Call = server.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=WAIT_S) == b"\x08\x01"
    assert check(b"\x0a\x09proto.API", timeout=WAIT_S) == b"\x08\x01"
    assert code_of(check, b"\x0a\x01x") is grpc.StatusCode.NOT_FOUND
