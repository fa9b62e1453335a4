"""A call whose client goes before the call gets its turn does nothing, over the loopback."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker

pytestmark = pytest.mark.integration

_READY, _GO, _TIMED_OUT, _ANSWERED = range(1, 5)  # marks in the file
# Makes a call with a deadline when it is told to, and marks the file when that has passed and the
# server knows: it has answered a later call of the connection, for which it needs no Python.
_CALLER: Final = """
import mmap, sys, time
import grpc
where, body, file = sys.argv[1:]
body = body.encode()
action = b"\\x0a\\x0dcreate_stream\\x12" + bytes([len(body)]) + body
with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 1) as mark:
    with grpc.insecure_channel(where) as channel:
        grpc.channel_ready_future(channel).result(120)
        mark[0] = 1
        while mark[0] != 2:
            time.sleep(0.01)
        found = 4
        try:
            list(channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")(
                action, timeout=0.3
            ))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                found = 3
        try:
            channel.unary_unary("/nobody/Knows")(b"", timeout=60)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
        mark[0] = found
"""


def test_a_call_whose_client_has_gone_does_not_begin(tmp_path: Path) -> None:
    """Strangers who call and hang up would otherwise leave thousands of calls to be made.

    The caller is told by a mark in memory. To write to a pipe would give up the turn, and on a busy
    machine the call would be made before this thread has it back.
    """
    file = tmp_path / "mark"
    file.write_bytes(b"\0")
    broker = MemoryBroker()
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0))
    service.start()
    where = f"127.0.0.1:{service.port}"
    asked = json.dumps({"name": "late", "config": {"subject": "late"}})
    command = [sys.executable, "-c", _CALLER, where, asked, str(file)]
    with (
        subprocess.Popen(command) as caller,
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 1) as mark,
    ):
        while mark[0] != _READY:
            assert caller.poll() is None, "the caller ended"
            time.sleep(0.01)
        turn_s = sys.getswitchinterval()
        sys.setswitchinterval(600)  # no call gets a turn while this thread runs Python
        try:
            mark[0] = _GO
            _spin(mark, 90)
        finally:
            sys.setswitchinterval(turn_s)
        assert mark[0] == _TIMED_OUT, "the call was to end by its deadline"
        with Client(f"127.0.0.1:{service.port}") as client:
            client.create_stream("after")
            assert [one.name for one in client.streams()] == ["after"]
    assert service.close()
    broker.close()


def _spin(mark: mmap.mmap, seconds: float) -> None:
    """Run Python, and nothing that gives up the turn, until the mark is set and some time more."""
    until_s = time.monotonic() + seconds
    while mark[0] == _GO and time.monotonic() < until_s:
        pass
    until_s = time.monotonic() + 0.2  # the server's own clock ends the call, too
    while time.monotonic() < until_s:
        pass
