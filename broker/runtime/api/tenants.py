"""The tenants of the cluster: what administrators change, and what each caller sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.core.access.tenants import TenantTable
from broker.core.metadata.commands import AlterTenant, Command, CreateTenant, DeleteTenant
from broker.model.access import CLUSTER, Action, Caller, Resource
from broker.model.tenant import Tenant
from broker.runtime.metadata.metadata_log import WaitingMetadata


class Tenants:
    """Implements ``TenantsApi``."""

    def __init__(
        self,
        metadata: WaitingMetadata,
        change: Callable[[Command], bool],
        allows: Callable[[Caller, Action, Resource], bool],
    ) -> None:
        """``change`` proposes a command; ``allows`` decides as ``AccessApi`` does."""
        self._metadata = metadata
        self._change = change
        self._allows = allows

    def create(self, tenant: Tenant) -> bool:
        """See ``TenantsApi.create``."""
        return self._change(CreateTenant(tenant=tenant))

    def alter(self, name: str, changes: Mapping[str, Any]) -> bool:
        """See ``TenantsApi.alter``."""
        return self._change(AlterTenant(name=name, **changes))

    def delete(self, name: str) -> bool:
        """See ``TenantsApi.delete``."""
        return self._change(DeleteTenant(name=name))

    def shown(self, caller: Caller) -> Sequence[Tenant]:
        """See ``TenantsApi.shown``."""
        tenants = self._metadata.state.tenants
        if self._allows(caller, "admin", Resource("cluster", CLUSTER)):
            return [tenants[name] for name in sorted(tenants)]
        own = TenantTable(tenants.values()).of(caller.principal)
        return [] if own is None else [own]
