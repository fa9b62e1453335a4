"""A connection to a closed port: it connects during a call only, and not afterwards."""

from __future__ import annotations

import gc
import socket
import threading
from contextlib import closing, suppress

import pytest

from broker.errors import NoAnswerError
from headwater.client.address import Address
from headwater.client.flight_connection import Connection

_LOOK_S = 2.5  # gRPC tries again after a second at the latest


def test_a_port_where_nobody_was_is_left_alone() -> None:
    """Otherwise the next process on this port gets a gRPC connection every second."""
    gc.disable()  # a kept error must not keep the channel open
    try:
        with closing(socket.create_server(("127.0.0.1", 0))) as somebody:
            port = somebody.getsockname()[1]
        connection = Connection(Address(host="127.0.0.1", port=port, tls=False))
        with pytest.raises(NoAnswerError) as kept:
            connection.action("brokers", {})
        with closing(socket.create_server(("127.0.0.1", port))) as next_one:
            next_one.settimeout(_LOOK_S)
            with pytest.raises(TimeoutError):
                next_one.accept()
        assert kept.value.message
        connection.close()
    finally:
        gc.enable()


def test_a_broker_that_is_slow_to_greet_is_waited_for(address: str) -> None:
    """E.g. a broker far away, or on a busy machine: a connection may take longer than 50 ms."""
    host, _, port = address.partition(":")
    with closing(socket.create_server(("127.0.0.1", 0))) as door:

        def forward() -> None:
            near, _ = door.accept()
            with near, socket.create_connection((host, int(port))) as far:
                threading.Event().wait(0.4)
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                far.shutdown(socket.SHUT_RDWR)
                back.join(10)

        thread = threading.Thread(target=forward, daemon=True)
        thread.start()
        connection = Connection(Address(host="127.0.0.1", port=door.getsockname()[1], tls=False))
        assert connection.action("brokers", {})
        connection.close()
        thread.join(10)
        assert not thread.is_alive()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
