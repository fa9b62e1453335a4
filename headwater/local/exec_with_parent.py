"""Runs a program that is killed when its parent ends: ``python exec_with_parent.py PID PROGRAM …``.

Without this, a child that outlives ``headwater up``, for example after a ``kill -9``, would hold
its port and disturb the next start. Linux can send a signal when the parent ends
(PR_SET_PDEATHSIG), and keeps that setting across ``execve``. This separate process makes the
setting, because a Python hook between fork and exec is not safe in a program with threads. Standard
library only; run as a file, with ``-I -S``, for speed.
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
    if os.getppid() != parent_pid:  # the parent ended before the call of prctl
        return _EXIT_PARENT_GONE
    try:
        os.execv(program[0], program)  # noqa: S606  # the caller chose the program, no shell
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
    return _EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
