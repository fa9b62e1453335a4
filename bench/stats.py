"""Statistics of samples: medians with their ranges, and percentiles. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# The shares of all samples by which a distribution is kept and drawn. The peers' programs
# (main.go, ClusterProbe.java) have the same list.
LEVELS: Final = (
    0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0,
)  # fmt: skip


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
