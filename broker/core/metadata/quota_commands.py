"""The commands about quotas of principals. Each needs ``FEATURE_LEVEL_ACCESS``."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.quota import Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """Give the principals of a pattern a quota, in place of the one that the pattern has."""

    quota: Quota
    weight_max: int | None = None  # as in CreateStream


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveQuota:
    """Take the quota of a pattern away; does nothing if there is none."""

    principal: str  # the pattern


QuotaCommand = SetQuota | RemoveQuota
