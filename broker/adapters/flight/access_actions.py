"""The actions about grants, tokens, quotas, tenants and keys for tables; part of the service."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from broker.adapters.flight.places import Places
from broker.codec.flight.table_credentials import to_values
from broker.codec.flight.tenant_actions import TENANT_ACTIONS
from broker.errors import InvalidRequestError
from broker.model.access import Caller
from broker.model.quota import Quota
from broker.model.tenant import Tenant
from broker.ports.access import AccessApi, TableCredentialsApi, TenantsApi


class AccessActions:
    """Performs an action and returns its results, as JSON has them. Any thread."""

    def __init__(
        self, access: AccessApi | None, credentials: TableCredentialsApi | None, waits: Places
    ) -> None:
        """Take a place of ``waits`` while the lake is asked."""
        self._access = access
        self._credentials = credentials
        self._waits = waits

    def run(self, caller: Caller, action: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run one action with checked values.

        Raises:
            InvalidRequestError: this server has not what the action needs.
            HeadwaterError: the broker refused the action.
        """
        access = self._access
        if action == "whoami":
            on = access is not None and access.enabled
            return [{"enabled": on, "principal": caller.principal, "via": caller.via}]
        if action == "table_credentials" and self._credentials is not None:
            with self._waits.take():
                return [to_values(self._credentials.vend(values["name"], caller.principal))]
        if access is None or action == "table_credentials":
            raise InvalidRequestError(
                f"this server does not offer the action {action}", field="action"
            )
        if action in TENANT_ACTIONS:
            return _tenants(access.tenants, caller, action, values)
        match action:
            case "grant_access":
                return [{"changed": access.grant(values["grants"])}]
            case "revoke_access":
                return [{"changed": access.revoke(values["grants"])}]
            case "list_access":
                return [dataclasses.asdict(one) for one in access.grants()]
            case "who_can":
                return [{"principal": one} for one in access.who_can(**values)]
            case "create_token":
                made_by = caller.principal
                return [{"changed": access.create_token(**values, created_by=made_by)}]
            case "revoke_token":
                return [{"changed": access.revoke_token(values["token_id"])}]
            case "set_quota":
                return [{"changed": access.set_quota(Quota(**values))}]
            case "remove_quota":
                return [{"changed": access.remove_quota(values["principal"])}]
            case "list_quotas":
                return [dataclasses.asdict(one) for one in access.quotas()]
            case _:
                assert action == "list_tokens", f"no action {action}"
                return [
                    {
                        "token_id": token_id,
                        **{
                            name: value
                            for name, value in dataclasses.asdict(row).items()
                            if name != "digest"
                        },
                    }
                    for token_id, row in sorted(access.tokens().items())
                ]


def _tenants(
    tenants: TenantsApi, caller: Caller, action: str, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    match action:
        case "create_tenant":
            return [{"changed": tenants.create(Tenant(**values))}]
        case "alter_tenant":
            return [{"changed": tenants.alter(values["name"], values["changes"])}]
        case "delete_tenant":
            return [{"changed": tenants.delete(values["name"])}]
        case _:
            assert action == "list_tenants", f"no action {action}"
            return [one.to_dict() for one in tenants.shown(caller)]
