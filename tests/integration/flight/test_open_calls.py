"""What a program leaves open is ended at its exit; see headwater/client/open_calls.py."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from pyarrow import flight

from broker.errors import InvalidRequestError
from headwater.client import Client, open_calls
from headwater.client.open_calls import OpenCalls

_ANSWER_S: Final = 1.0  # later than the interpreter goes, and within the time that is waited
_EXIT_CODE: Final = 3
_PROGRAM: Final = """
import atexit, ctypes, sys, threading, time
import pyarrow
from broker.codec.flight.protocol import ReadRequest, StreamPath
from broker.errors import HeadwaterError
from headwater.client import open_calls
from headwater.client.address import Address
from headwater.client.flight_connection import Connection

# On a busy machine the answer may take longer than a program waits.
atexit.unregister(open_calls.process.end)
atexit.register(open_calls.process.end, 30_000)
connection = Connection(Address(host="127.0.0.1", port=int(sys.argv[1]), tls=False))
path = StreamPath(stream="s", partition=0)

def put():
    call = connection.put(path, pyarrow.schema([]))
    try:
        call.read()
    finally:
        call.close()  # else Arrow closes it when it is freed, whatever the interpreter does

calls = {
    "action": lambda: connection.action("brokers", {}),
    "get": lambda: connection.get(ReadRequest(stream="s", partition=0)).read(),
    "put": put,
}

def again():
    while True:
        try:
            calls[sys.argv[2]]()
        except HeadwaterError:
            time.sleep(0.001)

threading.Thread(target=again, daemon=True).start()
time.sleep(0.5)
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, 0)  # the process goes seconds later than the interpreter: as many as code
sys.exit(int(sys.argv[3]))
"""


class _Late(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Answers each call with an error, late."""

    def do_action(self, context: Any, action: Any) -> Any:
        time.sleep(_ANSWER_S)
        raise flight.FlightInternalError("late")

    def do_get(self, context: Any, ticket: Any) -> Any:
        time.sleep(_ANSWER_S)
        raise flight.FlightInternalError("late")

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        time.sleep(_ANSWER_S)
        raise flight.FlightInternalError("late")


@pytest.fixture
def late_port() -> Iterator[int]:
    """Give the port of a server that answers late."""
    with _Late("grpc://127.0.0.1:0") as server:
        yield server.port


@pytest.mark.parametrize("kind", ["action", "get", "put"])
def test_a_program_with_a_thread_in_a_call_ends_by_its_own_code(late_port: int, kind: str) -> None:
    """It was ended by a segmentation fault if the answer came after the interpreter had gone."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(late_port), kind, str(_EXIT_CODE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (_EXIT_CODE, "")


def test_no_thread_is_inside_arrow_when_the_interpreter_goes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was sent is still answered."""
    calls = OpenCalls()  # not the ones of other tests
    monkeypatch.setattr(open_calls, "process", calls)
    others = set(threading.enumerate())
    producer = client.producer("s")
    tail = client.fetch("s", start="earliest", follow=True)
    sent = [producer.send([b"%d" % number]) for number in range(50)]
    assert next(tail).base_offset == 0
    assert calls.end(60_000)
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert not names & {"headwater-acks", "headwater-fetch"}
    assert [one.result(0).base_offset for one in sent] == list(range(50))
    producer.close()
    tail.close()


def test_only_the_thread_of_the_exit_handlers_still_calls(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that runs later, e.g. one that drops leases, has its answer."""
    calls = OpenCalls()
    monkeypatch.setattr(open_calls, "process", calls)
    assert calls.end()
    assert [one.name for one in client.streams()] == ["s"]
    with ThreadPoolExecutor(1) as other, pytest.raises(InvalidRequestError, match="program ends"):
        other.submit(client.streams).result()
