"""Decoders of what clients of Liftbridge's API send: HTTP/2 and the requests in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message as Protobuf
from h2 import config as h2_config
from h2 import connection as h2_connection

from broker.adapters.liftbridge import health, reflection
from broker.adapters.liftbridge.group_calls import GroupCalls
from broker.adapters.liftbridge.http2 import (
    CallOpened,
    GrpcConnection,
    Http2Limits,
    MessagesArrived,
    prefixed,
)
from broker.adapters.liftbridge.publish_requests import RequestReader
from broker.adapters.liftbridge.statuses import OK, StatusError
from broker.adapters.liftbridge.stream_calls import StreamCalls
from broker.errors import HeadwaterError
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.reflection_pb2 import ReflectionRequest
from fuzzkit.decoder import Decoder
from simkit.brokers.memory_broker import MemoryBroker

_LIMITS: Final = Http2Limits(
    calls_max=20,
    header_bytes_max=4096,
    message_bytes_max=64 * 1024,
    partial_bytes_max=256 * 1024,
    window_bytes=128 * 1024,
    resets_max=50,
)


def _talk() -> list[bytes]:
    """Return what clients of Liftbridge say, from the preface on."""
    found = []
    for path, body in (
        ("Publish", api.PublishRequest(stream="s", value=b"x" * 50, key=b"k")),
        ("FetchMetadata", api.FetchMetadataRequest(streams=["s"])),
        ("Subscribe", api.SubscribeRequest(stream="s")),
    ):
        client = h2_connection.H2Connection(h2_config.H2Configuration(client_side=True))
        client.initiate_connection()
        for _ in range(2):
            number = client.get_next_available_stream_id()
            call = [
                (":method", "POST"), (":scheme", "http"), (":path", f"/proto.API/{path}"),
                (":authority", "x"), ("content-type", "application/grpc"), ("grpc-timeout", "5S"),
                ("authorization", "Bearer hw_x"),
            ]  # fmt: skip
            client.send_headers(number, call)
            client.send_data(number, prefixed(body.SerializeToString()), end_stream=True)
        client.ping(b"8 bytes.")
        found.append(client.data_to_send())
    return found


def _served(data: bytes) -> object:
    """Serve a connection's bytes; it never raises, and holds no more than its limits say."""
    server = GrpcConnection(_LIMITS)
    server.start()
    for at in range(0, len(data), 300):
        for one in server.receive(data[at : at + 300]):
            if isinstance(one, MessagesArrived):
                server.used(one.call, sum(one.windows_bytes))
                server.send(one.call, b"x" * 100)
            elif isinstance(one, CallOpened):
                server.finish(one.call, OK)
    return server.take_output()


def _published(data: bytes) -> object:
    """Read a message behind one that it may differ from in its value and correlation id only."""
    payloads = [_request(api.PublishRequest), data]
    return RequestReader().read(payloads, [1, 1], 0)


@cache
def _calls() -> dict[type[Protobuf], Callable[[bytes], bytes]]:
    broker = MemoryBroker()
    streams, groups = StreamCalls(broker, advertised=lambda: "127.0.0.1:1"), GroupCalls(broker)
    return {
        api.CreateStreamRequest: streams.create,
        api.DeleteStreamRequest: streams.delete,
        api.PauseStreamRequest: streams.pause,
        api.SetStreamReadonlyRequest: streams.set_readonly,
        api.FetchMetadataRequest: lambda data: streams.fetch_metadata(data, lambda _, names: names),
        api.FetchPartitionMetadataRequest: streams.fetch_partition_metadata,
        api.SetCursorRequest: groups.set_cursor,
        api.FetchCursorRequest: groups.fetch_cursor,
        api.JoinConsumerGroupRequest: groups.join,
        api.LeaveConsumerGroupRequest: groups.leave,
        api.FetchConsumerGroupAssignmentsRequest: groups.assignments,
        api.ReportConsumerGroupCoordinatorRequest: groups.report,
    }


def _request(kind: type[Protobuf]) -> bytes:
    """Return a request with each field set that has a plain type."""
    found: Any = kind()
    values = {"string": "s", "int": 1, "bool": True, "bytes": b"x"}
    for one in found.DESCRIPTOR.fields:
        name = {9: "string", 12: "bytes", 8: "bool"}.get(one.type, "int")
        if one.message_type is not None or one.enum_type is not None:
            continue
        value = values[name]
        if one.is_repeated:
            getattr(found, one.name).append(value)
        else:
            setattr(found, one.name, value)
    return bytes(found.SerializeToString())


def _unary(kind: type[Protobuf], method: str) -> Decoder:
    """Return the entry of a call with one request."""

    def decode(data: bytes) -> object:
        return _calls()[kind](data)  # the broker is made when an input is run

    return Decoder(
        name=f"liftbridge_{kind.__name__}",
        covers=(method, "broker.adapters.liftbridge.stream_calls.decode"),
        decode=decode,
        make_seeds=lambda: [_request(kind)],
        errors=(HeadwaterError, StatusError),
        raw_seeds=False,  # the broker of this room has no such stream, member or cursor
    )


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield Decoder(
        name="liftbridge_http2",
        covers=(
            "broker.adapters.liftbridge.http2.GrpcConnection.receive",
            "broker.adapters.liftbridge.data_frames.DataFrameJoiner.join",
            "broker.adapters.liftbridge.data_frames.DataFrameJoiner.pong",
        ),
        decode=_served,
        make_seeds=_talk,
        errors=(),
    )
    yield from (_unary(kind, method) for kind, method in _CALLS.items())
    yield Decoder(
        name="liftbridge_publish",
        covers=("broker.adapters.liftbridge.publish_requests.RequestReader.read",),
        decode=_published,
        make_seeds=lambda: [_request(api.PublishRequest)],
    )
    yield Decoder(
        name="liftbridge_health",
        covers=("broker.adapters.liftbridge.health.check",),
        decode=lambda data: health.check(data, None),
        make_seeds=lambda: [b"", b"\x0a\x09proto.API"],
        errors=(HeadwaterError, StatusError),
    )
    yield Decoder(
        name="liftbridge_reflection",
        covers=("broker.adapters.liftbridge.reflection.answer",),
        decode=reflection.answer,
        make_seeds=lambda: [
            ReflectionRequest(fileContainingSymbol="proto.API").SerializeToString(),
            ReflectionRequest(listServices="*").SerializeToString(),
        ],
        errors=(HeadwaterError, StatusError),
    )


_STREAMS: Final = "broker.adapters.liftbridge.stream_calls.StreamCalls"
_GROUPS: Final = "broker.adapters.liftbridge.group_calls.GroupCalls"
_CALLS: Final[dict[type[Protobuf], str]] = {
    api.CreateStreamRequest: f"{_STREAMS}.create",
    api.DeleteStreamRequest: f"{_STREAMS}.delete",
    api.PauseStreamRequest: f"{_STREAMS}.pause",
    api.SetStreamReadonlyRequest: f"{_STREAMS}.set_readonly",
    api.FetchMetadataRequest: f"{_STREAMS}.fetch_metadata",
    api.FetchPartitionMetadataRequest: f"{_STREAMS}.fetch_partition_metadata",
    api.SetCursorRequest: f"{_GROUPS}.set_cursor",
    api.FetchCursorRequest: f"{_GROUPS}.fetch_cursor",
    api.JoinConsumerGroupRequest: f"{_GROUPS}.join",
    api.LeaveConsumerGroupRequest: f"{_GROUPS}.leave",
    api.FetchConsumerGroupAssignmentsRequest: f"{_GROUPS}.assignments",
    api.ReportConsumerGroupCoordinatorRequest: f"{_GROUPS}.report",
}
