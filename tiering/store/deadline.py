"""A deadline for calls into libraries that know none.

A client can hang for ever in spite of its own timeouts (a server that accepts one byte a minute).
Such a call is left behind on a thread of its own and reported as failed; whatever it still does
later must be harmless, which is why object keys are never used twice and commits compare-and-set.
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
            f"{what} did not finish within {seconds:g} s", what=what, deadline_s=seconds
        )
    if errors:
        raise errors[0]
    return results[0]
