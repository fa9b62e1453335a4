"""A deadline for calls into libraries that have none.

A client can hang for ever in spite of its own timeouts (if a server accepts one byte a minute, for
example). Such a call stays behind on its own thread and is reported as failed. It may still take
effect later. That is harmless, because object keys are never used twice and commits
compare-and-set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from broker.errors import RemoteTierUnavailableError

_T = TypeVar("_T")


def call_with_deadline(call: Callable[[], _T], *, seconds: float, what: str) -> _T:
    """Run ``call`` and return its result or raise its error; give up after ``seconds``.

    Raises:
        RemoteTierUnavailableError: the deadline passed; the outcome is unknown. Facts: what.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=f"tiering: {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise RemoteTierUnavailableError(
            f"{what} did not finish within {seconds:g} s; its outcome is unknown",
            what=what,
            deadline_s=seconds,
        )
    if errors:
        raise errors[0]
    return results[0]
