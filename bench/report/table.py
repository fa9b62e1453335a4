"""Renders figures as a Markdown table: rows, their bars, and whether the bars are met.

A *figure* is a name like ``publish/100B/1p/flight`` with its samples. A row shows one or more of
our figures and the peers' figures of the same run. A *bar* is the value that a figure has to reach.
A bar that needs a peer which did not run is neither met nor missed; the table says "not run" then.
Rows and bars are data, in rows.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.stats import Summary

Figures = Mapping[str, Summary]

_NOTHING: Final = "–"
_HEAD_LINES: Final = 2
_PEERS: Final = {"jetstream": "JetStream", "kafka": "Kafka", "native": "native Delta scan"}
_NOT_SYNCED: Final = (
    "Neither JetStream R3 nor Kafka RF3 syncs a record before it acknowledges it: both run with "
    "their defaults, and at least two of three nodes have it in memory. Ours is acknowledged when "
    "at least two of three brokers have synced it to their disks."
)


@dataclass(frozen=True, slots=True)
class Times:
    """Our figure is at least (with ``at_most``: at most) ``factor`` times each peer figure."""

    factor: float
    peers: tuple[str, ...]
    at_most: bool = False

    def met(self, ours: Summary, figures: Figures) -> bool | None:
        """Compare the medians; None if one of the peers was not measured."""
        if any(name not in figures for name in self.peers):
            return None
        limits = [self.factor * figures[name].median for name in self.peers]
        if self.at_most:
            return ours.median <= min(limits)
        return ours.median >= max(limits)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Our figure is not below a fixed value."""

    value: float

    def met(self, ours: Summary, figures: Figures) -> bool | None:
        """Judge the median."""
        del figures
        return ours.median >= self.value


@dataclass(frozen=True, slots=True)
class AtMost:
    """Our figure is not above a fixed value."""

    value: float

    def met(self, ours: Summary, figures: Figures) -> bool | None:
        """Judge the median."""
        del figures
        return ours.median <= self.value


Bar = Times | AtLeast | AtMost


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: our figures and the peers' figures, in the same order, joined by a slash.

    ``bars`` has one tuple of bars for each of our figures; all of them have to be met.
    """

    path: str
    unit: str
    ours: tuple[str, ...]
    default: tuple[str, ...] = ()  # the peer with its default settings
    synced: tuple[str, ...] = ()  # the peer, set to sync before it acknowledges
    kafka: tuple[str, ...] = ()  # the second peer, if the table has a column for it
    bar: str = ""
    bars: tuple[tuple[Bar, ...], ...] = ()
    headline: str = ""  # name in the README's short table, which shows the first figure

    def measured(self, figures: Figures) -> bool:
        """Tell whether this run has all of our own figures."""
        return all(name in figures for name in self.ours)


def verdict(row: Row, figures: Figures) -> str:
    """Return yes, no, the peer that did not run, or a dash if the row has no bar."""
    answers = [
        one.met(figures[name], figures)
        for name, bars in zip(row.ours, row.bars, strict=False)
        for one in bars
    ]
    if not answers:
        return _NOTHING
    if False in answers:
        return "**no**"
    if None not in answers:
        return "yes"
    kafka = any(
        isinstance(one, Times)
        and any("kafka" in name and name not in figures for name in one.peers)
        for bars in row.bars
        for one in bars
    )
    return "Kafka not run" if kafka else "peer not run"


def render(rows: Sequence[Row], figures: Figures) -> str:
    """Return the table; rows whose figures this run does not have are left out."""
    lines = _lines(
        "| path | ours | peer, default | peer, synced | ours ÷ default | bar | met |",
        rows,
        figures,
        lambda row: (_cell(row.synced, row.unit, figures), _ratio(row, figures)),
    )
    return "\n".join(lines)


def render_headlines(rows: Sequence[Row], figures: Figures) -> str:
    """Return the short table: what, ours, the best peer of the same run, and the ratio.

    The best peer has the highest rate, or the lowest value of any other unit. Peers run with their
    defaults, whether or not they sync before they acknowledge.
    """
    lines = ["| what | ours | the best peer | ours ÷ peer |", "|---|---|---|---|"]
    for row in rows:
        if not row.headline or row.ours[0] not in figures:
            continue
        ours, peer, shown = figures[row.ours[0]].median, best_peer(row, figures), _NOTHING
        if peer is not None:
            name, value = peer
            shown = f"{quantity(value, row.unit)} {row.unit}, {_PEERS[name]}"
        ratio = _NOTHING if peer is None else f"{ours / peer[1]:.2f}×"
        cells = (row.headline, f"{quantity(ours, row.unit)} {row.unit}", shown, ratio)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def higher_is_better(row: Row) -> bool:
    """Tell rates from times and sizes."""
    return row.unit.endswith("/s")


def best_peer(row: Row, figures: Figures) -> tuple[str, float] | None:
    """Return the best peer and the median of its first figure; None if no peer ran."""
    names = [side[0] for side in (row.default, row.kafka) if side and side[0] in figures]
    if not names:
        return None
    better = max if higher_is_better(row) else min
    best = better(names, key=lambda name: figures[name].median)
    return next(one for one in _PEERS if one in best), figures[best].median


def render_beside(rows: Sequence[Row], figures: Figures) -> str:
    """Return the table of clusters: ours, JetStream R3 and Kafka RF3; empty without figures.

    Rows whose figures this run does not have are left out.
    """
    lines = _lines(
        "| path | ours, 3 brokers | JetStream R3 | Kafka RF3 | ours ÷ best peer | bar | met |",
        rows,
        figures,
        lambda row: (_cell(row.kafka, row.unit, figures), _ratio_to_best(row, figures)),
    )
    return "\n".join([*lines, "", _NOT_SYNCED]) if len(lines) > _HEAD_LINES else ""


def _lines(
    head: str,
    rows: Sequence[Row],
    figures: Figures,
    between: Callable[[Row], tuple[str, str]],
) -> list[str]:
    """Return a table's lines; ``between`` returns a row's cells for second peer and ratio."""
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in rows:
        if row.measured(figures):
            cells = [
                row.path,
                _cell(row.ours, row.unit, figures),
                _cell(row.default, row.unit, figures),
                *between(row),
                row.bar or _NOTHING,
                verdict(row, figures),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def replace_between(text: str, name: str, table: str) -> str:
    """Return ``text`` with everything between the two markers of this name replaced.

    Raises:
        ValueError: the text does not have both markers, once each and in order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end or begin in rest or end in tail:
        raise ValueError(f"the text needs one {begin!r} and, after it, one {end!r}")
    return f"{head}{begin}\n\n{table}\n\n{end}{tail}"


def _cell(names: Sequence[str], unit: str, figures: Figures) -> str:
    found = [figures[name] for name in names if name in figures]
    if not found:
        return _NOTHING
    medians = " / ".join(quantity(one.median, unit) for one in found)
    ranges = " / ".join(f"{quantity(one.low, unit)}–{quantity(one.high, unit)}" for one in found)
    if all(one.count == 1 for one in found):
        return f"{medians} {unit}"
    return f"{medians} {unit} ({ranges})"


def _ratio(row: Row, figures: Figures) -> str:
    pairs = [
        (figures[ours].median, figures[peer].median)
        for ours, peer in zip(row.ours, row.default, strict=False)
        if peer in figures and figures[peer].median > 0
    ]
    return " / ".join(f"{ours / peer:.2f}×" for ours, peer in pairs) or _NOTHING


def _ratio_to_best(row: Row, figures: Figures) -> str:
    """Compare ours with the better peer: the higher rate, or the lower value of other units."""
    better = max if higher_is_better(row) else min
    ratios = []
    for index, ours in enumerate(row.ours):
        names = [side[index] for side in (row.default, row.kafka) if index < len(side)]
        known = [figures[name].median for name in names if name in figures]
        if known and min(known) > 0:
            ratios.append(f"{figures[ours].median / better(known):.2f}×")
    return " / ".join(ratios) or _NOTHING


def quantity(value: float, unit: str) -> str:
    """Return a value with about three significant digits; rates of records in k or M."""
    if unit.endswith("/s") and "B" not in unit:
        if value >= 999_500:
            return f"{_digits(value / 1e6)} M"
        if value >= 1000:
            return f"{_digits(value / 1e3)} k"
    return _digits(value)


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
