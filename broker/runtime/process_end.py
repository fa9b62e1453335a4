"""The end of a process that met a bug: at once, whatever its other threads do.

After a bug nobody knows what memory holds, so nothing of it is written any more and nobody is
answered from it. What was acknowledged is on the disk; a start after a crash is what recovery is
for. A polite stop is for processes that are well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

SAY_S_MAX: Final = 1.0  # for the last words: whoever reads them may be stuck


def end_process(exit_code: int, say: Callable[[], None]) -> None:
    """Say it, if that is possible at all, and end the process. Does not return."""
    try:
        threading.Thread(target=_end_soon, args=(exit_code,), daemon=True).start()
        say()
    finally:
        os._exit(exit_code)


def _end_soon(exit_code: int) -> None:
    threading.Event().wait(SAY_S_MAX)
    os._exit(exit_code)
