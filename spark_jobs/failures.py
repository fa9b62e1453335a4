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

from broker.errors import (
    HeadwaterError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    UnavailableError,
    from_wire,
    to_wire,
)

_MARK: Final = "headwater-error: "
_LINE: Final = re.compile(rf"{_MARK}(\{{.*\}})")
# How Spark words the loss of a planner, a worker or an executor. The first: the cause is the end of
# a socket's data, which has no message of its own.
_LOST: Final = re.compile(
    r"terminated with exception:\s+(null\s+)?SQLSTATE|EOFException|Connection reset|Broken pipe"
    r"|Connection refused|Python worker (exited|failed to connect)|ExecutorLostFailure"
)
# A file that Spark's own scan could not read. The object store's own troubles are no damage.
_UNREAD: Final = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (.+?)\.(?:\s|$)"
)
_AWAY: Final = re.compile(
    r"SdkClientException|AWSClientIOException|AWSServiceIOException|SocketException|UnknownHost"
    r"|ConnectException|SocketTimeout|Connection (reset|refused)|timed out|AccessDenied"
)
_CAUSED: Final = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CAUSE_CHARACTERS_MAX: Final = 300
_RAISED: Final = "Traceback (most recent call last)"  # by Python code: somebody must look

_Error = TypeVar("_Error", bound=HeadwaterError)


def annotate(error: _Error) -> _Error:
    """Add the wire form to the error, once; return the error."""
    note = _MARK + to_wire(error)
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def typed(error: BaseException) -> HeadwaterError | None:
    """Return our error inside an exception of Spark, None when the cause was another.

    A data file that Spark's own scan could not read is ours as well, by its key.
    """
    if isinstance(error, HeadwaterError):
        return error
    for text in (str(error), *getattr(error, "__notes__", ())):
        for match in _LINE.finditer(text):
            found = from_wire(match.group(1))
            if found is not None:
                return found
    return unread_file(error)


def unread_file(error: BaseException) -> HeadwaterError | None:
    """Return what to raise for a file that Spark could not read, None when it was something else.

    A page that fails its checksum, a footer that is no footer and a short file end here alike.
    """
    text = str(error)
    found = _UNREAD.search(text)
    if found is None:
        return None
    kind, key = found.groups()
    causes = _CAUSED.findall(text)
    cause = causes[-1].strip()[:_CAUSE_CHARACTERS_MAX] if causes else kind
    if kind == "FILE_NOT_EXIST":
        return ObjectMissingError(f"{key} is gone, and the read needs it", key=key)
    if _AWAY.search(text):
        return RemoteTierUnavailableError(f"Spark cannot read {key}: {cause}", key=key)
    return ObjectCorruptError(
        f"{key} is not what was written: {cause}. `headwater verify` tells what else is damaged",
        key=key,
    )


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
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  (importing stays free)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        ours = typed(error) or lost_process(error)
        if ours is None:
            raise
        raise ours from error
