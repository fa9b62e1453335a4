"""Memory that was freed goes back to the system when a process has grown."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from broker.process.freed_memory import FreedMemory, memory_given_back, resident_bytes

MIB = 1024 * 1024
WAIT_S = 60
FREED_BYTES = 160 * MIB


def test_the_more_memory_has_grown_the_sooner_it_is_given_back() -> None:
    """80 MiB after a second, 16 MiB after five, less never."""
    freed = FreedMemory(0.0, 100 * MIB)
    assert not freed.is_due(1000.0, 115 * MIB)
    assert not freed.is_due(4.9, 116 * MIB)
    assert freed.is_due(5.0, 116 * MIB)
    assert not freed.is_due(0.9, 180 * MIB)
    assert freed.is_due(1.0, 180 * MIB)


def test_what_is_in_use_is_looked_for_again_later() -> None:
    """Soon after it was done, growth counts from what was left, or from the least since."""
    freed = FreedMemory(0.0, 100 * MIB)
    assert freed.is_due(10.0, 300 * MIB)
    freed.gave_back(10.0, 0.01, 290 * MIB)
    assert not freed.is_due(50.0, 300 * MIB)
    assert not freed.is_due(50.0, 200 * MIB)
    assert freed.is_due(51.0, 216 * MIB)


def test_what_is_freed_after_it_was_done_goes_back_later() -> None:
    """The pages of freed memory stay, so the process does not grow; once they are gone it rests."""
    freed = FreedMemory(0.0, 100 * MIB)
    assert freed.is_due(10.0, 300 * MIB)
    freed.gave_back(10.0, 0.01, 290 * MIB)
    assert not freed.is_due(54.9, 290 * MIB)
    assert freed.is_due(55.0, 290 * MIB)
    freed.gave_back(55.0, 0.01, 110 * MIB)
    assert not freed.is_due(1000.0, 110 * MIB)


def test_what_stays_in_use_is_looked_for_ever_more_seldom() -> None:
    """After 45, 90 and 180 seconds. Memory that goes back, or grows, begins the row anew."""
    freed = FreedMemory(0.0, 100 * MIB)
    rows = (
        # due after so many seconds, MiB of the process, MiB left afterwards
        (0.5, 260, 260),  # it has grown
        (45, 260, 260),
        (90, 260, 260),
        (180, 260, 240),  # something goes back
        (45, 240, 240),
        (90, 240, 240),
        (5, 256, 256),  # it has grown
        (45, 256, 256),
    )
    now_s = 0.0
    for after_s, before, left in rows:
        assert not freed.is_due(now_s + after_s - 0.1, before * MIB)
        now_s += after_s
        assert freed.is_due(now_s, before * MIB)
        freed.gave_back(now_s, 0.01, left * MIB)


def test_it_takes_a_fiftieth_of_the_time_at_most() -> None:
    """With much memory it takes longer, and comes less often."""
    freed = FreedMemory(0.0, 0)
    freed.gave_back(10.0, 1.0, 0)
    assert not freed.is_due(59.9, 500 * MIB)
    assert freed.is_due(60.0, 500 * MIB)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_memory_between_blocks_that_stay_goes_back() -> None:
    """The C library keeps it otherwise. A process of its own: others' memory takes long to look at.

    A process of 1.4 GiB needs more than a second, and then rests for a minute. On a busy machine
    memory is given back before it is free, and again later.
    """
    command = [sys.executable, "-c", f"import {__name__} as tests; tests.give_memory_back()"]
    paths = os.pathsep.join(one for one in sys.path if one)
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr


def give_memory_back() -> None:
    """Free memory, and wait until half of it has gone back."""
    with ExitStack() as stack:
        stack.enter_context(memory_given_back())
        stack.callback(_scattered(FREED_BYTES))
        held = resident_bytes()
        until_s, pause = time.monotonic() + WAIT_S, threading.Event()
        while resident_bytes() > held - FREED_BYTES // 2:
            assert time.monotonic() < until_s, f"{held >> 20} MiB, {resident_bytes() >> 20} now"
            pause.wait(0.01)


def _scattered(freed_bytes: int) -> Callable[[], None]:
    """Free memory between blocks that stay; return what frees those."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    size = 16 * 1024
    blocks = [ctypes.c_void_p(library.malloc(size)) for _ in range(2 * freed_bytes // size)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[::2]:
        library.free(block)

    def end() -> None:
        for block in blocks[1::2]:
            library.free(block)

    return end
