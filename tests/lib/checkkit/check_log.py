"""Checks of one full read against what publishers were told before it began.

Records without an answer may be absent, or present once, but only where they could be. A record
acked under LEADER may be absent too: its ack promised one disk and one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from checkkit.anomalies import Anomaly, Violation
from checkkit.facts import Facts, Flags, Log, within
from checkkit.history import NEVER, NOBODY
from checkkit.readings import Ints, PartReading, Range, Reading, Source

Parts = dict[int, Log]  # by partition, rows by offset


def check_log(facts: Facts, reading: Reading) -> Iterator[Violation]:
    """Yield what is wrong with one full read."""
    parts: Parts = {}
    for number, part in reading.parts.items():
        cold, hot = facts.log_of(part.cold_rows), facts.log_of(part.hot_rows)
        yield from _check_start(facts, part, reading.source)
        holes = facts.holes(part)
        tiers = (
            (cold, part.start, part.cold_end, "cold"),
            (hot, part.cold_end, part.hot_end, "hot"),
        )
        for log, start, end, tier in tiers:
            yield from _check_offsets(number, log.offsets, (start, end), holes, tier)
            if reading.sorted_by_offset:
                yield from _check_sorted(number, log.offsets, tier)
        overlap = np.isin(cold.offsets, hot.offsets) if len(hot) else ()
        for offset in np.unique(cold.offsets[np.flatnonzero(overlap)]):
            yield Violation(Anomaly.OVERLAP, number, int(offset), "in both tiers")
        parts[number] = (cold + hot).sorted()
        yield from check_rows(facts, number, parts[number])
    yield from _check_acked(facts, reading, parts)


def _check_start(facts: Facts, part: PartReading, source: Source) -> Iterator[Violation]:
    """Only retention moves the start; a replica's own log may begin where the table ends."""
    excused = facts.rules.expires or source is Source.REPLICA
    if part.start and not excused:
        missing = ~within(np.arange(part.start), facts.holes(part))
        if missing.any():
            detail = f"it begins at {part.start}; nothing may expire here"
            yield Violation(Anomaly.GAP, part.partition, int(np.argmax(missing)), detail)


def _check_offsets(
    partition: int, offsets: Ints, span: Range, holes: Sequence[Range], tier: str
) -> Iterator[Violation]:
    """Each offset of ``[start, end)`` once: interior, leading and trailing gaps alike."""
    start, end = span
    outside = (offsets < start) | (offsets >= end)
    for offset in offsets[outside]:
        detail = f"the {tier} part is [{start}, {end})"
        yield Violation(Anomaly.OUTSIDE, partition, int(offset), detail)
    known = np.sort(offsets[~outside])
    for offset in known[1:][known[1:] == known[:-1]]:
        yield Violation(Anomaly.OVERLAP, partition, int(offset), f"twice in the {tier} part")
    bounded = np.concatenate([[start - 1], known, [end]])
    for place in np.flatnonzero(np.diff(bounded) > 1):
        first, last = int(bounded[place]) + 1, int(bounded[place + 1])
        missing = ~within(np.arange(first, last), holes)
        if missing.any():
            detail = f"[{first}, {last}) is missing in the {tier} part"
            yield Violation(Anomaly.GAP, partition, first + int(np.argmax(missing)), detail)


def _check_sorted(partition: int, offsets: Ints, tier: str) -> Iterator[Violation]:
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        place = int(falls[0])
        detail = f"comes after {offsets[place]} in the {tier} part"
        yield Violation(Anomaly.UNSORTED, partition, int(offsets[place + 1]), detail)


def check_rows(facts: Facts, partition: int, log: Log) -> Iterator[Violation]:
    """Every row is something that was sent here, once, in an order that could have happened."""
    for place in np.flatnonzero(log.epochs[1:] < log.epochs[:-1]):
        detail = f"epoch {log.epochs[place + 1]} after {log.epochs[place]}"
        yield Violation(Anomaly.EPOCH, partition, int(log.offsets[place + 1]), detail)
    records = facts.records_of(log.values)
    for place in np.flatnonzero(records == NOBODY):
        detail = "nobody sent this content"
        yield Violation(Anomaly.FOREIGN, partition, int(log.offsets[place]), detail)
    for place in np.flatnonzero(facts.other_time(log.values, log.times_us)):
        record = int(records[place])
        sent_us = facts.record["timestamp_us"][record]
        detail = f"{facts.name(record)} was sent with {sent_us}, its row has {log.times_us[place]}"
        yield Violation(Anomaly.OTHER_TIME, partition, int(log.offsets[place]), detail)
    known = np.flatnonzero(records != NOBODY)
    _, first, inverse = np.unique(records[known], return_index=True, return_inverse=True)
    again = known != known[first][inverse]
    for place in np.flatnonzero(again):
        row, other = known[place], known[first[inverse[place]]]
        record, offset, lower = int(records[row]), int(log.offsets[row]), int(log.offsets[other])
        once = facts.record["identified"][record] and offset != lower
        if once and not facts.stored_again(record, partition, lower, offset):
            detail = f"{facts.name(record)} stands at {lower} as well"
            yield Violation(Anomaly.DOUBLED, partition, offset, detail)
    rows = known[~again]
    yield from _check_places(facts, partition, log.take(rows), records[rows])
    yield from _check_orders(facts, partition, log.take(rows), records[rows])


def _check_places(facts: Facts, partition: int, log: Log, records: Ints) -> Iterator[Violation]:
    """Partition, outcome and epoch of each row agree with its publisher's note."""

    def found(kind: Anomaly, flags: Flags) -> Iterator[tuple[int, int]]:
        for place in np.flatnonzero(flags):
            yield int(log.offsets[place]), int(place)

    asked = facts.record["partition"][records]
    for offset, place in found(Anomaly.MOVED, asked != partition):
        detail = f"{facts.name(records[place])} was sent to partition {asked[place]}"
        yield Violation(Anomaly.MOVED, partition, offset, detail)
    for offset, place in found(Anomaly.ABORTED, facts.failed[records]):
        record = int(records[place])
        detail = f"{facts.name(record)} was refused: {facts.history.fail_reasons.get(record)}"
        yield Violation(Anomaly.ABORTED, partition, offset, detail)
    acked = facts.acked_epoch[records]
    here = (facts.acked_offset[records] == log.offsets) & (acked != NOBODY)
    # A retry may be acked under a newer epoch than the one in which its record was stored.
    once = (facts.record["attempts"][records] == 1) & (not facts.rules.transport_doubles)
    wrong = (facts.ack_is_kept[records] & (acked < log.epochs)) | (once & (acked != log.epochs))
    for offset, place in found(Anomaly.EPOCH, here & wrong):
        name, epoch = facts.name(records[place]), log.epochs[place]
        detail = f"{name} was acked in epoch {acked[place]}, its row says {epoch}"
        yield Violation(Anomaly.EPOCH, partition, offset, detail)


def _check_orders(facts: Facts, partition: int, log: Log, records: Ints) -> Iterator[Violation]:
    """Nothing stands below a record that was acked before it was sent; sequences ascend."""
    if not len(log):
        return
    # What a LEADER ack spoke of is this row only if the row is of that epoch.
    same_epoch = facts.acked_epoch[records] == log.epochs
    settled = (facts.acked_offset[records] == log.offsets) & (
        facts.ack_is_kept[records] | same_epoch
    )
    acked_ns = np.where(settled, facts.acked_ns[records], NEVER)
    earliest = np.minimum.accumulate(acked_ns[::-1])[::-1]
    sent_ns = facts.record["first_ns"][records]
    for place in np.flatnonzero(sent_ns[:-1] > earliest[1:]):
        above = int(place) + 1 + int(np.argmin(acked_ns[place + 1 :]))
        name, other = facts.name(records[place]), facts.name(records[above])
        detail = f"{name} was sent after {other} above it was acked"
        yield Violation(Anomaly.REAL_TIME_ORDER, partition, int(log.offsets[place]), detail)
    ordered = np.flatnonzero(facts.is_ordered[records])
    producers = facts.record["producer"][records[ordered]]
    rows = ordered[np.argsort(producers, kind="stable")]
    producers = facts.record["producer"][records[rows]]
    sequences = facts.record["sequence"][records[rows]]
    falls = (producers[1:] == producers[:-1]) & (sequences[1:] < sequences[:-1])
    for place in np.flatnonzero(falls):
        one, other = records[rows[place + 1]], records[rows[place]]
        detail = f"{facts.name(one)} stands above {facts.name(other)} of the same producer"
        offset = int(log.offsets[rows[place + 1]])
        yield Violation(Anomaly.SENT_ORDER, partition, offset, detail)


def _check_acked(facts: Facts, reading: Reading, parts: Parts) -> Iterator[Violation]:
    """Every record acked for good before the read began is at its offset, and unharmed."""
    due = facts.acked_ns <= reading.began_ns
    partitions = facts.record["partition"]
    missing: list[tuple[int, int]] = []  # (record, value at its offset)
    for number, part in reading.parts.items():
        log = parts[number].distinct()
        mine = np.flatnonzero(due & (partitions == number))
        offsets = facts.acked_offset[mine]
        excused = within(offsets, facts.holes(part))
        if facts.rules.expires or reading.source is Source.REPLICA:
            excused |= offsets < part.start
        if reading.source is Source.TABLE:  # what comes after is in the log
            excused |= offsets >= part.hot_end
        mine, offsets = mine[~excused], offsets[~excused]
        here, place = log.find(offsets)
        values = np.where(here, log.values[place], NOBODY) if len(log) else here * 0 + NOBODY
        wrong = np.flatnonzero(values != facts.record["value"][mine])
        missing += [(int(mine[one]), int(values[one])) for one in wrong]
    if missing:
        yield from _explain(facts, parts, missing)


def _explain(facts: Facts, parts: Parts, missing: Sequence[tuple[int, int]]) -> Iterator[Violation]:
    """Say of each record that is not where its ack says what became of it."""
    wanted = np.array([facts.record["value"][record] for record, _ in missing], np.int64)
    where: dict[int, tuple[int, int, int]] = {}
    for number, log in parts.items():
        for place in np.flatnonzero(np.isin(log.values, wanted)):
            here = (number, int(log.offsets[place]), int(log.epochs[place]))
            where.setdefault(int(log.values[place]), here)
    for record, value in missing:
        partition, offset = int(facts.record["partition"][record]), int(facts.acked_offset[record])
        at = where.get(int(facts.record["value"][record]))
        name = facts.name(record)
        if not facts.ack_is_kept[record]:
            if at is not None and at[2] == facts.acked_epoch[record] and not facts.history.forgiven:
                detail = f"{name} is at {at[:2]} in the epoch of its ack"
                yield Violation(Anomaly.MOVED, partition, offset, detail)
        elif at is not None:
            yield Violation(Anomaly.MOVED, partition, offset, f"{name} is at {at[:2]} instead")
        elif value != NOBODY and facts.records_of(np.array([value]))[0] == NOBODY:
            detail = f"{name} is not what was sent"
            yield Violation(Anomaly.DAMAGED, partition, offset, detail)
        else:
            yield Violation(Anomaly.LOST, partition, offset, f"{name} was acked")
