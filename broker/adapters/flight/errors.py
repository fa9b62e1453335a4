"""Our errors as Flight's, in one table; the class and the facts travel in ``extra_info``.

The table's rows are roots of the error tree: an error is translated by the nearest row above it.
Flight has fewer kinds than we have, so a client of ours reads ``extra_info`` and others the kind
and the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyarrow import flight

from broker.codec.flight.protocol import bounded_text, bounded_wire
from broker.errors import (
    CommitTimeoutError,
    CorruptDataError,
    FencedError,
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    LogFailedError,
    NotLeaderError,
    UnavailableError,
)

# Not Arrow's own ArrowInvalid or KeyError: pyarrow sends those with a Python traceback of the
# server in their text and without extra_info.
FLIGHT_KINDS: Final[Mapping[type[HeadwaterError], type[flight.FlightError]]] = {
    InvalidRequestError: flight.FlightServerError,
    FencedError: flight.FlightServerError,
    UnavailableError: flight.FlightUnavailableError,
    CommitTimeoutError: flight.FlightTimedOutError,
    LogFailedError: flight.FlightInternalError,  # Unavailable would make a foreign client retry
    CorruptDataError: flight.FlightInternalError,
    InvalidConfigError: flight.FlightInternalError,
}


def with_address(
    error: HeadwaterError, addresses: Callable[[], Mapping[str, str | None]]
) -> HeadwaterError:
    """Return a NotLeaderError that names a leader with the leader's address, if it is known."""
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
