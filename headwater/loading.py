"""Ctrl-C while a program loads its modules: the process ends without output.

By default Python would print the trace of the import that is running.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_without_a_trace() -> Iterator[None]:
    """Let SIGINT end the process as the kernel does; a shell reports exit code 130.

    Nothing changes outside the main thread, and where SIGINT is ignored or has a handler of its
    own.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
