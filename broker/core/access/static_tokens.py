"""Static tokens: ``hw_<id>_<secret>``. The broker keeps the digest of the secret, never the secret.

The id finds the token's row without a search. The secret has 256 random bits, so a plain SHA-256 of
it cannot be guessed, and no slow hash is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from broker.errors import UnauthenticatedError

TOKEN_ID_CHARS: Final = 16
_SECRET_CHARS: Final = 64
TOKEN_BYTES: Final = (TOKEN_ID_CHARS + _SECRET_CHARS) // 2  # of randomness in a token
_TOKEN: Final = re.compile(rf"hw_([0-9a-f]{{{TOKEN_ID_CHARS}}})_([0-9a-f]{{{_SECRET_CHARS}}})\Z")
_ID: Final = re.compile(rf"[0-9a-f]{{{TOKEN_ID_CHARS}}}\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


def make_token(random: bytes) -> str:
    """Return a token made of 40 random bytes: 8 for its id, 32 for its secret."""
    assert len(random) == TOKEN_BYTES, "8 bytes for the id, 32 for the secret"
    text = random.hex()
    return f"hw_{text[:TOKEN_ID_CHARS]}_{text[TOKEN_ID_CHARS:]}"


def is_token(text: str) -> bool:
    """Tell whether a text has the form of a static token."""
    return _TOKEN.match(text) is not None


def is_token_id(text: str) -> bool:
    """Tell whether a text has the form of a token's id."""
    return _ID.match(text) is not None


def is_digest(text: str) -> bool:
    """Tell whether a text has the form of a token's digest."""
    return _DIGEST.match(text) is not None


def split_token(text: str) -> tuple[str, str]:
    """Return the id of a token and the digest of its secret.

    Raises:
        UnauthenticatedError: the text is not a token.
    """
    found = _TOKEN.match(text)
    if found is None:
        raise UnauthenticatedError("the bearer token is not a Headwater token, hw_<id>_<secret>")
    return found[1], digest_of(found[2])


def digest_of(secret: str) -> str:
    """Return the digest that is kept of a token's secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_digest(first: str, second: str) -> bool:
    """Tell whether two digests are equal, in a time that does not depend on them."""
    return hmac.compare_digest(first.encode(), second.encode())
