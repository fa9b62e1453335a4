"""Checks of full reads against each other: replicas, the table, reads of both tiers, copies.

What must be equal is named by where the rows come from. Replicas are compared up to the end of the
longest; the table only up to its own end; a local log only from its own start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from checkkit.anomalies import Anomaly, Violation
from checkkit.facts import EMPTY, Facts, Log, within
from checkkit.readings import PartReading, Range, Reading, Row, Rows, Source

_DIFFERS = {
    Source.REPLICA: Anomaly.DIVERGED,
    Source.TABLE: Anomaly.TABLE_DIFFERS,
    Source.UNIFIED: Anomaly.UNIFIED_DIFFERS,
    Source.COPY: Anomaly.UNIFIED_DIFFERS,
}
_RANK = (Source.REPLICA, Source.UNIFIED, Source.TABLE, Source.COPY)


class Truths:
    """By partition: what the final reads together hold, the replicas' word first."""

    def __init__(self, facts: Facts, readings: Sequence[Reading]) -> None:
        self._facts = facts
        self._logs: dict[int, Log] = {}
        self.ends: dict[int, int] = {}
        ranked = sorted(readings, key=lambda one: _RANK.index(one.source))
        for number in sorted({number for one in readings for number in one.parts}):
            parts = [(one.source, one.parts[number]) for one in ranked if number in one.parts]
            self._logs[number] = self._merge(parts)
            best = parts[0][0]
            self.ends[number] = max(part.hot_end for source, part in parts if source is best)

    def _merge(self, parts: Sequence[tuple[Source, PartReading]]) -> Log:
        """The longest log of the best source, and below its start what others have."""
        ranked = sorted(parts, key=lambda one: (_RANK.index(one[0]), -one[1].hot_end))
        merged = EMPTY
        for _, part in ranked:
            log = rows_of(self._facts, part)
            below = log.offsets < merged.offsets[0] if len(merged) else log.offsets >= 0
            merged = log.take(below) + merged
        return merged

    def log(self, partition: int) -> Log:
        """Return the rows of a partition, by offset, each offset once."""
        return self._logs.get(partition, EMPTY)


def rows_of(facts: Facts, part: PartReading) -> Log:
    """Return all rows of a part by offset, each offset once."""
    return (facts.log_of(part.cold_rows) + facts.log_of(part.hot_rows)).distinct()


def check_copies(facts: Facts, truths: Truths, readings: Sequence[Reading]) -> Iterator[Violation]:
    """Yield where final reads of one partition are not the same log."""
    for reading in readings:
        for number, part in reading.parts.items():
            kind = _DIFFERS[reading.source]
            truth, log = truths.log(number), rows_of(facts, part)
            end = part.hot_end if reading.source is Source.TABLE else truths.ends[number]
            span = (truth.offsets >= part.start) & (truth.offsets < end)
            yield from _compare(
                kind, number, truth.take(span), log, (reading.name, facts.holes(part))
            )
            if part.hot_end < end:
                detail = f"{reading.name} ends at {part.hot_end}, another at {end}"
                yield Violation(kind, number, part.hot_end, detail)


def _compare(
    kind: Anomaly, partition: int, truth: Log, log: Log, whose: tuple[str, Sequence[Range]]
) -> Iterator[Violation]:
    name, holes = whose
    if truth.equals(log):
        return
    here, place = log.find(truth.offsets)
    excused = within(truth.offsets, holes)
    for row in np.flatnonzero(~here & ~excused):
        yield Violation(kind, partition, int(truth.offsets[row]), f"{name} has no such row")
    rows = np.flatnonzero(here)
    values = truth.values[rows] != log.values[place[rows]]
    epochs = truth.epochs[rows] != log.epochs[place[rows]]
    times = truth.times_us[rows] != log.times_us[place[rows]]
    for row in np.flatnonzero(values | epochs | times):
        found = place[rows[row]]
        what = f"epoch {log.epochs[found]}" if epochs[row] else f"time {log.times_us[found]}"
        what = "other content" if values[row] else what
        yield Violation(kind, partition, int(truth.offsets[rows[row]]), f"{name} has {what}")
    known, _ = truth.find(log.offsets)
    for offset in log.offsets[~known]:
        yield Violation(kind, partition, int(offset), f"{name} has a row that others do not")


def compare_tables(part: PartReading, table_rows: Rows, *, reader: str) -> Iterator[Violation]:
    """Yield where a foreign reader's rows of the table differ from ours below the cold end."""
    theirs = {row.offset: row for row in as_rows(table_rows)}
    if len(theirs) != len(table_rows):
        detail = f"{reader} has {len(table_rows) - len(theirs)} offsets more than once"
        yield Violation(Anomaly.TABLE_DIFFERS, part.partition, None, detail)
    for row in as_rows(part.cold_rows):
        other = theirs.pop(row.offset, None)
        if other != row:
            detail = f"{reader} has {'no such row' if other is None else 'other content'}"
            yield Violation(Anomaly.TABLE_DIFFERS, part.partition, row.offset, detail)
    for offset in theirs:
        detail = f"{reader} has a row that our read does not"
        yield Violation(Anomaly.TABLE_DIFFERS, part.partition, offset, detail)


def as_rows(rows: Rows) -> Sequence[Row]:
    """Return columns as rows."""
    if isinstance(rows, Sequence):
        return rows
    numbers = (rows.leader_epochs.tolist(), rows.timestamps_us.tolist())
    columns = zip(rows.offsets.tolist(), rows.fingerprints, *numbers, strict=True)
    return [Row(*one) for one in columns]
