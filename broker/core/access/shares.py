"""Who uses up which quota together. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from broker.core.access.principal_table import PrincipalTable
from broker.core.access.tenants import TenantTable
from broker.model.quota import Quota
from broker.model.tenant import Tenant

_REMEMBERED_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Share:
    """What one principal, or all principals of a tenant together, use of a broker."""

    name: str  # of the principal, or of the tenant's quota
    quota: Quota | None = None
    tenant: str = ""  # "": the share is of one principal


class ShareTable:
    """Finds the shares that a principal uses. Any thread."""

    def __init__(self, quotas: Iterable[Quota] = (), tenants: Iterable[Tenant] = ()) -> None:
        rows = tuple(tenants)
        self._quotas = PrincipalTable({one.principal: one for one in quotas})
        self._tenants = TenantTable(rows)
        self._of_tenants = {
            one.name: Share(one.quota.principal, one.quota, one.name) for one in rows
        }
        self._remembered = lru_cache(_REMEMBERED_MAX)(self._find)

    def of(self, principal: str) -> tuple[Share, ...]:
        """Return the principal's own share, and behind it that of its tenant, if it has one."""
        return self._remembered(principal)

    def _find(self, principal: str) -> tuple[Share, ...]:
        own = Share(principal, self._quotas.of(principal))
        tenant = self._tenants.of(principal)
        return (own,) if tenant is None else (own, self._of_tenants[tenant.name])
