"""One connection of the gRPC server without a socket, against the client side of the same library.

The peer's frames are real; what a peer must not do is done by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import h2.config
import h2.connection
import h2.events
import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.adapters.liftbridge.http2 import (
    CallEnded,
    CallOpened,
    ConnectionEnded,
    Drained,
    Event,
    GrpcConnection,
    HalfClosed,
    Http2Limits,
    MessagesArrived,
    prefixed,
)
from broker.adapters.liftbridge.statuses import Code, Status

KIB = 1024


class Peer:
    """A client and the server's connection, joined."""

    def __init__(self, **limits: int) -> None:
        self.limits = Http2Limits(**limits)
        self.server = GrpcConnection(self.limits)
        self.server.start()
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.client.initiate_connection()
        self.received: list[h2.events.Event] = []
        self.exchange()

    def exchange(self) -> list[Event]:
        """Carry bytes both ways until neither side has any; return the server's events."""
        events: list[Event] = []
        while True:
            up = self.client.data_to_send()
            events += self.server.receive(up) if up else []
            down = self.server.take_output()
            if down:
                self.received += self.client.receive_data(down)
            if not up and not down:
                return events

    def open(self, path: str = "/proto.API/Publish", *more: tuple[str, str]) -> int:
        """Send the headers of a call; return its number."""
        number = self.client.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            *more,
        ]
        self.client.send_headers(number, headers)
        return number

    def send(self, call: int, data: bytes, *, end: bool = False) -> None:
        """Send data in frames of the legal size, as far as the window goes."""
        size = self.client.max_outbound_frame_size
        for at in range(0, len(data), size):
            self.client.send_data(call, data[at : at + size])
        if end:
            self.client.end_stream(call)

    def data(self, call: int) -> bytes:
        """Return what the client was sent in a call, and let the server send as much again."""
        found = b""
        for event in self.received:
            if isinstance(event, h2.events.DataReceived) and event.stream_id == call:
                found += event.data or b""
                self.client.acknowledge_received_data(event.flow_controlled_length or 0, call)
        self.received = [
            one for one in self.received if not isinstance(one, h2.events.DataReceived)
        ]
        return found

    def status(self) -> dict[str, str]:
        """Return the last headers or trailers that the client was sent."""
        for event in reversed(self.received):
            if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                return {str(name): str(value) for name, value in event.headers or ()}
        raise AssertionError("no headers came")


def messages(events: list[Event]) -> Iterator[bytes]:
    """Yield the messages among events."""
    for one in events:
        if isinstance(one, MessagesArrived):
            yield from one.payloads


@given(
    payloads=st.lists(st.binary(max_size=60), max_size=8),
    cuts=st.lists(st.integers(1, 17), min_size=1),
)
def test_messages_arrive_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    """Frames and messages have nothing to do with each other."""
    peer = Peer()
    call = peer.open()
    data = b"".join(map(prefixed, payloads))
    events, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        peer.send(call, data[at : at + size])
        events += peer.exchange()
        at, turn = at + size, turn + 1
    peer.client.end_stream(call)
    events += peer.exchange()
    assert list(messages(events)) == payloads
    assert isinstance(events[0], CallOpened)
    assert events[-1] == HalfClosed(call)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("5S", 5000), ("1H", 3_600_000), ("250m", 250), ("100u", 0.1)]
)
def test_a_deadline_is_read(text: str, milliseconds: float) -> None:
    """Each unit of gRPC is understood."""
    peer = Peer()
    call = peer.open("/a/B", ("grpc-timeout", text))
    (opened,) = peer.exchange()
    assert isinstance(opened, CallOpened)
    assert (opened.call, opened.path) == (call, "/a/B")
    assert opened.timeout_ms == pytest.approx(milliseconds)


def test_a_malformed_deadline_is_refused() -> None:
    """The call ends; the connection stays."""
    peer = Peer()
    peer.client.end_stream(peer.open("/a/B", ("grpc-timeout", "soon")))
    assert peer.exchange() == []
    assert peer.status()["grpc-status"] == str(int(Code.INTERNAL))
    call = peer.open()
    assert isinstance(peer.exchange()[0], CallOpened)
    assert peer.server.is_open(call)


def test_what_is_no_grpc_is_refused() -> None:
    """Another method or content type is answered with HTTP's 415."""
    peer = Peer()
    number = peer.client.get_next_available_stream_id()
    headers = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")]
    peer.client.send_headers(number, headers, end_stream=True)
    assert peer.exchange() == []
    assert peer.status()[":status"] == "415"


def test_a_message_beyond_the_limit_ends_its_call_alone() -> None:
    """Its length is believed only as far as the limit goes: nothing is allocated for it."""
    peer = Peer(message_bytes_max=100)
    call, other = peer.open(), peer.open()
    peer.send(call, b"\0" + (101).to_bytes(4, "big"))
    peer.send(other, prefixed(b"x" * 100))
    events = peer.exchange()
    assert list(messages(events)) == [b"x" * 100]
    assert peer.status()["grpc-status"] == str(int(Code.RESOURCE_EXHAUSTED))
    assert peer.server.is_open(other)
    assert not peer.server.is_open(call)


def test_a_compressed_message_is_refused() -> None:
    """The server does not offer any compression."""
    peer = Peer()
    call = peer.open()
    peer.send(call, b"\1" + (1).to_bytes(4, "big") + b"x")
    peer.exchange()
    assert peer.status()["grpc-status"] == str(int(Code.UNIMPLEMENTED))


def test_messages_that_nobody_handles_stop_their_sender() -> None:
    """The window is the bound of what waits in the broker; handled messages open it again."""
    peer = Peer(window_bytes=64 * KIB)
    call = peer.open()
    peer.exchange()
    one = prefixed(b"x" * (KIB - 5))
    for _ in range(64):
        peer.send(call, one)
    held = [event for event in peer.exchange() if isinstance(event, MessagesArrived)]
    assert sum(len(event.payloads) for event in held) == 64
    assert peer.client.local_flow_control_window(call) == 0
    for event in held:
        peer.server.used(event.call, sum(event.windows_bytes))
    peer.exchange()
    assert peer.client.local_flow_control_window(call) >= 32 * KIB


def test_a_message_may_be_larger_than_the_window() -> None:
    """Its beginning gives its part of the window back at once."""
    peer = Peer(window_bytes=64 * KIB)
    call = peer.open()
    peer.exchange()
    data, events = prefixed(b"y" * (300 * KIB)), []
    while data:
        room = min(peer.client.local_flow_control_window(call), peer.client.max_outbound_frame_size)
        assert room > 0, "the window never opened again"
        peer.client.send_data(call, data[:room])
        data = data[room:]
        events += peer.exchange()
    assert [len(one) for one in messages(events)] == [300 * KIB]


def test_beginnings_of_messages_are_bounded_together() -> None:
    """Many calls that each promise a large message cannot fill the memory."""
    peer = Peer(partial_bytes_max=100 * KIB)
    calls = [peer.open() for _ in range(3)]
    for call in calls:
        peer.send(call, prefixed(b"z" * (60 * KIB))[: 50 * KIB])
        peer.exchange()
    assert [peer.server.is_open(call) for call in calls] == [True, True, False]
    assert peer.status()["grpc-status"] == str(int(Code.RESOURCE_EXHAUSTED))


def test_an_answer_waits_for_the_peers_window() -> None:
    """Bytes beyond the window are counted as waiting, then sent; the status comes behind them."""
    peer = Peer()
    call = peer.open()
    peer.exchange()
    body = prefixed(b"a" * (200 * KIB))
    peer.server.send(call, body)
    peer.server.finish(call, Status(Code.OK))
    peer.exchange()
    waiting = peer.server.waiting_bytes(call)
    assert waiting == len(body) - 65_535, "HTTP/2's first window"
    found, drained = b"", 0
    for _ in range(20):
        found += peer.data(call)
        drained += sum(isinstance(one, Drained) for one in peer.exchange())
    assert found == body
    assert drained == 1
    assert peer.status()["grpc-status"] == "0"


def test_a_long_answer_comes_in_frames_that_the_peer_takes() -> None:
    """h2 writes it as one; a peer that gets a longer frame than it allows ends the connection."""
    peer = Peer()
    call = peer.open()
    peer.client.increment_flow_control_window(4 * 1024 * KIB)
    peer.client.increment_flow_control_window(4 * 1024 * KIB, call)
    peer.exchange()
    answer = bytes(range(256)) * 12 * KIB
    peer.server.send(call, answer)
    peer.exchange()
    sizes = [
        one.flow_controlled_length
        for one in peer.received
        if isinstance(one, h2.events.DataReceived)
    ]
    assert max(size or 0 for size in sizes) <= peer.client.max_inbound_frame_size == 16 * KIB
    assert peer.data(call) == answer


def test_a_ping_is_answered() -> None:
    """One that comes alone, and one that comes with other frames, which h2 answers."""
    peer = Peer()
    peer.client.ping(b"-alone--")
    peer.exchange()
    peer.client.ping(b"together")
    peer.open()
    peer.exchange()
    acks = [one for one in peer.received if isinstance(one, h2.events.PingAckReceived)]
    assert [one.ping_data for one in acks] == [b"-alone--", b"together"]


def test_small_messages_share_a_frame() -> None:
    """Thousand messages are few frames: each costs the library tens of microseconds."""
    peer = Peer()
    call = peer.open()
    peer.exchange()
    peer.server.send(call, prefixed(b"m" * 30) * 1000)
    peer.exchange()
    frames = [one for one in peer.received if isinstance(one, h2.events.DataReceived)]
    assert len(frames) <= 4
    assert len(peer.data(call)) == 35 * 1000


def test_a_status_before_the_callers_end_stops_the_caller() -> None:
    """The answer is whole, and the caller is told to send no more, without an error."""
    peer = Peer()
    call = peer.open()
    peer.exchange()
    peer.server.finish(call, Status(Code.NOT_FOUND, "no stream is named 'é%'"))
    peer.exchange()
    assert peer.status()["grpc-message"] == "no stream is named '%C3%A9%25'"
    reset = [one for one in peer.received if isinstance(one, h2.events.StreamReset)]
    assert [int(one.error_code or 0) for one in reset] == [0]
    assert not peer.server.is_open(call)


def test_a_call_that_is_given_up_is_told() -> None:
    """The handler hears of it, and can send nothing more in this call."""
    peer = Peer()
    call = peer.open()
    peer.exchange()
    peer.client.reset_stream(call)
    assert peer.exchange() == [CallEnded(call)]
    peer.server.send(call, b"late")
    peer.server.finish(call, Status(Code.OK))
    assert not peer.server.is_open(call)


def test_a_call_that_ends_within_a_message_is_refused() -> None:
    """Half a message is no message."""
    peer = Peer()
    call = peer.open()
    peer.send(call, prefixed(b"abc")[:-1], end=True)
    assert [type(one) for one in peer.exchange()] == [CallOpened]
    assert peer.status()["grpc-status"] == str(int(Code.INTERNAL))


def test_a_peer_that_opens_and_resets_for_ever_is_cut_off() -> None:
    """Each reset costs the server work and the peer none (CVE-2023-44487)."""
    peer = Peer(resets_max=20)
    ended: list[Event] = []
    for _ in range(30):
        call = peer.open()
        peer.client.reset_stream(call)
        try:
            events = peer.exchange()
        except h2.exceptions.ProtocolError:
            break
        ended += [one for one in events if isinstance(one, ConnectionEnded)]
        if ended:
            break
    assert ended == [ConnectionEnded("the peer resets too many calls")]


def test_calls_that_end_in_order_may_be_many() -> None:
    """Ended calls make up for resets, so that a long connection is never cut off."""
    peer = Peer(resets_max=20)
    for _ in range(100):
        given_up, served = peer.open(), peer.open()
        peer.client.reset_stream(given_up)
        peer.client.end_stream(served)
        peer.exchange()
        peer.server.finish(served, Status(Code.OK))
        assert not any(isinstance(one, ConnectionEnded) for one in peer.exchange())


def test_a_header_bomb_is_refused() -> None:
    """The library stops at the limit, and the connection ends."""
    peer = Peer(header_bytes_max=4 * KIB)
    peer.open("/a/B", *((f"x-{number}", "v" * 200) for number in range(60)))
    data = peer.client.data_to_send()
    events = peer.server.receive(data)
    assert [type(one) for one in events] == [ConnectionEnded]
    assert peer.server.receive(b"more") == []


@given(garbage=st.binary(max_size=300))
def test_no_bytes_make_it_raise(garbage: bytes) -> None:
    """The bytes come with a good preface before them, and without one."""
    GrpcConnection(Http2Limits()).receive(garbage)
    peer = Peer()
    peer.open()
    peer.exchange()
    peer.server.receive(garbage)
    peer.server.take_output()


def test_the_text_of_a_status_is_bounded() -> None:
    """What a stranger sent may stand in it, and clients take 8 KiB of headers."""
    peer = Peer()
    call = peer.open()
    peer.exchange()
    peer.server.finish(call, Status(Code.INVALID_ARGUMENT, "é" * 2**20))
    peer.exchange()
    (ended,) = [one for one in peer.received if isinstance(one, h2.events.ResponseReceived)]
    told = {str(name): str(value) for name, value in ended.headers}
    assert told["grpc-status"] == str(int(Code.INVALID_ARGUMENT))
    assert len(told["grpc-message"]) <= 3 * 1024
    assert told["grpc-message"].endswith("...")


def test_a_call_that_breaks_the_rules_ends_for_its_owner_too() -> None:
    """Else the owner keeps it, and counts it as open, for as long as the connection lasts."""
    peer = Peer()
    call = peer.open()
    peer.send(call, prefixed(b"whole") + b"\1" + prefixed(b"compressed")[1:])
    found = peer.exchange()
    assert list(messages(found)) == [b"whole"]
    assert found[-1] == CallEnded(call)
    assert peer.status()["grpc-status"] == str(int(Code.UNIMPLEMENTED))
