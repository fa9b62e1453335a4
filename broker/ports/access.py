"""Who a caller is, what they may do, and what is recorded of it: for every door of the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.model.access import Action, Caller, Grant, Kind, Resource, TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a proof names, and until when it is good (0: for ever)."""

    principal: str
    via: str
    expires_us: int = 0
    token_id: str = ""
    digest: str = ""


class Authenticator(Protocol):
    """One way to prove who one is, by a bearer token."""

    def identify(self, bearer: str, now_us: int) -> Identity | None:
        """Return whom the token names; None: it is no token of this kind.

        Raises:
            UnauthenticatedError: it is of this kind, and is wrong or too old.
        """


class AccessApi(Protocol):
    """One place decides, and every door asks it. Any thread; only the changes block."""

    @property
    def enabled(self) -> bool:
        """Whether anything is asked. If not, everybody may do everything."""

    @property
    def version(self) -> object:
        """An object that is another one once grants or tokens have changed."""

    def identify(self, *, bearer: str | None, certificate: str | None, peer: str) -> Caller:
        """Return who calls. A bearer token counts before a certificate.

        Raises:
            UnauthenticatedError: a proof was given, and it is not good.
        """

    def require(self, caller: Caller, action: Action, resource: Resource) -> None:
        """Return if the caller may do it now.

        Raises:
            UnauthenticatedError: nothing was proved, or the proof is no longer good.
            AccessDeniedError: nothing lets them do it.
        """

    def require_known(self, caller: Caller) -> None:
        """Return if the caller has proved who they are, and the proof is good now; else raise."""

    def allows(self, caller: Caller, action: Action, resource: Resource) -> bool:
        """Tell the same as :meth:`require`."""

    def stream(self, name: str) -> Resource:
        """Return the stream of this name, present or to be created, as a resource."""

    def stream_of_lease(self, lease_id: str) -> str | None:
        """Return the name of the stream that a lease is on; None if there is no such lease."""

    # ------------------------------------------------------------------ changes

    def grant(self, grants: Sequence[Grant]) -> bool:
        """Add grants, durably; tell whether anything changed.

        Raises:
            InvalidRequestError: a grant is not one, or this broker asks nobody.
            MetadataFullError, FeatureLevelError, UnavailableError.
        """

    def revoke(self, grants: Sequence[Grant]) -> bool:
        """Take grants away, durably; tell whether anything changed. Raises as :meth:`grant`."""

    def grants(self) -> Sequence[Grant]:
        """Return the grants, sorted."""

    def who_can(self, action: Action, kind: Kind, name: str) -> list[str]:
        """Return the principals that may do it; ``*``: each."""

    def create_token(
        self,
        token_id: str,
        digest: str,
        principal: str,
        *,
        expires_us: int,
        note: str,
        created_by: str,
    ) -> bool:
        """Let the holder of a token be a principal, durably. Raises as :meth:`grant`."""

    def revoke_token(self, token_id: str) -> bool:
        """Forget a token, durably; tell whether it was there. Raises as :meth:`grant`."""

    def tokens(self) -> Mapping[str, TokenRow]:
        """Return the tokens by id. None of them can be made of these rows."""


class AuditSink(Protocol):
    """Takes what happened at a door. Must not block and must not raise."""

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """Record one call; ``result`` is ``ok`` or the class of the error."""
