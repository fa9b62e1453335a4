"""Random histories of an honest cluster, and ways to spoil one so that a promise is broken.

The cluster is a list of rows and an epoch: what it does is right by construction. Leaders change
and lose what only they had; publishers use all three policies, retry, give up; consumers of both
kinds poll, are truncated with notice, restart. A spoiler changes one thing in what was recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from broker.model.records import AckPolicy
from checkkit.anomalies import Anomaly
from checkkit.history import History
from checkkit.readings import NO_TIME, PartReading, Reading, Row, Source, of_log
from checkkit.story import content

POLICIES: Final = (AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE)


@dataclass(slots=True)
class Run:
    """A history with its final reads, and what a spoiler may want to know."""

    history: History
    finals: list[Reading]
    rows: list[Row]  # the final log
    kept: list[int] = field(default_factory=list)  # offsets that were acked under ALL


class Generator:
    """Tells one run of one partition."""

    def __init__(self, rng: random.Random, *, steps: int = 120) -> None:
        self._rng = rng
        self._steps = steps
        self._now_ns = 0
        self._epoch = 1
        self._history = History()
        self._rows: list[Row] = []
        self._committed = 0  # rows that no failover takes away
        self._waiting: list[tuple[int, int, int]] = []  # (ALL record, offset, epoch)
        self._count = 0
        self._kept: list[int] = []
        self._positions: dict[str, int] = {}
        self._history.expect_order("ordered")

    def run(self) -> Run:
        """Tell it."""
        actions: Sequence[Callable[[], None]] = (
            self._publish, self._publish, self._publish, self._publish, self._commit, self._commit,
            self._poll_committed, self._poll_committed, self._poll_uncommitted, self._fail_over,
        )  # fmt: skip
        self._publish_ordered()
        for _ in range(self._steps):
            self._rng.choice(actions)()
        self._publish_ordered()
        self._commit(everything=True)
        self._poll_committed(everything=True)
        self._history.follow_to_the_end("reader", 0)
        return Run(self._history, self._finals(), list(self._rows), sorted(self._kept))

    def _tick(self) -> int:
        self._now_ns += 10
        return self._now_ns

    def _send(self, policy: AckPolicy, producer: str = "any") -> tuple[int, Row]:
        name, self._count = f"r{self._count}", self._count + 1
        sent_us = self._rng.choice([NO_TIME, self._rng.randrange(1 << 40)])
        record = self._history.publish(
            content(name), partition=0, at_ns=self._tick(), producer=producer,
            sequence=self._count, policy=policy, name=name, timestamp_us=sent_us,
        )  # fmt: skip
        time_us = self._now_ns if sent_us == NO_TIME else sent_us
        return record, Row(len(self._rows), content(name), self._epoch, time_us)

    def _publish(self) -> None:
        """Send a record; it is stored or not, answered or not, and perhaps retried."""
        rng = self._rng
        policy = rng.choice(POLICIES)
        record, row = self._send(policy)
        if rng.random() < 0.1:  # refused: nothing is stored unless the retry is
            self._history.fail(record, "refused")
            if rng.random() < 0.5:
                return
            self._history.retry(record)
        if rng.random() < 0.1:
            return  # lost on its way: unknown for ever
        self._rows.append(row)
        if policy is AckPolicy.ALL:
            self._waiting.append((record, row.offset, self._epoch))
        elif policy is AckPolicy.LEADER and rng.random() < 0.8:
            self._ok(record, row.offset)

    def _publish_ordered(self) -> None:
        """Two records of an ordered producer, acknowledged at once."""
        for _ in range(2):
            record, row = self._send(AckPolicy.ALL, "ordered")
            self._rows.append(row)
            self._commit(everything=True)
            self._keep(record, row.offset)

    def _ok(self, record: int, offset: int, *, duplicate: bool = False) -> None:
        self._history.ok(
            record, at_ns=self._tick(), offset=offset, leader_epoch=self._epoch,
            duplicate=duplicate, node=f"broker {self._epoch % 3}",
        )  # fmt: skip

    def _keep(self, record: int, offset: int) -> None:
        self._ok(record, offset)
        self._kept.append(offset)

    def _commit(self, *, everything: bool = False) -> None:
        """Let the high watermark rise, and answer those who waited for it."""
        low, high = self._committed, len(self._rows)
        self._committed = high if everything else self._rng.randint(low, high)
        for one in [one for one in self._waiting if one[1] < self._committed]:
            record, offset, epoch = one
            self._waiting.remove(one)
            dice = self._rng.random()
            if dice < 0.2 or epoch < self._epoch:  # no answer came, the retry finds the record
                self._history.retry(record)
                self._ok(record, offset, duplicate=True)
                self._kept.append(offset)
            elif dice < 0.9:
                self._keep(record, offset)

    def _fail_over(self) -> None:
        """Elect: every committed row stays, of the others any number."""
        if self._rng.random() < 0.5:
            return
        kept = self._rng.randint(self._committed, len(self._rows))
        del self._rows[kept:]
        self._waiting = [one for one in self._waiting if one[1] < kept]
        self._epoch += 1
        position = self._positions.get("eager", 0)
        if position > kept:
            self._history.truncated("eager", 0, kept)
            self._positions["eager"] = kept

    def _poll_committed(self, *, everything: bool = False) -> None:
        self._poll("reader", self._committed, committed=True, everything=everything)

    def _poll_uncommitted(self) -> None:
        self._poll("eager", len(self._rows), committed=False, everything=False)

    def _poll(self, who: str, end: int, *, committed: bool, everything: bool) -> None:
        start = self._positions.get(who, 0)
        count = end - start if everything else min(end - start, self._rng.randint(0, 8))
        rows = self._rows[start : start + max(count, 0)]
        self._history.poll(
            who, 0, rows, began_ns=self._tick(), at_ns=self._tick(), committed=committed,
            high_watermark=self._committed if committed else -1,
            node=f"broker {self._epoch % 3}", leader_epoch=self._epoch,
        )  # fmt: skip
        self._positions[who] = start + len(rows)

    def _finals(self) -> list[Reading]:
        rows, end = self._rows, len(self._rows)
        cold_end = self._rng.randint(0, end)
        freed = self._rng.randint(0, cold_end)
        logs = [of_log(0, rows, end=end), of_log(0, rows[freed:], start=freed, end=end)]
        finals = [
            Reading.of(f"replica {number}", self._tick(), [part], Source.REPLICA)
            for number, part in enumerate(logs)
        ]
        table = of_log(0, rows[:cold_end], end=cold_end)
        both = PartReading(
            partition=0, start=0, cold_end=cold_end, hot_end=end,
            cold_rows=rows[:cold_end], hot_rows=rows[cold_end:],
        )  # fmt: skip
        finals.append(Reading.of("table", self._tick(), [table], Source.TABLE))
        finals.append(Reading.of("unified", self._tick(), [both]))
        return finals


Spoiler = Callable[[Run, random.Random], set[Anomaly]]


def _replace_rows(run: Run, change: Callable[[list[Row]], list[Row]], number: int = 0) -> None:
    """Change what one final read returned."""
    reading = run.finals[number]
    part = reading.parts[0]
    assert not isinstance(part.hot_rows, tuple)
    rows = change([Row(*row) for row in part.hot_rows])  # type: ignore[union-attr]
    run.finals[number] = replace(reading, parts={0: replace(part, hot_rows=rows)})


def drop_acked_row(run: Run, rng: random.Random) -> set[Anomaly]:
    """One replica lacks an acknowledged record in its middle or at its end."""
    gone = rng.choice(run.kept)
    _replace_rows(run, lambda rows: [row for row in rows if row.offset != gone])
    return {Anomaly.LOST, Anomaly.GAP}


def drop_everywhere(run: Run, rng: random.Random) -> set[Anomaly]:
    """All copies end before the newest acknowledged record, and agree."""
    end = run.kept[-1]
    rows = run.rows[:end]
    run.finals[:] = [
        Reading.of(one.name, one.began_ns, [of_log(0, rows, end=end)], Source.REPLICA)
        for one in run.finals[:2]
    ]
    return {Anomaly.LOST, Anomaly.WITHDRAWN}


def swap_two_rows(run: Run, rng: random.Random) -> set[Anomaly]:
    """Two neighbouring records of a replica changed places; the lower was acknowledged."""
    offset = rng.choice([one for one in run.kept if one + 1 < len(run.rows)] or [0])
    one, two = run.rows[offset], run.rows[offset + 1]
    swapped = {
        one.offset: two._replace(offset=one.offset, leader_epoch=one.leader_epoch),
        two.offset: one._replace(offset=two.offset, leader_epoch=two.leader_epoch),
    }
    _replace_rows(run, lambda rows: [swapped.get(row.offset, row) for row in rows])
    return {Anomaly.DIVERGED, Anomaly.MOVED}


def flip_a_bit(run: Run, rng: random.Random) -> set[Anomaly]:
    """One row of one replica holds what nobody sent."""
    bad = rng.randrange(len(run.rows))
    _replace_rows(
        run,
        lambda rows: [
            row._replace(fingerprint=content("?")) if row.offset == bad else row for row in rows
        ],
    )
    return {Anomaly.FOREIGN, Anomaly.DIVERGED}


def change_an_epoch(run: Run, rng: random.Random) -> set[Anomaly]:
    """One row of one replica names another leader epoch."""
    bad = rng.randrange(len(run.rows))
    _replace_rows(
        run,
        lambda rows: [
            row._replace(leader_epoch=row.leader_epoch + 1) if row.offset == bad else row
            for row in rows
        ],
    )
    return {Anomaly.DIVERGED, Anomaly.TABLE_DIFFERS, Anomaly.UNIFIED_DIFFERS}


def change_a_time(run: Run, rng: random.Random) -> set[Anomaly]:
    """One row of one replica has another time."""
    bad = rng.randrange(len(run.rows))
    _replace_rows(
        run,
        lambda rows: [
            row._replace(timestamp_us=row.timestamp_us + 1) if row.offset == bad else row
            for row in rows
        ],
    )
    return {Anomaly.DIVERGED, Anomaly.TABLE_DIFFERS, Anomaly.UNIFIED_DIFFERS}


def change_a_polled_time(run: Run, rng: random.Random) -> set[Anomaly]:
    """A consumer was given one record with another time."""
    polled = run.history.poll_rows
    final = {(row.offset, row.leader_epoch) for row in run.rows}
    seen = zip(polled["offset"], polled["epoch"], strict=True)
    # On a lost branch nobody else may have seen the record, so that no time contradicts it.
    kept = [place for place, one in enumerate(seen) if one in final]
    polled["timestamp_us"][rng.choice(kept)] += 1
    return {Anomaly.INCONSISTENT, Anomaly.OTHER_TIME, Anomaly.WITHDRAWN}


def double_a_row(run: Run, rng: random.Random) -> set[Anomaly]:
    """A record stands once more at the end, in every replica alike."""
    again = rng.choice(run.rows)._replace(offset=len(run.rows), leader_epoch=10**6)
    end = len(run.rows) + 1
    run.finals[:] = [
        Reading.of("replica", one.began_ns, [of_log(0, [*run.rows, again], end=end)], one.source)
        for one in run.finals[:2]
    ]
    return {Anomaly.DOUBLED}


def skip_in_the_table(run: Run, rng: random.Random) -> set[Anomaly]:
    """The table ends at the log's end and lacks a row."""
    gone, end = rng.randrange(len(run.rows)), len(run.rows)
    rows = [row for row in run.rows if row.offset != gone]
    run.finals[2] = Reading.of("table", 10**9, [of_log(0, rows, end=end)], Source.TABLE)
    return {Anomaly.TABLE_DIFFERS, Anomaly.GAP}


def bend_unified(run: Run, rng: random.Random) -> set[Anomaly]:
    """The unified read ends one early."""
    rows = run.rows[:-1]
    run.finals[3] = Reading.of("unified", 10**9, [of_log(0, rows, end=len(rows))])
    return {Anomaly.UNIFIED_DIFFERS}


def lose_a_polled_row(run: Run, rng: random.Random) -> set[Anomaly]:
    """A consumer's answer lacks one record in its middle."""
    return _bend_polls(run, rng, Anomaly.POLL_SKIP, lambda offset: offset + 1)


def repeat_a_polled_row(run: Run, rng: random.Random) -> set[Anomaly]:
    """A consumer is given an older offset."""
    return _bend_polls(run, rng, Anomaly.POLL_BACK, lambda offset: offset - 1)


def _bend_polls(
    run: Run, rng: random.Random, kind: Anomaly, change: Callable[[int], int]
) -> set[Anomaly]:
    offsets = run.history.poll_rows["offset"]
    bendable = [place for place, offset in enumerate(offsets) if place and change(offset) >= 0]
    place = rng.choice(bendable)
    offsets[place] = change(offsets[place])
    return {kind, Anomaly.POLL_SKIP, Anomaly.INCONSISTENT, Anomaly.WITHDRAWN}


def move_an_ack(run: Run, rng: random.Random) -> set[Anomaly]:
    """A publisher was told the offset of the next record."""
    acks, policy = run.history.acks, run.history.records["policy"]
    mine = [one for one in range(len(acks)) if policy[acks["record"][one]] == 2]
    acks["offset"][rng.choice(mine)] += 1
    return {Anomaly.MOVED, Anomaly.ACK_CHANGED, Anomaly.ACK_SHARED}


def refuse_what_is_there(run: Run, rng: random.Random) -> set[Anomaly]:
    """All attempts of a record without an ack are said to have failed; it is in the log."""
    history = run.history
    acked = set(history.acks["record"])
    records = [history.record_of_value[history.value_of(row.fingerprint)] for row in run.rows]
    loose = [one for one in records if one not in acked]
    if not loose:  # then all are acked: take back one's acks under NONE instead
        return flip_a_bit(run, rng)
    record = rng.choice(loose)
    history.records["fails"][record] = history.records["attempts"][record]
    return {Anomaly.ABORTED}


def share_an_epoch(run: Run, rng: random.Random) -> set[Anomaly]:
    """A second process acts as leader of an epoch."""
    (partition, epoch), _ = rng.choice(sorted(run.history.leaders.items()))
    run.history.leads(partition, epoch, "zombie")
    return {Anomaly.TWO_LEADERS}


def lower_a_high_watermark(run: Run, rng: random.Random) -> set[Anomaly]:
    """A leader shows less than it has shown, or more than there is in the end."""
    seen = run.history.high_watermarks
    if rng.random() < 0.5:
        seen["end"][rng.randrange(len(seen))] = len(run.rows) + 1
        return {Anomaly.WITHDRAWN, Anomaly.HIGH_WATERMARK_BACK}
    seen.add(0, seen["node"][0], seen["epoch"][0], seen["end"][0] - 1, 10**12, 10**12)
    return {Anomaly.HIGH_WATERMARK_BACK}


SPOILERS: Final[tuple[Spoiler, ...]] = (
    drop_acked_row,
    drop_everywhere,
    swap_two_rows,
    flip_a_bit,
    change_an_epoch,
    change_a_time,
    change_a_polled_time,
    double_a_row,
    skip_in_the_table,
    bend_unified,
    lose_a_polled_row,
    repeat_a_polled_row,
    move_an_ack,
    refuse_what_is_there,
    share_an_epoch,
    lower_a_high_watermark,
)
