"""What is made of samples: medians with their range, and percentiles. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples of one figure: median, and the range they lie in (both ends inclusive)."""

    median: float
    low: float
    high: float
    count: int


def summarise(samples: Sequence[float]) -> Summary:
    """Return median and range of at least one sample."""
    assert samples, "nothing was measured"
    return Summary(statistics.median(samples), min(samples), max(samples), len(samples))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least ``share`` of all samples do not exceed.

    The nearest-rank definition: always a value that was measured, never one between two.
    ``share`` is in ``(0, 1]``.
    """
    assert samples, "nothing was measured"
    assert 0 < share <= 1, f"{share} is not a share"
    ordered = sorted(samples)
    rank = -(-len(ordered) * share // 1)  # ceiling
    return ordered[max(0, int(rank) - 1)]
