"""The commands about grants and static tokens. Each needs ``FEATURE_LEVEL_ACCESS``."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.access import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantAccess:
    """Add grants. Actions that a principal has on a pattern already stay."""

    grants: tuple[Grant, ...]
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeAccess:
    """Take actions away; what a principal does not have is no error."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Let the holder of a secret with this digest be ``principal``.

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
    """Forget a token; does nothing if it is unknown."""

    token_id: str


AccessCommand = GrantAccess | RevokeAccess | CreateToken | RevokeToken
