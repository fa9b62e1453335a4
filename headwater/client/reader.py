"""The name that a read has in its certificate."""

from __future__ import annotations

from typing import Final

from broker.errors import AccessError, InvalidRequestError, UnavailableError
from headwater.client.client import Client

_TIMEOUT_MS: Final = 5_000  # a name in a certificate is not worth a longer wait


def reader_of(client: Client) -> str:
    """Return the principal that a client reads as, for the certificate of its read.

    The broker tells it, by the proof that it asks for. Returns "" where it asks nobody, is of a
    release that knows no principals, or does not answer.

    Raises:
        UnauthenticatedError: the broker does not know the client.
    """
    try:
        told = client.call("whoami", {}, timeout_ms=_TIMEOUT_MS)
    except AccessError:
        raise
    except (InvalidRequestError, UnavailableError):
        return ""
    return str(told[0]["principal"]) if told else ""
