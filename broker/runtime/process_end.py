"""Ends a process after a bug: at once, without waiting for its other threads.

After a bug the process's memory cannot be trusted, so nothing more is written or answered from it.
Acknowledged records are on the disk, and the next start recovers them as after any crash. A clean
stop is for processes without a bug.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

SAY_S_MAX: Final = 1.0  # to log the reason: the reader of the log may hang


def end_process(exit_code: int, say: Callable[[], None]) -> None:
    """Call ``say`` for at most a second, then end the process. Does not return."""
    try:
        threading.Thread(target=_end_soon, args=(exit_code,), daemon=True).start()
        say()
    finally:
        os._exit(exit_code)


def _end_soon(exit_code: int) -> None:
    threading.Event().wait(SAY_S_MAX)
    os._exit(exit_code)
