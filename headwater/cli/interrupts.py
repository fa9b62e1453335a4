"""Ctrl-C in commands that run Spark: the process writes one line and ends.

Spark answers an interrupt with the stack traces of Python, of Py4J and of the JVM. So SIGINT is
kept from every thread but one of this module's, which ends the JVM and then the process.
Nothing has to be undone: what a job has committed stays, and the next run goes on from there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from headwater.cli.failures import EXIT_INTERRUPTED

_LOOK_S: Final = 0.2
_CLEAN_UP_S: Final = 2.0
_SIGNALS: Final = frozenset({signal.SIGINT})


@contextmanager
def ends_in_one_line(*clean_ups: Callable[[], object]) -> Iterator[None]:
    """End the process on SIGINT with exit code 130, after ``clean_ups``, each within two seconds.

    Outside the main thread it does nothing, because signals do not arrive there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # threads and children inherit it
    # A thread that was there before may get the signal; Python's handler then writes to this pipe.
    heard, told = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(told, False)
    former = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    # The handler itself does nothing: no KeyboardInterrupt may reach the work while it is ended.
    handler = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    waiting = threading.Thread(target=_wait, args=(over, heard, clean_ups), daemon=True)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(former)
        os.close(heard)
        os.close(told)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(over: threading.Event, heard: int, clean_ups: tuple[Callable[[], object], ...]) -> None:
    while not over.is_set():
        if signal.sigtimedwait(_SIGNALS, _LOOK_S) is not None:
            _end(clean_ups)
        with suppress(BlockingIOError):
            if signal.SIGINT in os.read(heard, 64):
                _end(clean_ups)


def _end(clean_ups: tuple[Callable[[], object], ...]) -> None:
    with suppress(OSError, ValueError):
        os.write(2, b"Interrupted.\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides the stack traces
    for clean_up in (*clean_ups, _kill_spark):
        one = threading.Thread(target=clean_up, daemon=True)
        one.start()
        one.join(_CLEAN_UP_S)
    os._exit(EXIT_INTERRUPTED)


def _kill_spark() -> None:
    if "pyspark" in sys.modules:
        from spark_jobs.ending import kill_jvm

        kill_jvm()
