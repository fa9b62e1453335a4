"""One client's connection without a socket: its answer when busy, the window it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest

from broker.adapters.access.gate import Gate
from broker.adapters.clock import SystemClock
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.connection import ClientConnection, Workers
from broker.adapters.liftbridge.guard import Guard
from broker.adapters.liftbridge.http2 import Http2Limits, prefixed
from broker.adapters.liftbridge.statuses import Code, status_of
from broker.adapters.liftbridge.targets import (
    BrokerTargets,
    LookUps,
    PublishTarget,
    PublishTargets,
)
from broker.adapters.liftbridge.unfinished import LATE_S, UnfinishedBytes
from broker.errors import HeadwaterError
from broker.model.ids import StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import PartitionWriter
from broker.ports.subjects import SubjectPublisher
from broker.wire.liftbridge import api_pb2 as api
from simkit.brokers.memory_broker import MemoryBroker

_SIZE = 16_000  # bytes of a message, which fits in one frame; a window has room for three
_WHOLE = prefixed(api.PublishRequest(stream="orders", value=bytes(_SIZE)).SerializeToString())
_NO_STREAM = prefixed(api.PublishRequest(value=bytes(_SIZE)).SerializeToString())
_MALFORMED = prefixed(b"\xff" * _SIZE)


class BusyWorkers:
    """A pool without a free thread."""

    def run(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """Refuse the work, as a full pool does."""
        return False

    def subscribe(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """Refuse the work."""
        return False

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run at once."""
        work()

    def call_last(self, work: Callable[[], None]) -> None:
        """Run at once."""
        work()


def test_a_publisher_of_a_busy_broker_is_told_to_try_again() -> None:
    """A client repeats a call after Unavailable, and not after Internal."""
    found: list[object] = []
    workers = BusyWorkers()
    targets = BrokerTargets(MemoryBroker())  # it leads no such partition
    LookUps(targets, workers.run, workers.call_soon).look_up("orders", 0, found.append)
    (error,) = found
    assert isinstance(error, HeadwaterError)
    assert error.retriable
    assert status_of(error).code is Code.UNAVAILABLE


class Silence:
    """A partition, and a NATS server, that take every message and answer none."""

    keeps_order = True

    def __init__(self) -> None:
        self.taken_count = 0

    def known(self, stream: str, partition: int) -> PublishTarget:
        """See ``PublishTargets``."""
        config = StreamConfig(subject=stream)
        uuid = StreamUuid("00000000-0000-4000-8000-000000000001")
        found = Stream(name=stream, uuid=uuid, config=config, created_us=0, table_name="t")
        return PublishTarget(found, partition, cast("PartitionWriter", self))

    def rests(self, stream: str, partition: int) -> bool:
        """See ``PublishTargets``."""
        return False

    def submit_records(self, *arguments: object, **named: object) -> None:
        """See ``PartitionWriter``."""
        self.taken_count += 1

    def ask(self, *arguments: object) -> Callable[[], None]:
        """See ``SubjectPublisher``."""
        self.taken_count += 1
        return lambda: None


class Wire(asyncio.Transport):
    """Joins a client of h2 and the service's connection."""

    def __init__(
        self,
        *,
        window_bytes: int = 3 * _SIZE,
        targets: PublishTargets | None = None,
        unfinished: UnfinishedBytes | None = None,
    ) -> None:
        super().__init__()
        self.may_close = False
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.trailers: list[dict[str, str]] = []
        self.client.initiate_connection()
        self.service = ClientConnection(
            LiftbridgeServiceConfig(http2=Http2Limits(window_bytes=window_bytes)),
            SystemClock(),
            cast("Workers", BusyWorkers()),
            unary={"/proto.API/DeleteStream": lambda _: b""},
            metadata=lambda *_: b"",
            subscribe=lambda *_: None,
            targets=targets or BrokerTargets(MemoryBroker()),
            subjects=cast("SubjectPublisher", Silence()),
            forget=lambda _: None,
            guard=Guard(Gate("liftbridge", None)),
            unfinished=unfinished or UnfinishedBytes(),
        )
        self.service.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The service has refused the client, or closes itself."""
        assert self.may_close, "the service closed the connection"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take what the service sends."""
        for event in self.client.receive_data(bytes(data)):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self.trailers.append({str(name): str(value) for name, value in event.headers})

    def statuses(self) -> list[dict[str, str]]:
        """Return the trailers of the calls that were answered since the last question."""
        told, self.trailers = self.trailers, []
        return told

    def begin(self, path: str, data: bytes, *, ends: bool = False) -> int:
        """Begin a call with a deadline and send data, all that there is if it ``ends``."""
        number = self.client.get_next_available_stream_id()
        names = (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")
        more = ("content-type", "application/grpc"), ("grpc-timeout", "1H")
        self.client.send_headers(number, [*names, *more])
        step = self.client.max_outbound_frame_size
        for start in range(0, len(data), step):
            self.client.send_data(number, data[start : start + step])
        if ends:
            self.client.end_stream(number)
        self.service.data_received(self.client.data_to_send())
        return number

    def call(self, path: str, data: bytes) -> None:
        """Begin a call, send data, and give the call up."""
        number = self.begin(path, data)
        with suppress(h2.exceptions.StreamClosedError):  # by the service, which refused it
            self.client.reset_stream(number)
        self.service.data_received(self.client.data_to_send())


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/proto.API/FetchMetadata", _WHOLE),
        ("/proto.API/FetchMetadata", _WHOLE + _WHOLE),
        ("/proto.API/Publish", _MALFORMED),
        ("/proto.API/Publish", _NO_STREAM),
        ("/proto.API/PublishAsync", _WHOLE + _MALFORMED),
    ],
    ids=["given up", "a second message", "malformed", "no stream", "behind a whole one"],
)
def test_a_call_that_ends_early_keeps_no_part_of_the_window(path: str, data: bytes) -> None:
    """Other calls of the connection would get less and less of it, at the end nothing."""

    async def main() -> None:
        wire = Wire()
        for _ in range(12):
            wire.call(path, data)
            assert wire.client.outbound_flow_control_window >= len(data), "the window is used up"

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/proto.API/FetchMetadata", "/proto.API/DeleteStream"])
def test_a_request_without_a_record_is_refused_by_its_size(path: str) -> None:
    """A message may be as large as the largest record. Names never are."""

    async def main() -> None:
        wire = Wire(window_bytes=1024 * 1024)
        wire.call(path, prefixed(bytes(256 * 1024 + 1)))
        (told,) = wire.statuses()
        assert told["grpc-status"] == str(int(Code.RESOURCE_EXHAUSTED))
        assert "262144 bytes" in told["grpc-message"]

    asyncio.run(main())


_TO_SUBJECT = prefixed(api.PublishToSubjectRequest(subject="s").SerializeToString())


@pytest.mark.parametrize(
    ("path", "data", "code"),
    [
        ("/proto.API/Publish", _WHOLE, Code.DEADLINE_EXCEEDED),
        ("/proto.API/PublishToSubject", _TO_SUBJECT, Code.DEADLINE_EXCEEDED),
        ("/proto.API/Publish", _WHOLE[:-1], Code.UNAVAILABLE),
        ("/proto.API/PublishToSubject", _TO_SUBJECT[:-1], Code.UNAVAILABLE),
        ("/proto.API/Subscribe", b"", Code.UNAVAILABLE),
    ],
    ids=["submitted", "given to NATS", "half a message", "half a request", "a reader"],
)
def test_a_server_that_closes_tells_which_message_may_be_stored(
    path: str, data: bytes, code: Code
) -> None:
    """A publisher repeats a message after Unavailable, as nothing is stored then."""

    async def main() -> None:
        targets = Silence()
        wire = Wire(targets=cast("PublishTargets", targets))
        whole = code is Code.DEADLINE_EXCEEDED
        wire.begin(path, data, ends=whole)
        wire.may_close = True
        wire.service.close()
        (told,) = wire.statuses()
        assert told["grpc-status"] == str(int(code))
        assert targets.taken_count == (1 if whole and path.endswith("Publish") else 0)

    asyncio.run(main())


def test_a_refusal_does_not_repeat_a_long_name() -> None:
    """Its text is a header: hpack encodes a header in a time that grows with the text's square."""

    async def main() -> None:
        wire = Wire(window_bytes=4 * 1024 * 1024)
        request = api.PublishRequest(stream="orders", ackInbox="a " * 1024 * 1024)
        wire.call("/proto.API/Publish", prefixed(request.SerializeToString()))
        (told,) = wire.statuses()
        assert told["grpc-status"] == str(int(Code.INVALID_ARGUMENT))
        assert told["grpc-message"].startswith("ackInbox 'a a")
        assert len(told["grpc-message"]) <= 1024

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/proto.API/Publish", _WHOLE[:-1]),
        ("/proto.API/PublishAsync", _WHOLE + _WHOLE[:9]),
        ("/proto.API/PublishToSubject", _TO_SUBJECT),
        ("/proto.API/DeleteStream", _TO_SUBJECT),
    ],
    ids=["half a message", "behind a whole one", "a record without an end", "without an end"],
)
def test_a_message_that_does_not_go_on_has_a_deadline(path: str, data: bytes) -> None:
    """Its bytes would be kept for as long as its connection."""

    async def main() -> None:
        unfinished = UnfinishedBytes(own_bytes_max=0)
        targets = cast("PublishTargets", Silence())
        wire = Wire(window_bytes=1024 * 1024, targets=targets, unfinished=unfinished)
        wire.begin(path, data)
        wire.statuses()
        for now_s in (0.0, LATE_S / 2, LATE_S - 0.1):
            wire.service.end_late(now_s)
            assert wire.statuses() == []
        wire.service.end_late(LATE_S)
        (told,) = wire.statuses()
        assert told["grpc-status"] == str(int(Code.DEADLINE_EXCEEDED))
        assert unfinished.shared_bytes == 0

    asyncio.run(main())


def test_messages_that_wait_are_bounded_over_all_connections() -> None:
    """The newest that would be too much is refused, a small one never; the end gives all back."""

    async def main() -> None:
        unfinished = UnfinishedBytes(shared_bytes_max=_SIZE + 100, own_bytes_max=_SIZE // 2)
        wires = [Wire(window_bytes=1024 * 1024, unfinished=unfinished) for _ in range(4)]
        one, two, three, four = wires
        one.begin("/proto.API/PublishToSubject", _WHOLE)
        two.begin("/proto.API/Publish", _WHOLE[:-1])
        assert one.statuses() + two.statuses() == []
        four.begin("/proto.API/PublishToSubject", _TO_SUBJECT)
        assert four.statuses() == []
        for path, data in (("PublishToSubject", _WHOLE), ("Publish", _WHOLE[:-1])):
            three.begin(f"/proto.API/{path}", data)
            (told,) = three.statuses()
            assert told["grpc-status"] == str(int(Code.RESOURCE_EXHAUSTED))
        one.service.connection_lost(None)
        three.begin("/proto.API/Publish", _WHOLE[:-1])
        assert three.statuses() == []
        for wire in wires[1:]:
            wire.service.connection_lost(None)
        assert unfinished.shared_bytes == 0

    asyncio.run(main())
