"""The judge: a history and full reads in, a verdict out.

:func:`judge` takes everything at the end of a run. :class:`Checker` takes one read after another
while the run goes on, compares each with the one before it, and counts every violation once.
:func:`check_reading` looks at one read alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from checkkit.anomalies import Anomaly, Verdict, Violation
from checkkit.check_acks import check_acks
from checkkit.check_copies import Truths, check_copies, rows_of
from checkkit.check_log import check_log
from checkkit.check_polls import check_polls
from checkkit.facts import Facts, Log, Rules
from checkkit.history import History
from checkkit.readings import PartReading, Reading, Source

USUAL: Final = Rules()


def judge(history: History, finals: Sequence[Reading], rules: Rules = USUAL) -> Verdict:
    """Judge a whole run by its history and its final reads: every replica, the table, both tiers.

    The final reads are taken after all load has ended and everything has healed: copies that
    still differ then differ for good.
    """
    return Verdict.of(find_all(history, finals, rules))


def find_all(
    history: History, finals: Sequence[Reading], rules: Rules = USUAL
) -> Collection[Violation]:
    """Return what is wrong with a whole run, each violation once; see :func:`judge`."""
    facts = Facts(history, rules)
    found = [*check_acks(facts)]
    truths = Truths(facts, finals) if finals else None
    if truths is not None:
        for reading in _different(facts, finals):
            found += check_log(facts, reading)
        found += check_copies(facts, truths, finals)
    found += check_polls(facts, truths)
    return dict.fromkeys(found)  # what every replica lacks is lost once


def check_reading(history: History, reading: Reading, rules: Rules = USUAL) -> Iterator[Violation]:
    """Yield what is wrong with one read taken for itself."""
    return check_log(Facts(history, rules), reading)


def _different(facts: Facts, readings: Sequence[Reading]) -> Iterator[Reading]:
    """Yield the readings without those that repeat an earlier replica's word for word."""
    known: list[tuple[Reading, dict[int, Log]]] = []
    for reading in readings:
        if reading.source is Source.REPLICA:
            logs = {number: rows_of(facts, part) for number, part in reading.parts.items()}
            if any(_same(facts, reading, logs, *one) for one in known):
                continue
            known.append((reading, logs))
        yield reading


def _same(
    facts: Facts, one: Reading, logs: dict[int, Log], other: Reading, others: dict[int, Log]
) -> bool:
    """Tell whether the other reading, of the same rows, was judged by the same acks."""
    first_ns, last_ns = sorted((one.began_ns, other.began_ns))
    if logs.keys() != others.keys():
        return False
    if ((facts.acked_ns > first_ns) & (facts.acked_ns <= last_ns)).any():
        return False
    return all(
        logs[number].equals(others[number])
        and len(part.cold_rows) + len(part.hot_rows) == len(logs[number])
        and (part.start, part.hot_end) == (other.parts[number].start, other.parts[number].hot_end)
        for number, part in one.parts.items()
    )


class Checker:
    """Judges one reading after another against one history, and against each other."""

    def __init__(self, history: History, rules: Rules = USUAL) -> None:
        self._history, self._rules = history, rules
        self._earlier: dict[int, PartReading] = {}
        # By offset, as first read: content and time. A gap is -1.
        self._contents: dict[int, tuple[list[int], list[int]]] = {}
        self._counted: set[Violation] = set()
        self.verdict = Verdict()

    def check(self, reading: Reading) -> Verdict:
        """Return what is wrong with this reading; ``self.verdict`` sums over all of them."""
        facts = Facts(self._history, self._rules)
        found = [*check_acks(facts), *check_log(facts, reading)]
        for part in reading.parts.values():
            found += self._compare_with_earlier(facts, part)
        self.add(found)
        return Verdict.of(found)

    def check_alone(self, reading: Reading) -> None:
        """Judge a reading with which no later one is compared."""
        self.add(check_reading(self._history, reading, self._rules))

    def finish(self, finals: Sequence[Reading]) -> Verdict:
        """Judge the end of the run; see :func:`judge`."""
        self.add(find_all(self._history, finals, self._rules))
        return self.verdict

    def add(self, violations: Iterable[Violation]) -> None:
        """Count what has not been counted before."""
        fresh = dict.fromkeys(one for one in violations if one not in self._counted)
        self._counted.update(fresh)
        self.verdict.add(fresh)

    def _compare_with_earlier(self, facts: Facts, part: PartReading) -> Iterator[Violation]:
        number = part.partition
        earlier = self._earlier.get(number)
        if earlier is not None:
            for word in ("start", "cold_end", "hot_end"):
                before, now = getattr(earlier, word), getattr(part, word)
                if now < before:
                    detail = f"{word} was {before} in an earlier read, now {now}"
                    yield Violation(Anomaly.END_WENT_BACK, number, now, detail)
        known, times = self._contents.setdefault(number, ([], []))
        log = rows_of(facts, part)
        columns = zip(log.offsets.tolist(), log.values.tolist(), log.times_us.tolist(), strict=True)
        for offset, value, time_us in columns:
            if offset >= len(known):
                gap = [-1] * (offset - len(known))  # reported as such
                known += [*gap, value]
                times += [*gap, time_us]
            elif known[offset] not in {value, -1}:
                detail = "an earlier read found other content"
                yield Violation(Anomaly.REWRITTEN, number, offset, detail)
            elif known[offset] != -1 and times[offset] != time_us:
                detail = f"an earlier read found the time {times[offset]}, this one {time_us}"
                yield Violation(Anomaly.REWRITTEN, number, offset, detail)
        self._earlier[number] = part
