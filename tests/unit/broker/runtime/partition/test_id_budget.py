"""The windows of all partitions share one budget, and the largest give way."""

from __future__ import annotations

import pytest

from broker.core.message_ids import NO_BOUND
from broker.runtime.partition.id_budget import IdBudget

BUDGET = 800


def test_while_there_is_room_every_window_takes_what_it_needs() -> None:
    """Up to seven eighths of the budget."""
    budget = IdBudget(BUDGET)
    one, other = budget.share(), budget.share()
    assert one.resized(300) == NO_BOUND
    assert other.resized(400) == NO_BOUND
    assert budget.size_bytes == 700


def test_the_largest_gives_way_before_the_budget_is_used_up() -> None:
    """A window below the level keeps its ids; when all fit, none is bounded."""
    budget = IdBudget(BUDGET)
    large, small = budget.share(), budget.share()
    large.resized(650)
    assert small.resized(100) == 600, "small is below the level"
    assert large.resized(650) == 600, "at its next look"
    assert large.resized(600) == NO_BOUND
    assert budget.size_bytes == 700


def test_nobody_grows_beyond_the_whole_budget() -> None:
    """While the largest window has not shrunk yet, the growing one shrinks: the bound holds."""
    budget = IdBudget(BUDGET)
    large, small = budget.share(), budget.share()
    large.resized(750)
    assert small.resized(100) == 50
    assert small.resized(50) == 600, "it is below the level again"
    assert large.resized(750) == 600


@pytest.mark.parametrize("size", [0, 100])
def test_what_a_window_returns_is_there_for_others(size: int) -> None:
    """Its whole memory, when the partition closes or leads no more."""
    budget = IdBudget(BUDGET)
    one, other = budget.share(), budget.share()
    one.resized(750)
    one.resized(size)
    assert budget.size_bytes == size
    assert other.resized(600) == NO_BOUND
