"""Issue 11, item 11: Ctrl-C ends a command that runs Spark in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headwater.cli import console
from spark_jobs.jobs import ingest

Run = Callable[..., Any]

_PROGRAM = """
import subprocess, sys, threading, time
from headwater.cli.interrupts import ends_in_one_line

child = subprocess.Popen(["sleep", "100"])
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()  # gets the signal

def clean_up():
    child.kill()
    print("killed", child.wait(), flush=True)

def slow():
    time.sleep(100)

with ends_in_one_line(clean_up, slow):
    try:
        print("ready", flush=True)
        try:
            {work}
        except KeyboardInterrupt:
            print("seen by the work")
            raise ValueError("a trace")
    finally:
        print("not reached")
"""


def _interrupted(work: str) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(work=work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_an_interrupt_is_one_line() -> None:
    """Exit code 130, no trace, the child is gone, and a slow clean-up does not hold it up."""
    assert _interrupted("time.sleep(100)") == (130, "killed -9\n", "Interrupted.\n")


def test_an_interrupt_reaches_a_command_whose_main_thread_is_in_c() -> None:
    """Py4J waits in a socket for the JVM, and no Python code of the main thread runs meanwhile."""
    work = "import socket; pair = socket.socketpair(); pair[0].recv(1)"
    assert _interrupted(work) == (130, "killed -9\n", "Interrupted.\n")


def test_without_an_interrupt_nothing_changes() -> None:
    """Afterwards Ctrl-C means what it meant before."""
    program = """
import signal
from headwater.cli.interrupts import ends_in_one_line
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
with ends_in_one_line():
    pass
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("as ever")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "as ever\n")


def test_a_wrong_stream_name_is_told_before_spark_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is asked for the name; the job, and with it Spark, is not reached."""
    started: list[list[str]] = []
    monkeypatch.setattr(ingest, "main", started.append)
    for words in (("--stream", "absent"), ("--stream=absent",)):
        result = run("job", "ingest", *words, "--table", "t")
        assert result.exit_code == 2
        assert "UnknownStreamError" in result.stderr
    assert started == []
    run("stream", "create", "present")
    run("job", "ingest", "--stream", "present")
    assert [words[2:] for words in started] == [["--stream", "present"]]


def test_long_work_says_what_it_is_doing(capsys: pytest.CaptureFixture[str]) -> None:
    """One line once it takes long, on stderr; short work says nothing."""
    with console.working("counting"):
        pass
    told = threading.Event()
    with console.working("shipping", after_s=0.0):
        for _ in range(1000):
            if "shipping …" in capsys.readouterr().err:
                told.set()
                break
            told.wait(0.01)
    assert told.is_set()
    assert capsys.readouterr() == ("", "")
