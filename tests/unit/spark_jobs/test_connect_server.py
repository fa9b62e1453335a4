"""Issue 11, second tour: Ctrl-C ends the server of Spark Connect without a trace."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# As PySpark does: a session that has begun takes SIGINT for itself.
_PROGRAM = """
import signal, sys, time
from spark_jobs import connect_server, session

class Begun:
    def stop(self):
        print("stopped", flush=True)

def interrupted(*_):
    raise KeyboardInterrupt

def build_session(*_, **__):
    if {slow}:
        print("starting", flush=True)
        time.sleep(1000)
    signal.signal(signal.SIGINT, interrupted)
    return Begun()

session.build_session = build_session
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(connect_server.main(["--port", "15002"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("slow", "first", "rest", "said"),
    [
        (False, "sc://127.0.0.1:15002\n", "stopped\n", ""),
        (True, "starting\n", "", "Interrupted.\n"),
    ],
    ids=["serving", "starting"],
)
def test_a_signal_ends_the_server(
    number: signal.Signals, slow: bool, first: str, rest: str, said: str
) -> None:
    """One that serves ends with status 0; one that starts ends at once, with the signal's code.

    It was the trace of a KeyboardInterrupt, or nothing until Spark had started.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(slow=slow)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == first
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + number if slow else 0, rest, said)
