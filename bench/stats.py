"""Statistics of samples: medians with their ranges, and percentiles. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and range of the samples of one figure (both ends of the range are samples)."""

    median: float
    low: float
    high: float
    count: int


def summarise(samples: Sequence[float]) -> Summary:
    """Return median and range of the samples; there must be at least one."""
    assert samples, "there are no samples"
    return Summary(statistics.median(samples), min(samples), max(samples), len(samples))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least ``share`` of all samples do not exceed.

    This is the nearest-rank definition: the result is always a sample, never a value between two.
    ``share`` is in ``(0, 1]``.
    """
    assert samples, "there are no samples"
    assert 0 < share <= 1, f"{share} is not a share"
    ordered = sorted(samples)
    rank = -(-len(ordered) * share // 1)  # ceiling
    return ordered[max(0, int(rank) - 1)]
