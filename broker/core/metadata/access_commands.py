"""The commands about grants and static tokens. Each needs ``FEATURE_LEVEL_ACCESS``."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.access import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantAccess:
    """Add grants. A principal keeps the actions that it has on the same pattern already."""

    grants: tuple[Grant, ...]
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeAccess:
    """Remove actions from grants. An action that is not granted is no error."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Store a token: the holder of the secret with this digest acts as ``principal``.

    The same command again changes nothing. An id that is taken by another token is refused.
    """

    token_id: str
    digest: str
    principal: str
    created_us: int
    expires_us: int = 0
    created_by: str = ""
    note: str = ""
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    """Delete a token; does nothing if it is unknown."""

    token_id: str


AccessCommand = GrantAccess | RevokeAccess | CreateToken | RevokeToken
