"""Become another program that dies with its parent: ``python exec_with_parent.py PID PROGRAM …``.

A child that outlives ``headwater up`` would hold its port and confuse the next start, also after a
``kill -9``. Linux can send a signal when the parent ends, and keeps that wish across ``execve``.
It is asked for here, in a process of its own, because a Python hook between fork and exec is not
safe once a program has threads. Standard library only; run as a file, with ``-I -S``, for speed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_EXIT_PARENT_GONE: Final = 125
_EXIT_CANNOT_RUN: Final = 126


def main(arguments: list[str]) -> int:
    """Ask for SIGKILL at the parent's end, then replace this process; returns only on failure."""
    parent_pid, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.stderr.write(f"prctl failed: {os.strerror(ctypes.get_errno())}\n")
        return _EXIT_CANNOT_RUN
    if os.getppid() != parent_pid:  # it ended before the wish was on record
        return _EXIT_PARENT_GONE
    try:
        os.execv(program[0], program)  # noqa: S606  # the caller chose the program, no shell
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
    return _EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
