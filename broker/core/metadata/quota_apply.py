"""Apply the commands about quotas. Pure. A pattern of principals has one quota; they are sorted."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.quota_commands import QuotaCommand, SetQuota
from broker.core.metadata.size import refused_growth, weight_of_quotas
from broker.core.metadata.state import FEATURE_LEVEL_ACCESS, MetadataState
from broker.errors import InvalidRequestError, MetadataFullError
from broker.model.quota import Quota, check_quota

QUOTAS_MAX: Final = 1_000


def apply_quota(state: MetadataState, command: QuotaCommand) -> Applied:
    """Return the next state and the reply of a command about quotas."""
    low = refused_level(state, FEATURE_LEVEL_ACCESS, "a quota")
    if low is not None:
        return state, Rejected(low)
    rows = {one.principal: one for one in state.quotas}
    if isinstance(command, SetQuota):
        try:
            rows[command.quota.principal] = check_quota(command.quota)
        except InvalidRequestError as refused:
            return state, Rejected(refused)
    else:
        rows.pop(command.principal, None)
    quotas = tuple(rows[name] for name in sorted(rows))
    if quotas == state.quotas:
        return state, {"changed": False}
    weight = state.weight - weight_of_quotas(state.quotas) + weight_of_quotas(quotas)
    if isinstance(command, SetQuota):
        full = _refused_count(quotas) or refused_growth(weight, command.weight_max)
        if full is not None:
            return state, Rejected(full)
    return replace(state, quotas=quotas, weight=weight), {"changed": True}


def _refused_count(quotas: tuple[Quota, ...]) -> MetadataFullError | None:
    if len(quotas) <= QUOTAS_MAX:
        return None
    return MetadataFullError(
        f"a cluster has at most {QUOTAS_MAX} quotas: remove some, or use patterns with *",
        limit=QUOTAS_MAX,
    )
