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

# Waits until it is told to, makes a call with a deadline, and marks the file when that has passed.
_CALLER: Final = """
import json, mmap, sys
import pyarrow.flight as flight
where, body, file = sys.argv[1:]
with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 1) as mark:
    with flight.FlightClient(where) as client:
        client.wait_for_available(30)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            list(client.do_action(
                flight.Action("create_stream", body.encode()), flight.FlightCallOptions(timeout=0.3)
            ))
        except flight.FlightTimedOutError:
            mark[0] = 1
        else:
            mark[0] = 2
"""


def test_a_call_whose_client_has_gone_does_not_begin(tmp_path: Path) -> None:
    """Strangers who call and hang up would otherwise leave thousands of calls to be made."""
    file = tmp_path / "mark"
    file.write_bytes(b"\0")
    broker = MemoryBroker()
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0))
    service.start()
    where = f"grpc://127.0.0.1:{service.port}"
    asked = json.dumps({"name": "late", "config": {"subject": "late"}})
    command = [sys.executable, "-c", _CALLER, where, asked, str(file)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller,
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 1) as mark,
    ):
        assert caller.stdin is not None
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n"
        turn_s = sys.getswitchinterval()
        sys.setswitchinterval(600)  # no call gets a turn while this thread runs Python
        try:
            caller.stdin.write(b"go\n")
            caller.stdin.flush()
            _spin(mark, 60)
        finally:
            sys.setswitchinterval(turn_s)
        assert mark[0] == 1, "the call was to end by its deadline"
        with Client(f"127.0.0.1:{service.port}") as client:
            client.create_stream("after")
            assert [one.name for one in client.streams()] == ["after"]
    assert service.close()
    broker.close()


def _spin(mark: mmap.mmap, seconds: float) -> None:
    """Run Python, and nothing that gives up the turn, until the mark is set and some time more."""
    until_s = time.monotonic() + seconds
    while mark[0] == 0 and time.monotonic() < until_s:
        pass
    until_s = time.monotonic() + 0.2  # the server's own clock ends the call, too
    while time.monotonic() < until_s:
        pass
