"""A port without a free place: which connection gives way, which is closed, what the log says."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from structlog.testing import capture_logs

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.health import CHECK
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.runtime.api.access import Access
from simkit.brokers.memory_broker import FakeClock, MemoryBroker

_WAIT_S = 60
_TOKEN = make_token(bytes(range(TOKEN_BYTES)))
_REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"  # open to everybody


class Client:
    """One connection, by a socket."""

    def __init__(self, port: int, *, window: int | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _WAIT_S)
        config = h2.config.H2Configuration(header_encoding="utf-8")
        self._h2 = h2.connection.H2Connection(config)
        self._h2.initiate_connection()
        if window is not None:
            self.take(window)
        self._socket.sendall(self._h2.data_to_send())

    def take(self, window: int) -> None:
        """Let the service send so many bytes of a call."""
        self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._socket.sendall(self._h2.data_to_send())

    def until(self, kind: type[object]) -> bool:
        """Wait for an event of HTTP/2; False: the connection has ended before it."""
        while data := self._received():
            if any(isinstance(one, kind) for one in self._h2.receive_data(data)):
                return True
        return False

    def _received(self) -> bytes:
        try:
            return self._socket.recv(65_536)
        except ConnectionResetError:
            return b""

    def begin(self, path: str, token: str = "", message: bytes = b"") -> None:
        """Open a call, and wait until the service has accepted or refused it."""
        names = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
        names += [("content-type", "application/grpc"), ("authorization", f"Bearer {token}")]
        self._call = self._h2.get_next_available_stream_id()
        self._h2.send_headers(self._call, names[: 6 if token else 5])
        if message:
            self._h2.send_data(self._call, message, end_stream=True)
        self._socket.sendall(self._h2.data_to_send())
        assert self.until(h2.events.ResponseReceived)

    def end(self) -> None:
        """End the call, and wait for its status."""
        self._h2.end_stream(self._call)
        self._socket.sendall(self._h2.data_to_send())
        assert self.until(h2.events.StreamEnded)

    @property
    def is_inside(self) -> bool:
        """Whether the service answers."""
        self._h2.ping(b"8 octets")
        try:
            self._socket.sendall(self._h2.data_to_send())
        except OSError:
            return False
        return self.until(h2.events.PingAckReceived)

    def close(self) -> None:
        """Leave."""
        self._socket.close()


@pytest.fixture
def connect() -> Iterator[Callable[[int], Client]]:
    """Give what connects to a port; the connections end with the test."""
    with ExitStack() as stack:

        def made(port: int) -> Client:
            client = Client(port)
            stack.callback(client.close)
            return client

        yield made


@contextmanager
def _service(
    places: int, *, guarded: bool, clock: FakeClock | None = None, **limits: int
) -> Iterator[int]:
    broker = MemoryBroker(clock)
    access = Access(broker.metadata, broker.clock, enabled=guarded, namespace="default")
    token_id, digest = split_token(_TOKEN)
    if guarded:
        access.create_token(token_id, digest, "ann", expires_us=0, note="", created_by="")
    config = LiftbridgeServiceConfig(port=0, connections_max=places, **limits)  # type: ignore[arg-type]
    service = LiftbridgeService(broker, broker.clock, config, access=access)
    service.start()
    try:
        yield service.port
    finally:
        service.close()
        broker.close()


def test_a_flood_of_connections_is_one_line_of_the_log(connect: Callable[[int], Client]) -> None:
    """Each of them is closed at once; a stranger cannot fill the disk with lines."""
    with capture_logs() as logged, _service(1, guarded=False) as port:
        first = connect(port)
        first.begin("/proto.API/PublishAsync")
        for _ in range(5):
            assert not connect(port).until(h2.events.RemoteSettingsChanged), "it was let in"
        assert first.is_inside
    told = [one for one in logged if one["event"] == "liftbridge_connections_full"]
    assert [(one["gave_way"], one["refused"]) for one in told] == [(0, 1)]


@pytest.mark.parametrize("guarded", [False, True])
def test_silent_connections_keep_nobody_out(
    connect: Callable[[int], Client], guarded: bool
) -> None:
    """One gives way for each that comes; a client that has work stays."""
    with capture_logs() as logged, _service(4, guarded=guarded) as port:
        silent = [connect(port) for _ in range(4)]
        assert all(one.is_inside for one in silent)
        ann = connect(port)
        ann.begin("/proto.API/PublishAsync", _TOKEN)
        assert [one.is_inside for one in silent].count(False) == 1
        for _ in range(20):
            assert connect(port).is_inside
        assert ann.is_inside
    assert sum(one["event"] == "liftbridge_connections_full" for one in logged) == 1


def test_a_flood_is_refused_as_soon_as_many_have_given_way(
    connect: Callable[[int], Client],
) -> None:
    """To let each one in costs the time of those who are inside; a refusal costs little."""
    with _service(1, guarded=False, gives_way_per_s=3) as port:
        entered = [connect(port).until(h2.events.RemoteSettingsChanged) for _ in range(10)]
    assert entered == [True] * 4 + [False] * 6


def test_who_gives_way_is_told(connect: Callable[[int], Client]) -> None:
    """By a frame of HTTP/2, so a client of gRPC sends its next call by another connection."""
    with _service(1, guarded=False) as port:
        silent = connect(port)
        assert silent.is_inside
        assert connect(port).is_inside
        assert silent.until(h2.events.ConnectionTerminated)


def test_what_everybody_may_call_makes_no_connection_known(
    connect: Callable[[int], Client],
) -> None:
    """A stranger's open call gives way before the idle connection of a client with a token."""
    with _service(3, guarded=True) as port:
        ann, strangers = connect(port), [connect(port), connect(port)]
        ann.begin("/proto.API/PublishAsync", _TOKEN)
        ann.end()
        for one in strangers:
            one.begin(_REFLECTION)
        for _ in range(10):
            assert connect(port).is_inside
        assert ann.is_inside
        assert not any(one.is_inside for one in strangers)


def test_a_client_that_has_not_got_its_answer_yet_stays(connect: Callable[[int], Client]) -> None:
    """The call has ended for the service, and its last bytes wait for the client's window."""
    with _service(1, guarded=True) as port, closing(Client(port, window=0)) as ann:
        ann.begin(CHECK, _TOKEN, message=b"\0\0\0\0\0")
        for _ in range(5):
            assert not connect(port).until(h2.events.RemoteSettingsChanged), "it was let in"
        ann.take(65_535)
        assert ann.until(h2.events.StreamEnded)


def test_of_idle_clients_the_idlest_gives_way(connect: Callable[[int], Client]) -> None:
    """Clients that use one connection for all calls come back; new ones are not kept out."""
    clock = FakeClock()
    with _service(2, guarded=True, clock=clock) as port:
        older, newer = connect(port), connect(port)
        for one in (newer, older):
            clock.advance(us=1_000)
            one.begin("/proto.API/PublishAsync", _TOKEN)
            one.end()
        third = connect(port)
        third.begin("/proto.API/PublishAsync", _TOKEN)
        assert not newer.is_inside, "its call ended first"
        assert older.is_inside
        assert third.is_inside
