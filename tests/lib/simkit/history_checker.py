"""The oracle of the crash tests and the simulator: does a read agree with what clients were told?

Pure: a history and readings in, violations out. Sources: jepsen.tests.kafka for lost, doubled,
aborted and inconsistent offsets; Redpanda's chaos checker for real-time order; the rest is
DESIGN §10. A read is judged against the acks that came before it began, so it may be taken under
load; records without an answer may be absent or present once, but only where they could be.

    lost             an acked record is in no row
    moved, damaged   its content is at another offset; its offset holds other content
    doubled          one content at several offsets         aborted   a refused record is there
    foreign          content that nobody sent
    gap, overlap     an offset of a tier's range is missing, or there twice
    outside          a row outside the range of its tier    unsorted  offsets not ascending
    sent_order       two records of an ordered producer stand the other way round
    real_time_order  a record stands below one that was acked before it was sent
    epoch            leader epochs fall with the offset, or differ from the ack's
    end_went_back    a later read ends or starts lower, or its table is shorter; or the start moved
    rewritten        an offset holds other content than in an earlier read
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from simkit.history import Fate, History, Kind, PartReading, Reading, Row, Verdict, Violation


class HistoryChecker:
    """Judges one reading after another against one history, and against each other."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen: dict[int, PartReading] = {}
        self._contents: dict[int, list[bytes]] = {}  # by offset, as first read
        self.verdict = Verdict()
        self._acks_judged = 0

    def check(self, reading: Reading) -> Verdict:
        """Return what is wrong with this reading; ``self.verdict`` sums over all of them."""
        found = [*self._history.violations[self._acks_judged :]]
        self._acks_judged = len(self._history.violations)
        found += check_reading(self._history, reading)
        for part in reading.parts.values():
            found += self._compare_with_earlier(part)
        verdict = Verdict()
        verdict.add(found)
        self.verdict.add(found)
        return verdict

    def _compare_with_earlier(self, part: PartReading) -> Iterator[Violation]:
        number = part.partition
        earlier = self._seen.get(number)
        if earlier is not None:
            for word in ("start", "cold_end", "hot_end"):
                before, now = getattr(earlier, word), getattr(part, word)
                if now < before:
                    detail = f"{word} was {before} in an earlier read, now {now}"
                    yield Violation(Kind.END_WENT_BACK, number, now, detail)
        known = self._contents.setdefault(number, [])
        for row in _all_rows(part):
            if row.offset < len(known):
                if known[row.offset] != row.fingerprint and known[row.offset]:
                    yield Violation(
                        Kind.REWRITTEN, number, row.offset, "an earlier read found other content"
                    )
            else:
                known.extend([b""] * (row.offset - len(known)))  # a gap, reported as such
                known.append(row.fingerprint)
        self._seen[number] = part


def check_reading(history: History, reading: Reading) -> Iterator[Violation]:
    """Yield what is wrong with one reading taken for itself."""
    for part in reading.parts.values():
        if part.start != 0:
            detail = f"the stream begins at {part.start}; nothing may expire here"
            yield Violation(Kind.GAP, part.partition, 0, detail)
        tiers = (
            (part.cold_rows, part.start, part.cold_end, "cold"),
            (part.hot_rows, part.cold_end, part.hot_end, "hot"),
        )
        for rows, start, end, tier in tiers:
            yield from _check_offsets(part.partition, rows, start, end, tier)
            if reading.sorted_by_offset:
                yield from _check_sorted(part.partition, rows, tier)
        for offset in {row.offset for row in part.cold_rows} & {
            row.offset for row in part.hot_rows
        }:
            yield Violation(Kind.OVERLAP, part.partition, offset, "in both tiers")
        yield from _check_rows(history, part)
    yield from _check_acked(history, reading)


def compare_tables(
    part: PartReading, table_rows: Sequence[Row], *, reader: str
) -> Iterator[Violation]:
    """Yield where a foreign reader's rows of the table differ from ours below the cold end."""
    theirs = {row.offset: row for row in table_rows}
    if len(theirs) != len(table_rows):
        detail = f"{reader} has {len(table_rows) - len(theirs)} offsets more than once"
        yield Violation(Kind.TABLE_DIFFERS, part.partition, None, detail)
    for row in part.cold_rows:
        other = theirs.pop(row.offset, None)
        if other != row:
            detail = f"{reader} has {'no such row' if other is None else 'other content'}"
            yield Violation(Kind.TABLE_DIFFERS, part.partition, row.offset, detail)
    for offset in theirs:
        detail = f"{reader} has a row that our read does not"
        yield Violation(Kind.TABLE_DIFFERS, part.partition, offset, detail)


def _all_rows(part: PartReading) -> list[Row]:
    """Return the rows of both tiers by offset."""
    return sorted([*part.cold_rows, *part.hot_rows])


def _check_offsets(
    partition: int, rows: Sequence[Row], start: int, end: int, tier: str
) -> Iterator[Violation]:
    """Each offset of ``[start, end)`` once: interior, leading and trailing gaps alike."""
    expected = start
    for row in sorted(rows):
        offset = row.offset
        if not start <= offset < end:
            detail = f"the {tier} part is [{start}, {end})"
            yield Violation(Kind.OUTSIDE, partition, offset, detail)
        elif offset < expected:
            yield Violation(Kind.OVERLAP, partition, offset, f"twice in the {tier} part")
        else:
            if offset > expected:
                detail = f"[{expected}, {offset}) is missing in the {tier} part"
                yield Violation(Kind.GAP, partition, expected, detail)
            expected = offset + 1
    if expected < end:
        detail = f"[{expected}, {end}) is missing at the end of the {tier} part"
        yield Violation(Kind.GAP, partition, expected, detail)


def _check_sorted(partition: int, rows: Sequence[Row], tier: str) -> Iterator[Violation]:
    for before, row in pairwise(rows):
        if row.offset < before.offset:
            detail = f"comes after {before.offset} in the {tier} part"
            yield Violation(Kind.UNSORTED, partition, row.offset, detail)
            return


def _check_rows(history: History, part: PartReading) -> Iterator[Violation]:
    """Every row is something that was sent here, once, in an order that could have happened."""
    number = part.partition
    rows = _all_rows(part)
    first_at: dict[bytes, int] = {}
    newest_sent: Fate | None = None
    last_of: dict[str, Fate] = {}
    for before, row in pairwise(rows):
        if row.leader_epoch < before.leader_epoch:
            detail = f"epoch {row.leader_epoch} after {before.leader_epoch}"
            yield Violation(Kind.EPOCH, number, row.offset, detail)
    for row in rows:
        fate = history.by_fingerprint.get(row.fingerprint)
        if fate is None:
            yield Violation(Kind.FOREIGN, number, row.offset, "nobody sent this content")
            continue
        name = fate.sent.name
        first = first_at.setdefault(row.fingerprint, row.offset)
        if first != row.offset:
            yield Violation(Kind.DOUBLED, number, row.offset, f"{name} stands at {first} as well")
            continue
        if fate.sent.partition != number:
            detail = f"{name} was sent to partition {fate.sent.partition}"
            yield Violation(Kind.MOVED, number, row.offset, detail)
        if fate.refused is not None:
            detail = f"{name} was refused: {fate.refused}"
            yield Violation(Kind.ABORTED, number, row.offset, detail)
        yield from _check_epoch_of_ack(number, row, fate)
        if newest_sent is not None and _acked_before_sent(fate, newest_sent):
            detail = f"{name} was acked before {newest_sent.sent.name} below it was sent"
            yield Violation(Kind.REAL_TIME_ORDER, number, row.offset, detail)
        if newest_sent is None or fate.sent.at_ns > newest_sent.sent.at_ns:
            newest_sent = fate
        if history.keeps_order(fate.sent.producer):
            last = last_of.get(fate.sent.producer)
            if last is not None and fate.sent.sequence < last.sent.sequence:
                detail = f"{name} stands above {last.sent.name} of the same producer"
                yield Violation(Kind.SENT_ORDER, number, row.offset, detail)
            last_of[fate.sent.producer] = fate


def _check_epoch_of_ack(partition: int, row: Row, fate: Fate) -> Iterator[Violation]:
    """A retry after a restart may be acked under a newer epoch than its record was stored in."""
    acked = fate.leader_epoch
    if acked is None or fate.offset != row.offset:
        return
    if acked < row.leader_epoch or (fate.attempts == 1 and acked != row.leader_epoch):
        detail = f"{fate.sent.name} was acked in epoch {acked}, its row says {row.leader_epoch}"
        yield Violation(Kind.EPOCH, partition, row.offset, detail)


def _acked_before_sent(fate: Fate, other: Fate) -> bool:
    return fate.acked_ns is not None and fate.acked_ns < other.sent.at_ns


def _check_acked(history: History, reading: Reading) -> Iterator[Violation]:
    """Every record acked before the read began is at its acked offset, and unharmed."""
    found: dict[tuple[int, int], bytes] = {}
    where: dict[bytes, tuple[int, int]] = {}
    for part in reading.parts.values():
        for row in (*part.cold_rows, *part.hot_rows):
            found.setdefault((part.partition, row.offset), row.fingerprint)
            where.setdefault(row.fingerprint, (part.partition, row.offset))
    for name, fate in history.fates.items():
        if fate.offset is None or fate.acked_ns is None or fate.acked_ns > reading.began_ns:
            continue
        partition = fate.sent.partition
        content = found.get((partition, fate.offset))
        if content == fate.sent.fingerprint:
            continue
        if fate.sent.fingerprint in where:
            detail = f"{name} is at {where[fate.sent.fingerprint]} instead"
            yield Violation(Kind.MOVED, partition, fate.offset, detail)
        elif content is not None and content not in history.by_fingerprint:
            yield Violation(Kind.DAMAGED, partition, fate.offset, f"{name} is not what was sent")
        else:
            yield Violation(Kind.LOST, partition, fate.offset, f"{name} was acked")
