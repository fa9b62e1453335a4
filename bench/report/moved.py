"""Which ratios moved between two runs by more than their noise. Pure.

Absolute numbers of two days differ with the machine. The ratio of ours to a peer of the same run
differs less. Its noise is what its two sides ranged over in both runs, and at least a fixed share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bench.report.table import Figures, Row
from bench.stats import Summary

NOISE_MIN: Final = 0.15  # two turns of a side that happen to agree do not make a machine quiet


@dataclass(frozen=True, slots=True)
class Moved:
    """The ratio of one row in both runs, and the factor within which it may differ."""

    path: str
    before: float
    now: float
    noise: float
    better: bool

    def text(self) -> str:
        """Return one line for a reader."""
        word = "better" if self.better else "WORSE"
        return (
            f"{word}: {self.path}: ours ÷ peer {self.before:.2f} before, {self.now:.2f} now "
            f"(noise up to {self.noise:.0%})"
        )


def moved(rows: Iterable[Row], before: Figures, now: Figures) -> list[Moved]:
    """Return the rows whose ratio of medians differs by more than the noise of its four figures."""
    found = []
    for row, ours, peer in _in_both(rows, before, now):
        figures = [run[name] for name in (ours, peer) for run in (before, now)]
        noise = NOISE_MIN + sum(map(_spread, figures))
        old, new = (run[ours].median / run[peer].median for run in (before, now))
        if max(old, new) > (1 + noise) * min(old, new):
            better = (new > old) == row.unit.endswith("/s")
            found.append(Moved(row.path, old, new, noise, better))
    return found


def compared(rows: Iterable[Row], before: Figures, now: Figures) -> int:
    """Return how many ratios both runs have."""
    return len(list(_in_both(rows, before, now)))


def _in_both(rows: Iterable[Row], before: Figures, now: Figures) -> Iterator[tuple[Row, str, str]]:
    """Yield the figures of ours and of the peer that both runs have."""
    for row in rows:
        for ours, peer in zip(row.ours, row.default, strict=False):
            if all(name in run for name in (ours, peer) for run in (before, now)):
                yield row, ours, peer


def _spread(one: Summary) -> float:
    """Return half of the range, as a share of the median."""
    return (one.high - one.low) / 2 / one.median if one.median else 0.0
