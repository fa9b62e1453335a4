"""Whom a static token names: one of the metadata, or the token of a broker's owner."""

from __future__ import annotations

from typing import Final

from broker.core.access.static_tokens import is_token, same_digest, split_token
from broker.model.secret import Secret
from broker.ports.access import Identity
from broker.runtime.metadata.metadata_log import AppliedMetadata

OWNER: Final = "#owner"  # a name that no token, JWT or certificate can have: see check_name


class StaticTokens:
    """Implements ``Authenticator`` by the tokens of the metadata."""

    def __init__(self, metadata: AppliedMetadata) -> None:
        self._metadata = metadata

    def identify(self, bearer: str, now_us: int) -> Identity | None:
        """See ``Authenticator.identify``."""
        if not is_token(bearer):
            return None
        token_id, digest = split_token(bearer)
        access = self._metadata.state.access
        row = None if access is None else access.tokens.get(token_id)
        # Compared also if there is no such token: the time must not tell which ids exist.
        matches = same_digest("" if row is None else row.digest, digest)
        if row is None or not matches or 0 < row.expires_us <= now_us:
            return None
        return Identity(
            principal=row.principal,
            via="token",
            expires_us=row.expires_us,
            token_id=token_id,
            digest=row.digest,
        )

    def trusts(self, key: str) -> bool:  # noqa: ARG002 - these tokens have no signature
        """See ``Authenticator.trusts``."""
        return False


class OwnerToken:
    """Implements ``Authenticator`` by the token in a file that only the broker's owner may read."""

    def __init__(self, token: Secret) -> None:
        self._id, self._digest = split_token(token.reveal())

    def identify(self, bearer: str, now_us: int) -> Identity | None:  # noqa: ARG002 - it never ends
        """See ``Authenticator.identify``."""
        if not is_token(bearer):
            return None
        token_id, digest = split_token(bearer)
        if not same_digest(digest, self._digest) or token_id != self._id:
            return None
        return Identity(principal=OWNER, via="owner")

    def trusts(self, key: str) -> bool:  # noqa: ARG002 - this token has no signature
        """See ``Authenticator.trusts``."""
        return False
