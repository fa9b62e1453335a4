"""Carry a typed error through Spark, whose exceptions are text by the time they reach the driver.

The worker adds the error's wire form as a note, Python prints notes into the traceback, Spark puts
the traceback into its message, and :func:`typed` finds the marked line there. Nobody guesses from
the wording of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from broker.errors import HeadwaterError, UnavailableError, from_wire, to_wire

_MARK: Final = "headwater-error: "
_LINE: Final = re.compile(rf"{_MARK}(\{{.*\}})")
# How Spark words the loss of a planner, a worker or an executor. The first: the cause is the end of
# a socket's data, which has no message of its own.
_LOST: Final = re.compile(
    r"terminated with exception:\s+(null\s+)?SQLSTATE|EOFException|Connection reset|Broken pipe"
    r"|Connection refused|Python worker (exited|failed to connect)|ExecutorLostFailure"
)
_RAISED: Final = "Traceback (most recent call last)"  # by Python code: somebody must look

_Error = TypeVar("_Error", bound=HeadwaterError)


def annotate(error: _Error) -> _Error:
    """Add the wire form to the error, once; return the error."""
    note = _MARK + to_wire(error)
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def typed(error: BaseException) -> HeadwaterError | None:
    """Return our error inside an exception of Spark, None when the cause was another."""
    if isinstance(error, HeadwaterError):
        return error
    for text in (str(error), *getattr(error, "__notes__", ())):
        for match in _LINE.finditer(text):
            found = from_wire(match.group(1))
            if found is not None:
                return found
    return None


def lost_process(error: BaseException) -> UnavailableError | None:
    """Return what to raise when Spark lost one of its processes, None when it did not."""
    text = str(error)
    found = None if _RAISED in text else _LOST.search(text)
    if found is None:
        return None
    return UnavailableError(
        f"Spark lost a process of its own ({found.group().strip()}); nothing is wrong with the "
        "request"
    )


@contextmanager
def translated() -> Iterator[None]:
    """Raise our typed error for a Spark action in this block that failed because of it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  (importing this stays free)

    try:
        yield
    except PySparkException as error:
        ours = typed(error) or lost_process(error)
        if ours is None:
            raise
        raise ours from error
