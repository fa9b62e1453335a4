"""Apply the commands about tenants, and count what tenants have. Pure."""

from __future__ import annotations

import dataclasses
from typing import Final

from broker.core.access.tenants import shared_with
from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.size import refused_growth, weight_of_tenant
from broker.core.metadata.state import FEATURE_LEVEL_ACCESS, FEATURE_LEVEL_SHARES, MetadataState
from broker.core.metadata.tenant_commands import (
    AlterTenant,
    CreateTenant,
    DeleteTenant,
    TenantCommand,
)
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    MetadataFullError,
    QuotaExceededError,
    TenantExistsError,
    TenantInUseError,
    UnknownTenantError,
)
from broker.model.tenant import COUNTS, SHARES, TENANTS_MAX, Tenant, check_tenant, tenant_of

_CHANGES: Final = tuple(
    one.name for one in dataclasses.fields(AlterTenant) if one.name not in ("name", "weight_max")
)


def apply_tenant(state: MetadataState, command: TenantCommand) -> Applied:
    """Return the next state and the reply of a command about tenants."""
    low = refused_level(state, level_of(command), "a tenant, or a share of a tenant,")
    if low is not None:
        return state, Rejected(low)
    try:
        match command:
            case CreateTenant():
                return _put(state, _created(state, command.tenant), command.weight_max)
            case AlterTenant():
                return _put(state, _altered(state, command), command.weight_max)
            case DeleteTenant():
                return _deleted(state, command.name)
    except HeadwaterError as refused:
        return state, Rejected(refused)


def level_of(command: Command) -> int:
    """Return the feature level that a command about access needs."""
    shares = False
    match command:
        case CreateTenant():
            shares = command.tenant.has_shares
        case AlterTenant():
            shares = any(getattr(command, name) is not None for name in SHARES)
        case _:
            pass
    return FEATURE_LEVEL_SHARES if shares else FEATURE_LEVEL_ACCESS


def refused_beyond_tenant(
    state: MetadataState, name: str, *, streams: int, partitions: int
) -> QuotaExceededError | None:
    """Return the error if the tenant of a stream may not have that many more, or None."""
    tenant = tenant_of(state.tenants, name)
    if tenant is None or not (tenant.streams_max or tenant.partitions_max):
        return None
    own = [one for key, one in state.streams.items() if key.startswith(tenant.prefix)]
    counts = {
        "streams_max": len(own) + streams,
        "partitions_max": sum(one.config.partitions for one in own) + partitions,
    }
    for limit in COUNTS:
        most: int = getattr(tenant, limit)
        if 0 < most < counts[limit]:
            return QuotaExceededError(
                f"tenant {tenant.name!r} may have {most} {limit.removesuffix('_max')}, and would "
                f"have {counts[limit]}: delete some, or ask an administrator for more",
                tenant=tenant.name,
                limit=limit,
            )
    return None


def _created(state: MetadataState, wanted: Tenant) -> Tenant:
    present = state.tenants.get(wanted.name)
    if present is not None and present != wanted:
        raise TenantExistsError(
            f"tenant {wanted.name!r} exists, and is another one: alter it",
            tenant=wanted.name,
        )
    if present is None and len(state.tenants) >= TENANTS_MAX:
        raise MetadataFullError(f"a cluster has at most {TENANTS_MAX} tenants", limit=TENANTS_MAX)
    return wanted


def _altered(state: MetadataState, command: AlterTenant) -> Tenant:
    present = state.tenants.get(command.name)
    if present is None:
        raise UnknownTenantError(f"no tenant is named {command.name!r}", tenant=command.name)
    wanted = {name: getattr(command, name) for name in _CHANGES}
    return dataclasses.replace(
        present, **{name: one for name, one in wanted.items() if one is not None}
    )


def _put(state: MetadataState, wanted: Tenant, weight_max: int | None) -> Applied:
    present = state.tenants.get(wanted.name)
    if present == wanted:
        return state, {"changed": False}
    check_tenant(wanted)
    others = [one for one in state.tenants.values() if one.name != wanted.name]
    shared = shared_with(wanted, others)
    if shared is not None:
        other, pattern = shared
        raise InvalidRequestError(
            f"{pattern!r} is of tenant {other.name!r}: a principal and a subject are of one tenant",
            tenant=other.name,
        )
    before = 0 if present is None else weight_of_tenant(present)
    weight = state.weight - before + weight_of_tenant(wanted)
    full = refused_growth(weight, weight_max)
    if full is not None:
        raise full
    tenants = {**state.tenants, wanted.name: wanted}
    return dataclasses.replace(state, tenants=tenants, weight=weight), {"changed": True}


def _deleted(state: MetadataState, name: str) -> Applied:
    present = state.tenants.get(name)
    if present is None:
        return state, {"changed": False}
    streams = sum(one.startswith(present.prefix) for one in state.streams)
    groups = sum(one.startswith(present.prefix) for one in state.groups)
    if streams or groups:
        raise TenantInUseError(
            f"tenant {name!r} has {streams} streams and {groups} consumer groups: delete them "
            "first, or take its principals away to close it",
            tenant=name,
        )
    tenants = {key: one for key, one in state.tenants.items() if key != name}
    weight = state.weight - weight_of_tenant(present)
    return dataclasses.replace(state, tenants=tenants, weight=weight), {"changed": True}
