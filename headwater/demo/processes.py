"""Finds processes that the tour has left running, also descendants whose own parent has ended."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36  # <linux/prctl.h>
_POLL_S: Final = 0.05


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wait_for_children(timeout_s: float) -> list[str]:
    """Wait until no child is left; return the command lines of children that still run."""
    deadline = time.monotonic() + timeout_s
    while True:
        _reap_orphans()
        left = _children()
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)


def kill_children(timeout_s: float) -> None:
    """Kill every descendant, until none is left: an orphan becomes a child of this process."""
    deadline = time.monotonic() + timeout_s
    while (left := _children()) and time.monotonic() < deadline:
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(int(child.split()[0]), signal.SIGKILL)
        time.sleep(_POLL_S)
        _reap_orphans()


def _reap_orphans() -> None:
    """Collect the exit status of adopted processes; no other code waits for them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return


def _children() -> list[str]:
    found = []
    for listing in Path("/proc/self/task").glob("*/children"):
        for pid in listing.read_text().split():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            found.append(f"{pid} {command.replace(bytes(1), b' ').decode(errors='replace')[:100]}")
    return found
