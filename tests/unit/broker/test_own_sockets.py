"""Breaking a library's connections without touching other sockets."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

from broker import own_sockets


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    """Files, pipes and pollers are skipped; sockets are duplicated to look at, and closed again."""
    reader, writer = os.pipe()
    with (
        (tmp_path / "file").open("wb"),
        select.epoll(),
        os.fdopen(reader),
        os.fdopen(writer, "wb"),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what counts
        assert own_sockets.sever(lambda _: False) == 0
        port = server.getsockname()[1]
        assert own_sockets.sever(lambda one: one.getpeername()[1] == port) == 1
        assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        client.settimeout(10)
        assert client.recv(1) == b""
        assert own_sockets.sever(lambda one: one.getsockname()[1] == port) == 0  # only listens


def test_attempts_to_connect_are_dropped_and_connections_go_on() -> None:
    """The kernel takes none for a listener that turns newcomers away, and all again later."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()
        (listener,) = own_sockets.listeners_on(where[1])
        with listener, socket.create_connection(where) as before, server.accept()[0] as served:
            own_sockets.turn_away(listener, newcomers=True)
            assert not _is_connected_at_once(where)
            before.sendall(b"x")
            assert served.recv(1) == b"x"
            own_sockets.turn_away(listener, newcomers=False)
            assert _is_connected_at_once(where)


def test_a_listener_that_does_not_block_stays_so() -> None:
    """The library would wait in accept for ever, on the thread that ends it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        (listener,) = own_sockets.listeners_on(server.getsockname()[1])
        with listener:
            own_sockets.turn_away(listener, newcomers=True)
            own_sockets.turn_away(listener, newcomers=False)
        assert not os.get_blocking(server.fileno())


def test_only_a_listener_on_the_port_is_found() -> None:
    """A connection has its listener's port, too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()
        with socket.create_connection(where), server.accept()[0] as served:
            server.close()
            assert served.getsockname() == where
            assert own_sockets.listeners_on(where[1]) == []


def _is_connected_at_once(where: tuple[str, int]) -> bool:
    """Tell whether the kernel answers, which on the loopback is before `connect` returns."""
    with socket.socket() as client:
        client.setblocking(False)
        client.connect_ex(where)
        try:
            client.getpeername()
        except OSError:
            return False
        return True
