"""Who makes a Flight call: by the header ``authorization``, or by the client's certificate.

A middleware keeps the header for the call. It decides nothing: an error that is raised in it
reaches the client without our facts. Arrow gives one name of a client's certificate: the first name
of its SAN, or, without a SAN, its common name.
"""

from __future__ import annotations

from typing import Any, Final

from pyarrow import flight

from broker.adapters.access.gate import Gate
from broker.model.access import NOBODY, Caller

HEADERS: Final = "access"
_AUTHORIZATION: Final = "authorization"
NAMELESS: Final = b"other types of SAN"  # gRPC's text for each name of a kind without a text


class _CallHeaders(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """The header of one call."""

    def __init__(self, authorization: str | None) -> None:
        super().__init__()
        self.authorization = authorization


class KeepHeaders(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Makes a middleware for each call.

    A header with a byte that is not ASCII, whichever header it is, ends the call before
    :meth:`start_call`. pyarrow decodes all headers for any middleware that is written in Python, in
    ``_flight.pyx``: ``_server_middleware_start_call`` calls ``convert_headers``, and turns only a
    FlightError into a status of its own. Both are C functions that cannot be replaced, and a Flight
    method in Python gets the headers in no other way. So the caller gets INVALID_ARGUMENT with
    pyarrow's traceback, instead of a typed error, and the audit has no note. The traceback names
    pyarrow's own lines and one byte, no value of a header. The call has done nothing.
    """

    def start_call(self, _info: Any, headers: Any) -> _CallHeaders:
        """Keep the header, if it came once."""
        found: list[Any] = headers.get(_AUTHORIZATION) or []
        text = found[0] if len(found) == 1 else None
        return _CallHeaders(text if isinstance(text, str) else None)


def caller_of(gate: Gate, context: Any) -> Caller:
    """Return who makes the call of this context.

    Raises:
        UnauthenticatedError: a token or certificate was given, and it is not valid.
    """
    if gate.is_open:
        return NOBODY
    headers = context.get_middleware(HEADERS)
    identity = context.peer_identity()
    named = identity and identity != NAMELESS
    return gate.caller(
        authorization=None if headers is None else headers.authorization,
        certificate=identity.decode(errors="replace") if named else None,
        peer=context.peer(),
    )
