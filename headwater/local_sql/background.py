"""Begins a call on a thread, for work that is waited for later.

The threads are daemons: a command that is interrupted does not wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def begun(call: Callable[[], _T]) -> Future[_T]:
    """Begin a call on a thread of its own; the future has its result or its error."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the outcome is used
            outcome.set_exception(error)

    threading.Thread(target=run, name="headwater-query", daemon=True).start()
    return outcome
