"""Waits for what another thread or process does, and tells nobody of."""

from __future__ import annotations

import time
from collections.abc import Callable

_STEP_S = 0.01


def wait_until(holds: Callable[[], object], what: str, *, timeout_s: float = 60.0) -> None:
    """Ask again and again until it holds; the time is one of a busy machine."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(_STEP_S)
