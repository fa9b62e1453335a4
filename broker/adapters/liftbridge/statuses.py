"""gRPC's status codes, and Headwater's errors as a status that Liftbridge's clients understand.

Liftbridge's clients act on the code. NotFound: the stream or partition does not exist.
FailedPrecondition at the start of a call: they ask another broker. Unavailable: they try again, and
continue after the last record. ResourceExhausted: the subscription has reached its end. Sources:
gRPC's status codes; go-liftbridge's mapping of codes to errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from broker.errors import (
    AccessDeniedError,
    CommitTimeoutError,
    ConditionFailedError,
    CorruptDataError,
    EncryptionKeyError,
    FencedError,
    HeadwaterError,
    InvalidRequestError,
    KeyProviderUnavailableError,
    OffsetOutOfRangeError,
    PartitionReadonlyError,
    RecordTooLargeError,
    StreamExistsError,
    StreamRecreatedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownStreamError,
)


class Code(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended."""

    code: Code
    message: str = ""


OK: Final = Status(Code.OK)

# The first class that an error is an instance of counts.
_CODES: Final[tuple[tuple[type[HeadwaterError], Code], ...]] = (
    (UnauthenticatedError, Code.UNAUTHENTICATED),
    (AccessDeniedError, Code.PERMISSION_DENIED),
    (UnknownStreamError, Code.NOT_FOUND),
    (UnknownGroupError, Code.NOT_FOUND),
    (UnknownPartitionError, Code.NOT_FOUND),
    (StreamRecreatedError, Code.NOT_FOUND),
    (StreamExistsError, Code.ALREADY_EXISTS),
    (OffsetOutOfRangeError, Code.OUT_OF_RANGE),
    (RecordTooLargeError, Code.INVALID_ARGUMENT),
    (ConditionFailedError, Code.FAILED_PRECONDITION),
    (PartitionReadonlyError, Code.FAILED_PRECONDITION),
    (InvalidRequestError, Code.INVALID_ARGUMENT),
    (FencedError, Code.FAILED_PRECONDITION),
    (KeyProviderUnavailableError, Code.UNAVAILABLE),
    (EncryptionKeyError, Code.FAILED_PRECONDITION),
    (CommitTimeoutError, Code.DEADLINE_EXCEEDED),
    (UnavailableError, Code.UNAVAILABLE),
    (CorruptDataError, Code.DATA_LOSS),
)
# What Liftbridge says: programs look for its words, and people search for them.
_WORDS: Final[dict[type[HeadwaterError], str]] = {
    StreamExistsError: "stream already exists",
    ConditionFailedError: "incorrect expected offset",
}


class StatusError(Exception):
    """Ends a call with a status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.status = Status(code, message)


def status_of(error: HeadwaterError) -> Status:
    """Return the status that a caller gets for an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            words = _WORDS.get(kind)
            return Status(code, error.message if words is None else f"{words}: {error.message}")
    return Status(Code.INTERNAL, error.message)


def status_of_publish(error: HeadwaterError) -> Status:
    """Return the status that a publisher gets for an error.

    In Liftbridge a missing key is a precondition of CreateStream, and a failure of a Publish.
    """
    status = status_of(error)
    locked = isinstance(error, EncryptionKeyError) and status.code is Code.FAILED_PRECONDITION
    return Status(Code.INTERNAL, status.message) if locked else status
