"""Threads inside Flight, and what may still begin, while a program ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from broker.errors import InvalidRequestError
from headwater.client.open_calls import OpenCalls

WAIT_S = 60.0
WAIT_MS = 60_000
_FORKS = """
import os, sys, threading
from headwater.client.open_calls import process

def stay():
    with process.inside():
        begun.set()
        threading.Event().wait()

begun = threading.Event()
threading.Thread(target=stay, daemon=True).start()
begun.wait()
if not (child := os.fork()):
    os._exit(0 if process.end(1) else 7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), process.end(1))
"""


class Call:
    """A call without a thread."""

    def __init__(self) -> None:
        self.left_count = 0

    def leave(self) -> None:
        """Count it."""
        self.left_count += 1

    def join(self, timeout_ms: int) -> bool:
        """Tell that nothing runs."""
        return timeout_ms >= 0


@contextmanager
def staying(calls: OpenCalls) -> Iterator[threading.Event]:
    """Keep a thread inside until the event is set, or the block ends."""
    begun, end = threading.Event(), threading.Event()

    def stay() -> None:
        with calls.inside():
            begun.set()
            end.wait(WAIT_S)

    thread = threading.Thread(target=stay)
    thread.start()
    assert begun.wait(WAIT_S)
    try:
        yield end
    finally:
        end.set()
        thread.join(WAIT_S)


def test_open_calls_are_ended_and_so_is_one_that_comes_later() -> None:
    """A thread may have begun it before it heard of the end."""
    calls, early, late = OpenCalls(), Call(), Call()
    calls.note(early)
    assert early.left_count == 0
    assert calls.end()
    calls.note(late)
    assert (early.left_count, late.left_count) == (1, 1)


def test_a_thread_that_is_inside_is_waited_for() -> None:
    """And its next step is refused."""
    calls = OpenCalls()

    def begin_until(done: Callable[[], bool]) -> None:
        while not done():
            with calls.inside(begins=True):
                pass

    with staying(calls) as end, ThreadPoolExecutor(1) as other:
        ended = other.submit(calls.end, WAIT_MS)
        with pytest.raises(InvalidRequestError, match="program ends"):
            begin_until(ended.done)
        end.set()
        assert ended.result(WAIT_S)
        with pytest.raises(InvalidRequestError, match="program ends"), calls.inside():
            pass


def test_a_thread_that_stays_delays_the_end_for_a_time_only() -> None:
    """Nobody goes in after it, but the thread of the exit handlers."""
    calls = OpenCalls()
    with staying(calls), ThreadPoolExecutor(1) as other:
        assert not calls.end(1)
        with calls.inside(begins=True):
            pass

        def go_in() -> None:
            with calls.inside():
                pass

        with pytest.raises(InvalidRequestError, match="program ends"):
            other.submit(go_in).result(WAIT_S)


def test_the_thread_of_the_exit_handlers_does_not_wait_for_itself() -> None:
    """An interrupt at the wrong moment leaves it marked."""
    calls = OpenCalls()
    with calls.inside():
        assert calls.end(0)


def test_a_forked_child_has_no_open_calls() -> None:
    """Its parent's threads do not run there."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "False"]
