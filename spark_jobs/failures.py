"""Carries a typed error through Spark, which turns exceptions of workers into text.

The worker adds the error's wire form as a note. Python prints notes into the traceback, and Spark
puts the traceback into its message. In the driver :func:`typed` finds the marked line there. So no
error of ours has to be guessed from the wording of a message.
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
# Spark's messages for the loss of a planner, a worker or an executor. The first alternative is for
# a socket that was closed: that cause has no message.
_LOST: Final = re.compile(
    r"terminated with exception:\s+(null\s+)?SQLSTATE|EOFException|Connection reset|Broken pipe"
    r"|Connection refused|Python worker (exited|failed to connect)|ExecutorLostFailure"
)
# A file that Spark's own scan could not read; _AWAY tells an unreachable store from a damaged file.
_UNREAD: Final = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (.+?)\.(?:\s|$)"
)
_AWAY: Final = re.compile(
    r"SdkClientException|AWSClientIOException|AWSServiceIOException|SocketException|UnknownHost"
    r"|ConnectException|SocketTimeout|Connection (reset|refused)|timed out|AccessDenied"
)
_CAUSED: Final = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CAUSE_CHARACTERS_MAX: Final = 300
_RAISED: Final = "Traceback (most recent call last)"  # Python code raised: no process was lost

_Error = TypeVar("_Error", bound=HeadwaterError)


def annotate(error: _Error) -> _Error:
    """Add the wire form to the error, once; return the error."""
    note = _MARK + to_wire(error)
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def typed(error: BaseException) -> HeadwaterError | None:
    """Return our typed error inside an exception of Spark; None if there is none.

    For a data file that Spark's own scan could not read, return an error that names the file.
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
    """Return our error for a file that Spark could not read; None if that was not the cause.

    A page with a wrong checksum, a damaged footer and a short file all give this error.
    """
    text = str(error)
    found = _UNREAD.search(text)
    if found is None:
        return None
    kind, key = found.groups()
    causes = _CAUSED.findall(text)
    cause = causes[-1].strip()[:_CAUSE_CHARACTERS_MAX] if causes else kind
    if kind == "FILE_NOT_EXIST":
        return ObjectMissingError(f"{key} is missing, and the read needs it", key=key)
    if _AWAY.search(text):
        return RemoteTierUnavailableError(f"Spark cannot read {key}: {cause}", key=key)
    return ObjectCorruptError(
        f"{key} is damaged: {cause}. `headwater verify` shows what else is damaged",
        key=key,
    )


def lost_process(error: BaseException) -> UnavailableError | None:
    """Return our error if Spark lost one of its processes; None if that was not the cause."""
    text = str(error)
    found = None if _RAISED in text else _LOST.search(text)
    if found is None:
        return None
    return UnavailableError(
        f"Spark lost one of its processes ({found.group().strip()}); the request is not wrong, "
        "so run it again"
    )


@contextmanager
def jvm_watched() -> Iterator[None]:
    """Run a block that needs Spark's JVM.

    Raises:
        UnavailableError: the JVM has ended, e.g. by a signal to all processes of a service. The
            gateway to it raises one of Python's connection errors then, or one of Py4J's.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConnectionError) and type(error).__name__ != "Py4JNetworkError":
            raise
        raise UnavailableError(f"Spark's Java process has ended ({error}): run it again") from error


@contextmanager
def translated() -> Iterator[None]:
    """Run Spark actions in this block; raise our typed error if it made one of them fail."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  (importing stays free)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        ours = typed(error) or lost_process(error)
        if ours is None:
            raise
        raise ours from error
