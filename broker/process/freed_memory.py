"""Gives freed memory back to the system while the broker runs.

The C library keeps what was freed between blocks that are in use, for as long as these are. Fifty
readers who do not read, or a flood of connections with TLS, left 100 MiB behind. ``malloc_trim``
returns such pages. It takes 1 to 40 ms, and what is needed again has to be mapped again. So it is
called when memory has grown, and the more it has, the sooner: 80 MiB after a second, 16 MiB after
five. What was still in use then may be freed later, and nothing grows: so it is called again after
45 seconds, and each time after twice as long, until memory goes back or grows. So freed memory
stays for 45 seconds, or for as long as it was in use.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOOK_INTERVAL_S: Final = 1.0
_GROWN_BYTE_SECONDS: Final = 80 * 1024 * 1024
_GROWN_BYTES_MIN: Final = 16 * 1024 * 1024
_AGAIN_S: Final = 45.0
_SHARE_MAX: Final = 0.02  # of the time goes into it
_STATUS: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class FreedMemory:
    """Decides when memory is given back; pure."""

    def __init__(self, now_s: float, resident_bytes: int) -> None:
        self._least_bytes = resident_bytes  # since it was given back last
        self._least_ever_bytes = resident_bytes
        self._seen_bytes = resident_bytes
        self._gave_back_s = now_s
        self._pause_s = 0.0
        self._again_s = _AGAIN_S

    def is_due(self, now_s: float, resident_bytes: int) -> bool:
        """Tell whether to give memory back, of a process with so many bytes of memory now."""
        self._least_bytes = min(self._least_bytes, resident_bytes)
        self._least_ever_bytes = min(self._least_ever_bytes, resident_bytes)
        grown_bytes = resident_bytes - self._least_bytes
        kept_bytes = resident_bytes - self._least_ever_bytes
        since_s = now_s - self._gave_back_s
        self._seen_bytes = resident_bytes
        if kept_bytes < _GROWN_BYTES_MIN or since_s < self._pause_s:
            return False
        if since_s >= self._again_s:
            return True
        return grown_bytes >= _GROWN_BYTES_MIN and grown_bytes * since_s >= _GROWN_BYTE_SECONDS

    def gave_back(self, now_s: float, took_s: float, resident_bytes: int) -> None:
        """Note that it was done, how long it took, and what the process has left."""
        has_grown = self._seen_bytes - self._least_bytes >= _GROWN_BYTES_MIN
        is_of_use = self._seen_bytes - resident_bytes >= _GROWN_BYTES_MIN
        self._again_s = _AGAIN_S if has_grown or is_of_use else 2 * self._again_s
        self._gave_back_s, self._least_bytes = now_s, resident_bytes
        self._pause_s = took_s / _SHARE_MAX


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM; raises OSError where no kernel tells."""
    return int(_STATUS.read_bytes().split()[1]) * _PAGE_BYTES


@contextmanager
def memory_given_back() -> Iterator[None]:
    """Give memory back until the end of the block, by a thread; glibc on Linux only."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is None or not _STATUS.exists():
        yield
        return
    over, freed = threading.Event(), FreedMemory(time.monotonic(), resident_bytes())

    def run() -> None:
        while not over.wait(_LOOK_INTERVAL_S):
            began_s = time.monotonic()
            with suppress(OSError):  # no descriptor is free
                if freed.is_due(began_s, resident_bytes()):
                    give_back(0)
                    ended_s = time.monotonic()
                    freed.gave_back(ended_s, ended_s - began_s, resident_bytes())

    thread = threading.Thread(target=run, name="freed-memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
