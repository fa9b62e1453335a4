"""The commands about tenants. Each needs ``FEATURE_LEVEL_ACCESS``."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTenant:
    """Create a tenant. The same command again changes nothing; another one is refused.

    What is named as the tenant's streams and groups are becomes the tenant's.
    """

    tenant: Tenant
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTenant:
    """Change a tenant. None: as it is."""

    name: str
    owners: tuple[str, ...] | None = None
    principals: tuple[str, ...] | None = None
    subjects: tuple[str, ...] | None = None
    publish_bytes_per_s: int | None = None
    read_bytes_per_s: int | None = None
    requests_per_s: int | None = None
    open_calls: int | None = None
    streams_max: int | None = None
    partitions_max: int | None = None
    leases_max: int | None = None  # with this or the next one: FEATURE_LEVEL_SHARES
    metadata_bytes_max: int | None = None
    wrapping_key: str | None = None
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTenant:
    """Delete a tenant that has no stream and no consumer group; does nothing if it is unknown."""

    name: str


TenantCommand = CreateTenant | AlterTenant | DeleteTenant
