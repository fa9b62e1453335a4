"""The bound of connections, on sockets of this process."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from pyarrow import flight

from broker import own_sockets
from broker.adapters.flight.sockets import ConnectionBound, KnownPeers, peer_name

KEPT = 4
FLOOD = 200  # far more than other descriptors of this process may hide
WAIT_S = 60


def test_the_kernel_keeps_a_short_queue_for_the_library() -> None:
    """Otherwise the library accepts thousands after the kernel was told to let nobody in."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        stack.callback(_bound(server.getsockname()[1]).stop)
        came = [stack.enter_context(socket.socket()) for _ in range(FLOOD)]
        for one in came:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        assert 0 < sum(map(_is_connected, came)) < FLOOD


def test_nobody_is_let_in_until_a_flood_is_freed() -> None:
    """The library that owns the connections frees them later than they are broken."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=FLOOD))
        where = server.getsockname()
        strangers = [stack.enter_context(socket.create_connection(where)) for _ in range(FLOOD)]
        served = [stack.enter_context(server.accept()[0]) for _ in range(FLOOD)]
        bound = _bound(where[1])
        bound.start()
        stack.callback(bound.stop)
        looked = stack.enter_context(selectors.DefaultSelector())
        for stranger in strangers:
            looked.register(stranger, selectors.EVENT_READ)
        assert looked.select(WAIT_S), "none was broken"
        late = stack.enter_context(socket.socket())
        late.setblocking(False)
        late.connect_ex(where)
        assert not _is_connected(late)
        for one in served:
            one.close()
        server.settimeout(WAIT_S)
        admitted = stack.enter_context(server.accept()[0])
        assert admitted.getpeername() == late.getsockname()


@pytest.mark.parametrize("both_kinds", [False, True])
def test_a_connection_with_an_admitted_call_outlives_those_without(*, both_kinds: bool) -> None:
    """It is the idlest of all; strangers who say nothing are newer. gRPC takes IPv4 by IPv6."""
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(
                ("::" if both_kinds else "127.0.0.1", 0),
                family=socket.AF_INET6 if both_kinds else socket.AF_INET,
                dualstack_ipv6=both_kinds,
                backlog=FLOOD,
            )
        )
        where = "127.0.0.1", server.getsockname()[1]
        honest = stack.enter_context(socket.create_connection(where))
        accepted = stack.enter_context(server.accept()[0])
        known = KnownPeers(KEPT)
        known.add(peer_name(accepted))
        strangers = [stack.enter_context(socket.create_connection(where)) for _ in range(FLOOD)]
        for _ in strangers:
            stack.enter_context(server.accept()[0])
        bound = ConnectionBound(where[1], KEPT, known)
        bound.start()
        stack.callback(bound.stop)
        until_s, pause = time.monotonic() + WAIT_S, threading.Event()
        while bound.severed_count < FLOOD - KEPT:
            assert time.monotonic() < until_s, f"{bound.severed_count} were broken"
            pause.wait(0.01)
        honest.sendall(b"x")
        assert accepted.recv(1) == b"x"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::]"])
def test_a_peer_is_named_as_grpc_names_it(host: str) -> None:
    """Otherwise no connection would be known, and nothing would tell."""
    told: list[str] = []

    class Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
        def list_actions(self, context: Any) -> list[Any]:
            told.append(context.peer())
            return []

    reached = {"[::]": "127.0.0.1"}.get(host, host)  # a listener of both kinds
    with (
        Server(f"grpc://{host}:0") as server,
        flight.FlightClient(f"grpc://{reached}:{server.port}") as client,
    ):
        assert client.list_actions() == []
        named: list[str] = []

        def is_meant(one: socket.socket) -> bool:
            if one.getsockname()[1] == server.port:
                named.append(peer_name(one))
            return False

        assert own_sockets.sever(is_meant) == 0
    assert told[0] in named


def test_who_called_longest_ago_is_forgotten_first() -> None:
    """The number of those who are known is bounded."""
    known = KnownPeers(2)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        for peer in (peer_name(one), "ipv4:1.2.3.4:5", peer_name(one), "ipv4:1.2.3.4:6"):
            known.add(peer)
        assert known.has(one)
        known.add("ipv4:1.2.3.4:7")
        known.add("ipv4:1.2.3.4:8")
        assert not known.has(one)


def _bound(port: int) -> ConnectionBound:
    return ConnectionBound(port, KEPT, KnownPeers(KEPT))


def _is_connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        return False
    return True
