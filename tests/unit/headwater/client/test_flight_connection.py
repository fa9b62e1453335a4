"""A connection to a closed port: it connects during a call only, and not afterwards."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing

import pytest

from broker import own_sockets
from broker.errors import NoAnswerError
from headwater.client.address import Address
from headwater.client.flight_connection import Connection
from headwater.local.embedded import free_port
from simkit.servers.tcp_proxy import TcpProxy

_WAIT_S = 60.0
_LOOK_S = 2.5  # gRPC tries again after a second at the latest

_TWO_ATTEMPTS_S = 1.5  # the kernel asks at once and after a second

_CLOSES_COUNT = 150
_CLOSES = """
import random, sys, threading, time
from broker.errors import HeadwaterError
from headwater.client.address import Address
from headwater.client.flight_connection import Connection

def ask():
    try:
        while True:
            connection.action("brokers", {})
    except HeadwaterError as error:
        ended.append(type(error).__name__)

ended, dice = [], random.Random(1)
for _ in range(int(sys.argv[2])):
    connection = Connection(Address(host="127.0.0.1", port=int(sys.argv[1]), tls=False))
    connection.action("brokers", {})
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(dice.uniform(0, 0.004))
    connection.close()
    for thread in threads:
        thread.join()
print(*ended)
"""


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


def test_a_lone_broker_that_turns_newcomers_away_for_a_moment_is_asked_again(address: str) -> None:
    """Beside a flood the kernel drops attempts to connect; the client's kernel tries again."""
    with TcpProxy(int(address.rpartition(":")[2])) as proxy, ExitStack() as stack:
        (listener,) = own_sockets.listeners_on(proxy.port)
        stack.enter_context(listener)
        own_sockets.turn_away(listener, newcomers=True)
        let_in = threading.Timer(
            _TWO_ATTEMPTS_S, own_sockets.turn_away, (listener,), {"newcomers": False}
        )
        at = Address(host="127.0.0.1", port=proxy.port, tls=False)
        alone, one_of_several = Connection(at, is_alone=lambda: True), Connection(at)
        stack.callback(alone.close)
        stack.callback(one_of_several.close)
        let_in.start()
        stack.callback(let_in.join)
        assert alone.action("brokers", {})
        own_sockets.turn_away(listener, newcomers=True)
        with pytest.raises(NoAnswerError, match=r"timed out|shutdown"):  # another is to be asked
            one_of_several.action("brokers", {})


def test_a_client_is_closed_while_others_begin_calls(address: str) -> None:
    """In a process of its own: Arrow would free what they use, and end the process by a signal."""
    port = address.rpartition(":")[2]
    paths = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-c", _CLOSES, port, str(_CLOSES_COUNT)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=_WAIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    ended = done.stdout.split()
    assert set(ended) == {"InvalidRequestError"}
    assert len(ended) == 2 * _CLOSES_COUNT
