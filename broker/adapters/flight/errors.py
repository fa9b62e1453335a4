"""Headwater's errors as Flight errors, in one table; ``extra_info`` has the class and the facts.

An error is translated by the row of its class, or of its nearest base class in the table. Flight
has fewer kinds of errors than Headwater. So Headwater's client reads ``extra_info``; other clients
read the kind and the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyarrow import flight

from broker.codec.flight.protocol import bounded_wire
from broker.errors import (
    AccessDeniedError,
    CommitTimeoutError,
    CorruptDataError,
    FencedError,
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    LogFailedError,
    NotLeaderError,
    UnauthenticatedError,
    UnavailableError,
    bounded_text,
)

# ArrowInvalid and KeyError are not used: pyarrow sends these with the server's Python traceback in
# their text, and without extra_info.
FLIGHT_KINDS: Final[Mapping[type[HeadwaterError], type[flight.FlightError]]] = {
    InvalidRequestError: flight.FlightServerError,
    UnauthenticatedError: flight.FlightUnauthenticatedError,
    AccessDeniedError: flight.FlightUnauthorizedError,
    FencedError: flight.FlightServerError,
    UnavailableError: flight.FlightUnavailableError,
    CommitTimeoutError: flight.FlightTimedOutError,
    LogFailedError: flight.FlightInternalError,  # not Unavailable: other clients would retry it
    CorruptDataError: flight.FlightInternalError,
    InvalidConfigError: flight.FlightInternalError,
}


def with_address(
    error: HeadwaterError, addresses: Callable[[], Mapping[str, str | None]]
) -> HeadwaterError:
    """Return the error; a NotLeaderError that names a leader also gets the leader's address."""
    leader = error.facts.get("leader")
    if not isinstance(error, NotLeaderError) or leader is None or "address" in error.facts:
        return error
    return NotLeaderError(error.message, **error.facts, address=addresses().get(leader))


def to_flight(error: HeadwaterError) -> flight.FlightError:
    """Return the Flight error that carries ``error`` to a client."""
    for kind in type(error).__mro__:
        if kind in FLIGHT_KINDS:
            return FLIGHT_KINDS[kind](bounded_text(error.message), bounded_wire(error))
    return flight.FlightInternalError(bounded_text(error.message), bounded_wire(error))
