"""Strangers who begin TLS at Liftbridge's port and never end it take no place from others.

Found by an attack: each handshake that went wrong kept its place for ever, so 256 connections of a
port scanner ended the API until a restart; and handshakes that went on were not counted at all.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.adapters.tls.context import server_context
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from clusterkit.hostile import tls_hello
from simkit.brokers.memory_broker import MemoryBroker
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

PLACES: Final = 8
HANDSHAKES: Final = 4
WAIT_S: Final = 60.0


@dataclass
class Door:
    """A port of Liftbridge's API with TLS and few places."""

    port: int
    credentials: grpc.ChannelCredentials
    authority: Authority

    def strangers(self, stack: ExitStack, count: int, said: bytes) -> list[socket.socket]:
        """Connect, and say something; each is let in before the next."""
        found = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
            found.append(stack.enter_context(one))
            one.sendall(said)
        return found

    @contextmanager
    def honest(self) -> Iterator[None]:
        """Be served, and stay."""
        with grpc.secure_channel(f"localhost:{self.port}", self.credentials) as channel:
            stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
            assert stub.FetchMetadata(api.FetchMetadataRequest(), timeout=WAIT_S).brokers
            yield


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """Serve an empty broker."""
    authority = Authority()
    tls = server_context(authority.files(tmp_path), protocols=["h2"])
    config = LiftbridgeServiceConfig(
        port=0, tls=tls, connections_max=PLACES, handshakes_max=HANDSHAKES, handshake_s=600
    )
    broker = MemoryBroker()
    service = LiftbridgeService(broker, broker.clock, config)
    service.start()
    own = authority.issue("client")
    credentials = grpc.ssl_channel_credentials(authority.cert, own.key, own.cert)
    yield Door(service.port, credentials, authority)
    assert service.close(timeout_ms=10_000)
    broker.close()


def test_a_handshake_that_goes_wrong_gives_its_place_back(door: Door) -> None:
    """So does one whose other side hangs up."""
    with ExitStack() as stack:
        for stranger in door.strangers(stack, 2 * PLACES, b"GET / HTTP/1.0\r\n\r\n"):
            while stranger.recv(1000):
                pass
    with ExitStack() as stack:
        door.strangers(stack, 2 * PLACES, tls_hello())
    with door.honest():
        pass


def test_who_speaks_no_http2_and_does_not_end_tls_gives_way(door: Door, tmp_path: Path) -> None:
    """The end of TLS, which such a stranger does not answer, keeps no place."""
    context = ssl.create_default_context(cadata=door.authority.cert.decode())
    own = door.authority.issue("stranger")
    (tmp_path / "own.pem").write_bytes(own.key + own.cert)
    context.load_cert_chain(tmp_path / "own.pem")
    context.set_alpn_protocols(["h2"])
    with ExitStack() as stack:
        for _ in range(2 * PLACES):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), WAIT_S))
            stranger = context.wrap_socket(plain, server_hostname="localhost")
            stack.enter_context(stranger)
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100)
        with door.honest():
            pass


@pytest.mark.parametrize("says_hello", [False, True])
def test_the_oldest_handshake_gives_way(door: Door, says_hello: bool) -> None:
    """There are never more than are allowed, and those who are inside are not asked to go."""
    with ExitStack() as stack:
        for _ in range(PLACES - HANDSHAKES + 1):
            stack.enter_context(door.honest())
        said = tls_hello() if says_hello else b""
        strangers = door.strangers(stack, 3 * HANDSHAKES, said)
        for one in strangers[: -HANDSHAKES + 1]:
            with one:
                while one.recv(1000):
                    pass
        with door.honest():
            pass


def test_a_handshake_has_its_time(tmp_path: Path) -> None:
    """A stranger who says nothing is not waited for."""
    broker = MemoryBroker()
    tls = server_context(Authority().files(tmp_path), protocols=["h2"])
    config = LiftbridgeServiceConfig(port=0, tls=tls, handshake_s=0.05)
    service = LiftbridgeService(broker, broker.clock, config)
    service.start()
    with socket.create_connection(("127.0.0.1", service.port), WAIT_S) as stranger:
        assert stranger.recv(1) == b""
    assert service.close(timeout_ms=10_000)
    broker.close()
