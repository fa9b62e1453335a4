"""CPU time of a process and of all its children, including those that have ended.

On a busy machine CPU seconds are a better figure than seconds. The CPU time of a running child is
read from the child; after its end it is part of the process that waited for the child.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def cpu_s(pids: Iterable[int]) -> float:
    """Return user and system time of these processes and all their descendants, so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # the process has ended: its parent's time has it
            process = psutil.Process(pid)
            total += _own_s(process)
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += _own_s(child)
    return total


def _own_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
