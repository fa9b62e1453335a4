"""Checks of what consumers saw: between polls, between consumers, and against the final log."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from checkkit.anomalies import Anomaly, Violation
from checkkit.check_copies import Truths
from checkkit.facts import Facts, Flags, groups, ints, within
from checkkit.history import NEVER, NOBODY
from checkkit.readings import Ints


class Polls:
    """All polled rows as columns, each with its session and partition."""

    def __init__(self, facts: Facts) -> None:
        history = facts.history
        self.offsets = ints(history.poll_rows["offset"])
        self.values = ints(history.poll_rows["value"])
        self.epochs = ints(history.poll_rows["epoch"])
        self.times_us = ints(history.poll_rows["timestamp_us"])
        poll = ints(history.poll_rows["poll"])
        self.sessions = ints(history.polls["session"])[poll]
        self.committed: Flags = ints(history.polls["committed"])[poll] != 0
        self.partitions = ints(history.sessions["partition"])[self.sessions]
        self._losses = history.forgiven
        self._at_ns = ints(history.polls["at_ns"])[poll]
        self.forgiven = self._forgiven()
        # By session, and within it in the order in which rows were seen.
        self.order = np.argsort(self.sessions, kind="stable")

    def _forgiven(self) -> Flags:
        """Tell which rows an operator gave up after they were shown."""
        flags: Flags = np.zeros(len(self.offsets), np.bool_)
        for partition, choices in self._losses.items():
            for end, until_ns in choices:
                here = self.partitions == partition
                flags |= here & (self.offsets >= end) & (self._at_ns <= until_ns)
        return flags

    def are_parted(self, one: int, other: int) -> bool:
        """Tell whether an operator gave up one of two rows of a partition, and not the other."""
        pair = [one, other]
        for end, until_ns in self._losses.get(int(self.partitions[one]), ()):
            lost = (self.offsets[pair] >= end) & (self._at_ns[pair] <= until_ns)
            if lost[0] != lost[1]:
                return True
        return False

    def who(self, facts: Facts, row: int) -> str:
        """Return the consumer that saw a row."""
        session = self.sessions[row]
        return facts.history.consumers.name(facts.history.sessions["consumer"][session])


def check_polls(facts: Facts, truths: Truths | None) -> Iterator[Violation]:
    """Yield what is wrong with what consumers saw; ``truths`` are the final reads, if any."""
    polls = Polls(facts)
    yield from _check_steps(facts, polls)
    yield from _check_contents(facts, polls)
    yield from _check_consistent(facts, polls)
    if truths is not None:
        yield from _check_kept(facts, polls, truths)
        yield from _check_seen(facts, polls, truths)
        yield from _check_shown_ends(facts, truths)


def _check_steps(facts: Facts, polls: Polls) -> Iterator[Violation]:
    """Within a session every row is the next offset, or the first one above a hole."""
    rows = polls.order
    positions = ints(facts.history.sessions["position"])
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = polls.sessions[rows[1:]] != polls.sessions[rows[:-1]]
    expected = np.empty(len(rows), np.int64)
    expected[1:] = polls.offsets[rows[:-1]] + 1
    if len(rows):
        expected[begins] = positions[polls.sessions[rows[begins]]]
    step = np.where(expected == NOBODY, 0, polls.offsets[rows] - expected)
    for place in np.flatnonzero(step):
        row, due = int(rows[place]), int(expected[place])
        partition, offset = int(polls.partitions[row]), int(polls.offsets[row])
        detail = f"{polls.who(facts, row)} was given {offset} where {due} was due"
        if step[place] < 0:
            yield Violation(Anomaly.POLL_BACK, partition, offset, detail)
        elif not within(np.arange(due, offset), facts.history.holes.get(partition, ())).all():
            yield Violation(Anomaly.POLL_SKIP, partition, due, detail)


def _check_contents(facts: Facts, polls: Polls) -> Iterator[Violation]:
    """Every row is a record that somebody sent here, and that did not surely fail."""
    records = facts.records_of(polls.values)
    known = records != NOBODY
    # Without an epoch: by an API that shows less than a record, so only the final log could name
    # what was read; it does not hold what an operator gave up.
    nameless = polls.forgiven & (polls.epochs == NOBODY)
    for row in np.flatnonzero(~known & ~nameless).tolist():
        detail = f"{polls.who(facts, row)} read what nobody sent"
        yield _violation(Anomaly.FOREIGN, polls, row, detail)
    for row in np.flatnonzero(facts.other_time(polls.values, polls.times_us)).tolist():
        detail = f"{polls.who(facts, row)} read {facts.name(records[row])} with another time"
        yield _violation(Anomaly.OTHER_TIME, polls, row, detail)
    rows = np.flatnonzero(known)
    for row in rows[facts.failed[records[rows]]].tolist():
        detail = f"{polls.who(facts, row)} read {facts.name(records[row])}, which was refused"
        yield _violation(Anomaly.ABORTED, polls, row, detail)
    for row in rows[facts.record["partition"][records[rows]] != polls.partitions[rows]].tolist():
        detail = f"{facts.name(records[row])} was sent to another partition"
        yield _violation(Anomaly.MOVED, polls, row, detail)
    rows = rows[polls.committed[rows] & (facts.record["identified"][records[rows]] != 0)]
    order = np.lexsort((polls.offsets[rows], records[rows]))
    rows = rows[order]
    same = records[rows[1:]] == records[rows[:-1]]
    for place in np.flatnonzero(same & (polls.offsets[rows[1:]] != polls.offsets[rows[:-1]])):
        other, again = int(rows[place]), int(rows[place + 1])
        record, partition = int(records[again]), int(polls.partitions[again])
        lower, offset = int(polls.offsets[other]), int(polls.offsets[again])
        if facts.stored_again(record, partition, lower, offset):
            continue
        if facts.record["attempts"][record] > 1 and polls.are_parted(other, again):
            continue
        detail = f"{facts.name(records[again])} was read at {polls.offsets[other]} as well"
        yield _violation(Anomaly.DOUBLED, polls, again, detail)


def _check_consistent(facts: Facts, polls: Polls) -> Iterator[Violation]:
    """Committed: one content at an offset, acks included. Else: one per offset and epoch."""
    ack = facts.ack
    values = facts.record["value"][ack["record"]]
    rows, kept = polls.committed & ~polls.forgiven, facts.ack_survives
    yield from _conflicts(
        int(rows.sum()),
        np.concatenate([polls.values[rows], values[kept]]),
        np.concatenate([polls.partitions[rows], ack["partition"][kept]]),
        np.concatenate([polls.offsets[rows], ack["offset"][kept]]),
    )
    for chosen, epochs in ((rows, ()), (np.ones(len(rows), np.bool_), (polls.epochs,))):
        keys = (polls.partitions, polls.offsets, *epochs)
        times = polls.times_us[chosen]
        yield from _conflicts(len(times), times, *(one[chosen] for one in keys), what="times")
    # A duplicate's ack names the epoch that answers, not the one that stored: leave it out.
    fresh = (ack["epoch"] >= 0) & (ack["duplicate"] == 0) & (ack["attempts"] == 1)
    fresh &= not facts.rules.transport_doubles
    yield from _conflicts(
        len(polls.values),
        np.concatenate([polls.values, values[fresh]]),
        np.concatenate([polls.partitions, ack["partition"][fresh]]),
        np.concatenate([polls.offsets, ack["offset"][fresh]]),
        np.concatenate([polls.epochs, ack["epoch"][fresh]]),
    )


def _conflicts(
    polled_count: int, values: Ints, *keys: Ints, what: str = "contents"
) -> Iterator[Violation]:
    """Yield where one key (partition, offset, perhaps epoch) has two values, one of them polled."""
    order = np.lexsort((values, *reversed(keys)))
    before, after = order[:-1], order[1:]
    wrong = (values[after] != values[before]) & ((before < polled_count) | (after < polled_count))
    for column in keys:
        wrong &= column[after] == column[before]
    for row in after[wrong].tolist():
        where = f" of epoch {keys[2][row]}" if len(keys) > 2 else ""
        detail = f"two {what} were seen at this offset{where}"
        yield Violation(Anomaly.INCONSISTENT, int(keys[0][row]), int(keys[1][row]), detail)


def _check_kept(facts: Facts, polls: Polls, truths: Truths) -> Iterator[Violation]:
    """What was shown as committed is in the final log; what was not may only go with notice.

    An epoch has one leader: whoever read an offset of it has read what the log holds of it.
    """
    for partition, places in groups(polls.partitions[polls.order]):
        log = truths.log(partition)
        rows = polls.order[places]
        offsets = polls.offsets[rows]
        here, place = log.find(offsets)
        kept, same_epoch = here.copy(), here.copy()
        if len(log):
            same_epoch &= log.epochs[place] == polls.epochs[rows]
            kept &= same_epoch & (log.values[place] == polls.values[rows])
            kept &= log.times_us[place] == polls.times_us[rows]
        for one in np.flatnonzero(same_epoch & ~kept & ~polls.committed[rows]):
            row = int(rows[one])
            detail = f"{polls.who(facts, row)} read what the log does not hold in this epoch"
            yield _violation(Anomaly.INCONSISTENT, polls, row, detail)
        judged = ~within(offsets, facts.history.holes.get(partition, ()))
        judged &= ~polls.forgiven[rows]
        if len(log):
            judged &= offsets >= log.offsets[0]  # expired since
        gone = ~kept & judged
        for one in np.flatnonzero(gone & polls.committed[rows]):
            row = int(rows[one])
            detail = f"{polls.who(facts, row)} was shown what the log does not hold in the end"
            yield _violation(Anomaly.WITHDRAWN, polls, row, detail)
        yield from _check_notice(facts, polls, rows, (gone, kept))


def _check_notice(
    facts: Facts, polls: Polls, rows: Ints, fates: tuple[Flags, Flags]
) -> Iterator[Violation]:
    """An UNCOMMITTED session goes on above a truncated record only after it was told."""
    gone, kept = fates
    loose = ~polls.committed[rows]
    sessions = polls.sessions[rows]
    for session in np.unique(sessions[gone & loose]):
        mine = sessions == session
        first_gone = int(np.flatnonzero(mine & gone)[0])
        later = np.flatnonzero(mine & kept)
        if len(later) and int(later[-1]) > first_gone:
            row = int(rows[first_gone])
            detail = (
                f"{polls.who(facts, row)} went on to {polls.offsets[rows[later[-1]]]} without "
                "being told that this record was truncated"
            )
            yield _violation(Anomaly.HIDDEN_TRUNCATION, polls, row, detail)


def _check_seen(facts: Facts, polls: Polls, truths: Truths) -> Iterator[Violation]:
    """Who follows to the end has seen every acknowledged record from where it began."""
    sessions = facts.history.sessions
    acked = (facts.acked_ns != NEVER) & facts.ack_is_kept
    for session, flag in enumerate(sessions["to_the_end"]):
        if not flag:
            continue
        partition = sessions["partition"][session]
        offsets = polls.offsets[polls.sessions == session]
        begin = sessions["position"][session]
        if begin == NOBODY:
            begin = int(offsets.min()) if len(offsets) else 0
        due = np.flatnonzero(acked & (facts.record["partition"] == partition))
        due = due[facts.acked_offset[due] >= begin]
        due = due[~within(facts.acked_offset[due], facts.history.holes.get(partition, ()))]
        due = due[np.isin(facts.record["value"][due], truths.log(partition).values)]
        for record in due[~np.isin(facts.acked_offset[due], offsets)]:
            who = facts.history.consumers.name(sessions["consumer"][session])
            detail = f"{who} read to the end and never got {facts.name(record)}"
            offset = int(facts.acked_offset[record])
            yield Violation(Anomaly.UNSEEN, partition, offset, detail)


def _check_shown_ends(facts: Facts, truths: Truths) -> Iterator[Violation]:
    """No leader ever showed more as committed than the log holds in the end."""
    seen = facts.history.high_watermarks
    partitions, ends = ints(seen["partition"]), ints(seen["end"])
    for partition, rows in groups(partitions):
        if partition not in truths.ends or partition in facts.history.forgiven:
            continue
        shown, end = int(ends[rows].max()), truths.ends[partition]
        if shown > end:
            detail = f"{shown} was shown as the end of what is committed; the log ends at {end}"
            yield Violation(Anomaly.WITHDRAWN, partition, end, detail)


def _violation(kind: Anomaly, polls: Polls, row: int, detail: str) -> Violation:
    return Violation(kind, int(polls.partitions[row]), int(polls.offsets[row]), detail)
