"""CPU time of a process and all it started, those that have ended included.

On a busy machine CPU seconds tell what seconds do not. What a child used counts while it lives, and
with whoever waited for it afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def cpu_s(pids: Iterable[int]) -> float:
    """Return user and system time of these processes and everything below them, so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # gone: its parent counts it
            process = psutil.Process(pid)
            total += _own_s(process)
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += _own_s(child)
    return total


def _own_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
