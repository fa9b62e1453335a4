"""What the plots of a run show, as numbers: bars, curves, steps and ratios. Pure.

``plots.py`` draws it, in an environment of its own; this is what tests can look at without one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.recorder import figures_of, load_samples, load_scale
from bench.report.cluster_rows import CLUSTER_ROWS
from bench.report.rows import ROWS
from bench.report.table import Figures, Row, best_peer, higher_is_better
from bench.stats import LEVELS

_CONTINUED: Final = "…"  # how the path of a row begins that says more about the row above it


@dataclass(frozen=True, slots=True)
class Run:
    """The samples of a run with their details, and their summaries."""

    samples: Sequence[Mapping[str, Any]]
    figures: Figures
    scale: float = 1.0

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read a result file; raises ValueError for any other file."""
        samples = load_samples(path)
        return cls(samples, figures_of(samples), load_scale(path))

    def of(self, figure: str, detail: str) -> list[Mapping[str, Any]]:
        """Return the samples of a figure that have this detail, in the order of their time."""
        return [one for one in self.samples if one["figure"] == figure and detail in one]


def bars(run: Run, paths: Sequence[str], sides: Sequence[str]) -> list[tuple[int, float]]:
    """Return the number of each path that one of the sides was measured on, and its median."""
    return [
        (at, run.figures[name].median)
        for at, path in enumerate(paths)
        for name in (f"{path}/{side}" for side in sides)
        if name in run.figures
    ]


def exceedance(run: Run, figure: str) -> list[tuple[float, float]]:
    """Return milliseconds and the share of records that took longer; the median of all turns.

    The longest record of all is left out: the share above it is 0, which a logarithmic scale does
    not have. Empty if the figure's samples do not have their levels.
    """
    turns = [
        {float(share): value for share, value in one["levels_us"].items()}
        for one in run.of(figure, "levels_us")
    ]
    if not turns:
        return []
    return [
        (statistics.median(one[level] for one in turns) / 1e3, 1 - level)
        for level in LEVELS
        if level < 1
    ]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Acknowledgements around one kill: rates of slots, whose edges are one more."""

    without_s: float  # from the kill to the next acknowledged publish
    edges_s: tuple[float, ...]
    per_s: tuple[float, ...]


def timeline(run: Run, figure: str) -> Timeline | None:
    """Return the timeline of the median kill; None if the figure has none."""
    kills = sorted(run.of(figure, "acks_by_slot"), key=lambda one: float(one["value"]))
    if not kills:
        return None
    one = kills[len(kills) // 2]
    counts, slot_s, from_s = one["acks_by_slot"], one["slot_s"], one["acks_from_s"]
    return Timeline(
        without_s=one["value"],
        edges_s=tuple(from_s + at * slot_s for at in range(len(counts) + 1)),
        per_s=tuple(count / slot_s for count in counts),
    )


def ratios(run: Run) -> list[tuple[str, float]]:
    """Return each path's name, and how many times as good as its best peer it is.

    Of rates it is ours ÷ peer, of everything else peer ÷ ours, so that above 1 is better. Paths
    without a peer in this run are left out.
    """
    named = [*(("", row) for row in ROWS), *(("three brokers: ", row) for row in CLUSTER_ROWS)]
    found = []
    for prefix, row in named:
        ratio = None if row.path.startswith(_CONTINUED) else _times_as_good(run, row)
        if ratio is not None:
            found.append((prefix + _short(row.path), ratio))
    return found


def _times_as_good(run: Run, row: Row) -> float | None:
    peer = best_peer(row, run.figures)
    if peer is None or row.ours[0] not in run.figures:
        return None
    ours, theirs = run.figures[row.ours[0]].median, peer[1]
    return ours / theirs if higher_is_better(row) else theirs / ours


def _short(path: str) -> str:
    """Return a row's name without what the table says in brackets, or of percentiles and syncs."""
    for more in (" (peer", ";", ": p50", ", p50 /"):
        path = path.partition(more)[0]
    return path
