"""Medians, ranges and percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import Summary, percentile, summarise


def test_a_summary_has_the_middle_and_both_ends() -> None:
    """The median of an even number of samples lies between the two middle ones."""
    assert summarise([4.0, 1.0, 3.0, 2.0]) == Summary(2.5, 1.0, 4.0, 4)
    assert summarise([7.0]) == Summary(7.0, 7.0, 7.0, 1)


def test_nothing_measured_is_not_summarised() -> None:
    """An empty list is a bug of the benchmark, not a figure of zero."""
    with pytest.raises(AssertionError, match="there are no samples"):
        summarise([])
    with pytest.raises(AssertionError, match="there are no samples"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1), (0.5, 50), (0.505, 51), (0.99, 99), (1.0, 100)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    """Of the samples 1 to 100, the p-th percentile is p."""
    samples = [float(one) for one in range(100, 0, -1)]
    assert percentile(samples, share) == expected


@given(
    samples=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50),
    share=st.floats(0.001, 1.0),
)
def test_a_percentile_covers_its_share_and_was_measured(samples: list[float], share: float) -> None:
    """At least that share of the samples does not exceed it, and it is one of them."""
    found = percentile(samples, share)
    assert found in samples
    assert sum(one <= found for one in samples) >= share * len(samples) - 1e-6
