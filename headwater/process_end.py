"""Ends the process of a command in less time than the interpreter does."""

from __future__ import annotations

import atexit
import os
import sys
import threading


def end_process(code: object) -> None:
    """End this process with an exit code, or return and leave its end to the interpreter.

    Exit handlers run, and buffered output is written. Then the system frees the memory at once. The
    interpreter would take every module and object apart first, which is a fifteenth of a short
    query. It is left to the interpreter to wait for a thread that still runs, and to print a code
    that is a text, as ``SystemExit`` may have one.
    """
    if not isinstance(code, int | None) or _has_running_threads():
        return
    atexit._run_exitfuncs()  # noqa: SLF001  # the one way to run them before os._exit
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as after `>&-`
            stream.flush()
    os._exit((code or 0) & 0xFF)


def _has_running_threads() -> bool:
    """Whether the interpreter would wait for a thread."""
    here = threading.current_thread()
    return any(one is not here and not one.daemon for one in threading.enumerate())
