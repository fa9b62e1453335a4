"""Who a caller is, what the caller may do, and the audit of both: for every door of the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.model.access import Action, Caller, Grant, Kind, Resource, TokenRow
from broker.model.quota import Flow, Quota
from broker.model.table_credentials import TableCredentials, TemporaryKeys
from broker.model.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The principal that a token or certificate proves; ``expires_us`` 0: it never expires."""

    principal: str
    via: str
    expires_us: int = 0
    token_id: str = ""
    digest: str = ""
    key: str = ""  # names the key of a signature; empty: the proof has no signature


class Authenticator(Protocol):
    """Checks one kind of bearer token."""

    def identify(self, bearer: str, now_us: int) -> Identity | None:
        """Return the identity that the token proves; None if it is not a token of this kind.

        Raises:
            UnauthenticatedError: the token is of this kind, but it is wrong or has expired.
        """

    def trusts(self, key: str) -> bool:
        """Tell whether the proofs of a key are good now; False for a key of other proofs. Quick."""


class UsageApi(Protocol):
    """Counts what each principal uses of this broker, and holds it back. Any thread; quick.

    A caller without a quota is never held back.
    """

    def ask(self, caller: Caller, flow: Flow, *, ticket: int, amount: int) -> int:
        """Return 0 if a piece of a flow may pass now, else after how many ms to ask again.

        A piece that passes is charged. Pieces that wait pass in the order in which they first
        asked; ``ticket`` tells the pieces of all callers apart.
        """

    def leave(self, caller: Caller, flow: Flow, *, ticket: int) -> None:
        """Note that a piece waits no more, because its call has ended."""

    def request(self, caller: Caller) -> None:
        """Count a request.

        Raises:
            QuotaExceededError: the caller has made as many as its quota lets it, for now.
        """

    def enter(self, caller: Caller) -> None:
        """Count a call that stays open, until :meth:`exit`.

        Raises:
            QuotaExceededError: the caller has as many as its quota lets it.
        """

    def exit(self, caller: Caller) -> None:
        """Count an open call no more."""

    def is_to_note(self, caller: Caller, limit: str) -> int | None:
        """Tell whether the audit has to note that a limit has refused a call of the caller.

        The first refusal in a minute is noted: return how many were left out since the note before
        it. None: leave this one out.
        """


class Policy(Protocol):
    """One state of a policy that is kept outside, in place of the grants. Any thread; no I/O."""

    def allows(self, principal: str, resource: str, act: str) -> bool:
        """Tell whether a line of the policy allows the act; False if none does."""

    def principals(self) -> frozenset[str]:
        """Return the names of those whom lines are about, roles included."""


class TenantsApi(Protocol):
    """The tenants of the cluster. Any thread; changes block, and are durable when they return.

    Changes raise InvalidRequestError, MetadataFullError, FeatureLevelError and UnavailableError.
    """

    def create(self, tenant: Tenant) -> bool:
        """Create a tenant; tell whether anything changed.

        Raises:
            TenantExistsError: another one has its name.
        """

    def alter(self, name: str, changes: Mapping[str, Any]) -> bool:
        """Change fields of a tenant, by their names; tell whether anything changed.

        Raises:
            UnknownTenantError: there is no such tenant.
        """

    def delete(self, name: str) -> bool:
        """Delete a tenant; tell whether there was one.

        Raises:
            TenantInUseError: it has streams or consumer groups.
        """

    def shown(self, caller: Caller) -> Sequence[Tenant]:
        """Return all tenants, by name, to an administrator; to others their own one, if any."""


class AccessApi(Protocol):
    """Decides what a caller may do; every door asks it. Any thread; only changes block."""

    @property
    def enabled(self) -> bool:
        """Whether access control is on. If it is off, every caller may do everything."""

    @property
    def usage(self) -> UsageApi:
        """What each caller uses of this broker."""

    @property
    def tenants(self) -> TenantsApi:
        """The tenants of the cluster."""

    @property
    def version(self) -> object:
        """Stands for the present grants, policy and tenants: another object after a change."""

    def identify(self, *, bearer: str | None, certificate: str | None, peer: str) -> Caller:
        """Return the caller. If there are a bearer token and a certificate, the token counts.

        Raises:
            UnauthenticatedError: the token or the certificate is not valid.
        """

    def require(self, caller: Caller, action: Action, resource: Resource, call: str = "") -> None:
        """Return if the caller may do the action to the resource now, by this call of a door.

        Raises:
            UnauthenticatedError: the caller has no identity, or its proof has expired.
            AccessDeniedError: no grant allows the action.
        """

    def require_known(self, caller: Caller) -> None:
        """Return if the caller has an identity and its proof is valid now.

        Raises:
            UnauthenticatedError: there is no identity, or its proof has expired.
        """

    def allows(self, caller: Caller, action: Action, resource: Resource) -> bool:
        """Tell whether :meth:`require` would return."""

    def stream(self, name: str) -> Resource:
        """Return the resource for the name of a stream, which need not exist yet."""

    def stream_of_lease(self, lease_id: str) -> str | None:
        """Return the name of the stream that a lease is on; None if there is no such lease."""

    def stream_of_uuid(self, stream_uuid: str) -> str | None:
        """Return the name of the stream with a uuid; None if there is no such stream."""

    def consumes_some(self, caller: Caller) -> bool:
        """Tell whether the caller may consume any stream, which need not exist any more."""

    # ------------------------------------------------------------------ changes

    def grant(self, grants: Sequence[Grant]) -> bool:
        """Add grants, durably; tell whether anything changed.

        Raises:
            InvalidRequestError: a grant is malformed, or access control is off on this broker.
            MetadataFullError, FeatureLevelError, UnavailableError.
        """

    def revoke(self, grants: Sequence[Grant]) -> bool:
        """Remove grants, durably; tell whether anything changed. Raises as :meth:`grant`."""

    def grants(self) -> Sequence[Grant]:
        """Return the grants, sorted."""

    def who_can(self, action: Action, kind: Kind, name: str) -> list[str]:
        """Return the principals that may do the action; ``*`` stands for every principal."""

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
        """Store the digest of a token, whose holder acts as ``principal``, durably.

        Returns whether anything changed. Raises as :meth:`grant`.
        """

    def revoke_token(self, token_id: str) -> bool:
        """Delete a token, durably; tell whether it existed. Raises as :meth:`grant`."""

    def tokens(self) -> Mapping[str, TokenRow]:
        """Return the tokens by id. The rows have digests only: no token can be made from them."""

    def set_quota(self, quota: Quota) -> bool:
        """Give principals a quota, durably; tell whether anything changed. Raises as grant."""

    def remove_quota(self, principal: str) -> bool:
        """Take a quota away, durably; tell whether there was one. Raises as grant."""

    def quotas(self) -> Sequence[Quota]:
        """Return the quotas, sorted by their patterns of principals."""


class AuditSink(Protocol):
    """Records the calls at the doors. Must not block and must not raise."""

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """Record one call; ``result`` is ``ok`` or the class of the error."""


class RoleSessions(Protocol):
    """Gives keys of one role, narrowed by a policy. Blocking; any thread."""

    def open(self, name: str, policy: str) -> TemporaryKeys:
        """Open a session of this name, whose keys may do what the role and the policy both allow.

        Raises:
            RemoteTierUnavailableError: the service refuses, or does not answer.
        """


class TableCredentialsApi(Protocol):
    """Gives principals credentials for tables. Blocking; any thread."""

    def vend(self, name: str, principal: str) -> TableCredentials:
        """Return credentials that read the tables of the stream of this name, and nothing else.

        The caller has checked that the principal may consume the stream.

        Raises:
            NotShippedError: the stream has no table yet.
            InvalidRequestError: the stream has no tiering.
            TableMismatchError: the table is another stream's.
            RemoteTierUnavailableError: the object store or the service does not answer.
            UnknownStreamError.
        """
