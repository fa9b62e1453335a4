"""Connections whose client says nothing, over real sockets."""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from broker.adapters.first_bytes import defer_silent, has_hung_up

_SOON_S = 10.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket that silent clients do not reach at once."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        defer_silent(made)
        made.settimeout(_SOON_S)
        yield made


@pytest.fixture
def client(listener: socket.socket) -> Iterator[socket.socket]:
    """A connected client."""
    with socket.create_connection(listener.getsockname()) as made:
        yield made


def accepted(listener: socket.socket) -> socket.socket:
    """Return the next connection once something of its client has come."""
    one, _ = listener.accept()
    select.select([one], [], [], _SOON_S)
    return one


def test_a_client_that_speaks_is_there(listener: socket.socket, client: socket.socket) -> None:
    """Looking takes nothing of what was said, and leaves the timeout as it was."""
    client.sendall(b"hello")
    with accepted(listener) as one:
        one.settimeout(3.0)
        assert not has_hung_up(one)
        assert one.gettimeout() == 3.0
        assert one.recv(100) == b"hello"


def test_a_client_that_spoke_and_left_is_heard(
    listener: socket.socket, client: socket.socket
) -> None:
    """A probe may send its request and close its side."""
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    client.shutdown(socket.SHUT_WR)
    with accepted(listener) as one:
        assert not has_hung_up(one)


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_left_without_a_word_is_gone(
    listener: socket.socket, client: socket.socket, reset: bool
) -> None:
    """Whether it closed or reset the connection; one that was reset may not come at all."""
    listener.settimeout(0.2 if reset else _SOON_S)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    try:
        one = accepted(listener)
    except TimeoutError:
        assert reset
        return
    with one:
        assert has_hung_up(one)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hand each connection over")
def test_a_silent_client_comes_later(listener: socket.socket, client: socket.socket) -> None:
    """Not at once, but it comes: what the door does with silent clients is the door's matter."""
    assert select.select([listener], [], [], 0.2)[0] == []
    one, _ = listener.accept()
    with one:
        assert not has_hung_up(one)
