"""Ratios that moved are named; noise and a machine that is slower as a whole are not."""

from __future__ import annotations

import pytest

from bench.report.moved import compared, moved
from bench.report.table import Row
from bench.stats import Summary

RATE = Row(path="publish", unit="rec/s", ours=("ours",), default=("peer",))
TIME = Row(path="latency", unit="ms", ours=("ours",), default=("peer",))


def run(ours: float, peer: float, spread: float = 0.0) -> dict[str, Summary]:
    """Return figures with a range of ``spread`` of the median to both sides."""
    return {
        name: Summary(value, value * (1 - spread), value * (1 + spread), 3)
        for name, value in (("ours", ours), ("peer", peer))
    }


@pytest.mark.parametrize(
    ("row", "now", "better"),
    [(RATE, 160, True), (RATE, 60, False), (TIME, 160, False), (TIME, 60, True)],
)
def test_a_ratio_that_moved_is_named(row: Row, now: float, better: bool) -> None:
    """More is better for a rate, less for a time."""
    (found,) = moved([row], run(100, 50), run(now, 50))
    assert (found.before, found.now, found.better) == (2.0, now / 50, better)
    assert row.path in found.text()


def test_noise_and_a_slower_machine_move_nothing() -> None:
    """Both sides at half speed have the same ratio; wide ranges explain a difference."""
    assert moved([RATE], run(100, 50), run(50, 25)) == []
    assert moved([RATE], run(100, 50, spread=0.1), run(130, 50, spread=0.1)) == []
    assert len(moved([RATE], run(100, 50, spread=0.01), run(130, 50, spread=0.01))) == 1


def test_what_one_run_lacks_is_not_compared() -> None:
    """A peer that did not run leaves nothing to compare."""
    alone = {"ours": Summary(1.0, 1.0, 1.0, 1)}
    assert moved([RATE], run(100, 50), alone) == []
    assert compared([RATE], run(100, 50), alone) == 0
    assert compared([RATE], run(100, 50), run(1, 1)) == 1
