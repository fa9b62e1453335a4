"""Grants, tokens, quotas and tenants of a cluster, as plain calls for its administrators.

A token is made here, and only the digest of its secret is sent: no broker sees the secret before
somebody calls with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import EnvelopeError
from broker.model.access import Action, Grant, Kind
from broker.model.quota import Quota
from broker.model.secret import Secret
from broker.model.tenant import Tenant
from headwater.client.client import Client

_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that was just made. Nobody else has it: keep it now."""

    token_id: str
    token: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken:
    """What a cluster knows of a token. The secret is not part of it."""

    token_id: str
    principal: str
    created_us: int
    expires_us: int  # 0: never
    created_by: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Myself:
    """Who a client is to the cluster."""

    enabled: bool  # whether the brokers have access control
    principal: str  # "": nobody
    via: str


class AccessCalls:
    """The administrator's side of a client; it does not own the client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def whoami(self) -> Myself:
        """Return who this client is to the broker."""
        return Myself(**self._one("whoami", {}))

    def grant(self, grants: Sequence[Grant]) -> bool:
        """Add grants; tell whether anything changed.

        Raises:
            AccessError: this client may not.
            InvalidRequestError: a grant is not valid, or the brokers have no access control.
            MetadataFullError: there are too many grants.
        """
        return bool(self._one("grant_access", {"grants": _bodies(grants)})["changed"])

    def revoke(self, grants: Sequence[Grant]) -> bool:
        """Take actions of grants away; tell whether anything changed. Raises as :meth:`grant`."""
        return bool(self._one("revoke_access", {"grants": _bodies(grants)})["changed"])

    def grants(self) -> list[Grant]:
        """Return all grants, sorted."""
        return [_grant(one) for one in self._client.call("list_access", {})]

    def who_can(self, action: Action, kind: Kind, name: str) -> list[str]:
        """Return the principals that may do an action, sorted; ``*`` means every principal."""
        values = {"action": action, "kind": kind, "name": name}
        return [str(one["principal"]) for one in self._client.call("who_can", values)]

    def create_token(self, principal: str, *, expires_us: int = 0, note: str = "") -> NewToken:
        """Make a token whose holder is ``principal``. Raises as :meth:`grant`."""
        token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
        values = {
            "token_id": token_id,
            "digest": hashlib.sha256(secret.encode()).hexdigest(),
            "principal": principal,
            "expires_us": expires_us,
            "note": note,
        }
        self._one("create_token", values)
        return NewToken(token_id=token_id, token=Secret(f"hw_{token_id}_{secret}"))

    def tokens(self) -> list[KnownToken]:
        """Return what is known of all tokens, by id."""
        return [_token(one) for one in self._client.call("list_tokens", {})]

    def revoke_token(self, token_id: str) -> bool:
        """End a token, on every broker and on open streams; tell whether it was there."""
        return bool(self._one("revoke_token", {"token_id": token_id})["changed"])

    def set_quota(self, quota: Quota) -> bool:
        """Give principals a quota, in place of the one that the same pattern has.

        It counts on every broker within a second, for open calls, too; a lower number of open calls
        counts for new ones. Tells whether anything changed. Raises as :meth:`grant`.
        """
        return bool(self._one("set_quota", dataclasses.asdict(quota))["changed"])

    def remove_quota(self, principal: str) -> bool:
        """Take the quota of a pattern away; tell whether there was one. Raises as :meth:`grant`."""
        return bool(self._one("remove_quota", {"principal": principal})["changed"])

    def quotas(self) -> list[Quota]:
        """Return all quotas, sorted by their patterns of principals."""
        return [_quota(one) for one in self._client.call("list_quotas", {})]

    def create_tenant(self, tenant: Tenant) -> bool:
        """Create a tenant; tell whether anything changed.

        Raises:
            TenantExistsError: another one has its name.
            HeadwaterError: as :meth:`grant`.
        """
        return bool(self._one("create_tenant", tenant.to_dict())["changed"])

    def alter_tenant(self, name: str, **changes: Sequence[str] | int | str) -> bool:
        """Change fields of a tenant, by their names; tell whether anything changed.

        Raises:
            UnknownTenantError: there is no such tenant.
        """
        values = {"name": name, "changes": changes}
        return bool(self._one("alter_tenant", values)["changed"])

    def delete_tenant(self, name: str) -> bool:
        """Delete a tenant; tell whether there was one.

        Raises:
            TenantInUseError: it has streams or consumer groups.
        """
        return bool(self._one("delete_tenant", {"name": name})["changed"])

    def tenants(self) -> list[Tenant]:
        """Return all tenants, by name; for others than administrators their own one, if any."""
        return [_tenant(one) for one in self._client.call("list_tenants", {})]

    def _one(self, action: str, values: dict[str, Any]) -> dict[str, Any]:
        results = self._client.call(action, values, timeout_ms=_TIMEOUT_MS)
        if len(results) != 1:
            raise EnvelopeError(f"the broker answered {action} with {len(results)} results, not 1")
        return results[0]


def _bodies(grants: Sequence[Grant]) -> list[dict[str, Any]]:
    return [
        {
            "principal": one.principal,
            "kind": one.kind,
            "pattern": one.pattern,
            "actions": list(one.actions),
            "namespace": one.namespace,
        }
        for one in grants
    ]


def _token(body: dict[str, Any]) -> KnownToken:
    return KnownToken(**body)


def _quota(body: dict[str, Any]) -> Quota:
    return Quota(**body)


def _tenant(body: dict[str, Any]) -> Tenant:
    lists = {name: tuple(value) for name, value in body.items() if isinstance(value, list)}
    return Tenant(**{**body, **lists})


def _grant(body: dict[str, Any]) -> Grant:
    return Grant(**{**body, "actions": tuple(body["actions"])})
