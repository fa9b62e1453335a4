"""A connection to a closed port: it connects during a call only, and not afterwards."""

from __future__ import annotations

import gc
import socket
import time
from contextlib import closing

import pytest

from broker.errors import NoAnswerError
from headwater.client.address import Address
from headwater.client.flight_connection import Connection
from headwater.local.embedded import free_port
from simkit.servers.tcp_proxy import TcpProxy

_WAIT_S = 60.0
_LOOK_S = 2.5  # gRPC tries again after a second at the latest


def test_a_port_where_nobody_was_is_left_alone() -> None:
    """Otherwise the next process on this port gets a gRPC connection every second."""
    gc.disable()  # a kept error must not keep the channel open
    try:
        port = free_port()  # which no other process gets
        connection = Connection(Address(host="127.0.0.1", port=port, tls=False))
        with pytest.raises(NoAnswerError) as kept:
            connection.action("brokers", {})
        with closing(socket.create_server(("127.0.0.1", port))) as next_one:
            next_one.settimeout(_LOOK_S)
            with pytest.raises(TimeoutError):
                next_one.accept()
        told = f"no answer from the broker at grpc://127.0.0.1:{port}: Connection refused"
        assert kept.value.message == told
        connection.close()
    finally:
        gc.enable()


def test_a_broker_that_is_slow_to_greet_is_waited_for(address: str) -> None:
    """E.g. a broker far away, or on a busy machine: a connection may take longer than 50 ms."""
    with TcpProxy(int(address.rpartition(":")[2]), greeting_s=0.4) as proxy:
        connection = Connection(Address(host="127.0.0.1", port=proxy.port, tls=False))
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            try:
                assert connection.action("brokers", {})
                break
            except NoAnswerError:  # the machine stood still for longer than a connection may take
                assert time.monotonic() < deadline_s
        connection.close()
