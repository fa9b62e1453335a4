"""The checker on trial, one full read at a time: bad histories to name, good ones to pass.

Each case is a small story about two partitions. ``World`` tells it in the order of time; a case
then bends what the read returns. Clusters and consumers are on trial in test_runs.py.

The file is not split: it is a list of stories and the anomaly that each of them holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from checkkit.anomalies import OF_RUNS, Anomaly, Verdict, Violation
from checkkit.check_copies import as_rows, compare_tables
from checkkit.checker import Checker
from checkkit.content import fingerprint
from checkkit.readings import Row
from checkkit.story import World, bent, content, world_of

# ---------------------------------------------------------------------------- bad histories


def acked_record_is_missing() -> Verdict:
    """The newest record was acked and the log ends before it."""
    world = world_of("a", "b", "c")
    world.rows[0].pop()
    return world.judge()


def acked_record_was_replaced_by_another() -> Verdict:
    """A second record took the offset of an acked one."""
    world = world_of("a", "b")
    world.send("c")
    world.rows[0][1] = Row(1, content("c"), 1)
    return world.judge()


def acked_record_moved() -> Verdict:
    """A record stands one above the offset that its publisher was told."""
    world = world_of("a")
    world.send("b")
    world.send("x", by="q")
    world.store("x")
    world.store("b")
    world.ack("b", 1)
    return world.judge()


def acked_record_is_in_the_other_partition() -> Verdict:
    """A record was sent to one partition and lies in the other."""
    world = world_of("a")
    world.send("b", to=0)
    world.store("b", to=1)
    return world.judge()


def one_bit_differs() -> Verdict:
    """The content at an acked offset was never sent."""
    world = world_of("a", "b", "c")
    world.rows[0][1] = Row(1, content("b!"), 1)
    return world.judge()


def sent_time_is_another() -> Verdict:
    """A record that brought its time comes back with another."""
    world = world_of("a")
    world.send("b", timestamp_us=5)
    world.ack("b", world.store("b", timestamp_us=6))
    return world.judge()


def time_is_rewritten() -> Verdict:
    """A record without a time of its own has one in the log and another in the table."""
    world = world_of("a", "b", cold_end=0)
    checker = Checker(world.history, world.rules)
    checker.check(world.read())
    world.cold_ends[0] = 2
    world.rows[0][1] = world.rows[0][1]._replace(timestamp_us=9)
    checker.check(world.read())
    return checker.verdict


def retry_was_stored_again() -> Verdict:
    """A retried record lies in the log twice."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.retry("b")
    offset = world.store("b")
    world.ack("b", offset)
    return world.judge()


def seam_doubles_a_record() -> Verdict:
    """The tail begins one below the cold end."""
    world = world_of("a", "b", "c")
    rows = world.rows[0]
    return world.judge(bent(world, lambda part: replace(part, hot_rows=rows[1:])))


def seam_skips_a_record() -> Verdict:
    """The tail begins one above the cold end."""
    world = world_of("a", "b", "c", "d")
    rows = world.rows[0]
    return world.judge(bent(world, lambda part: replace(part, hot_rows=rows[3:])))


def unacked_record_is_missing_inside() -> Verdict:
    """A hole counts even if none of its records was acknowledged."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.publish("c")
    rows = [row for row in world.rows[0] if row.offset != 1]
    reading = bent(world, lambda part: replace(part, cold_rows=rows[:1], hot_rows=rows[1:]))
    return world.judge(reading)


def head_is_missing() -> Verdict:
    """The cold part begins above its start."""
    world = world_of("a", "b", "c")
    rows = world.rows[0]
    return world.judge(bent(world, lambda part: replace(part, cold_rows=rows[1:2])))


def tail_is_missing() -> Verdict:
    """The hot part ends before the hot end that the cut promised."""
    world = world_of("a", "b", "c")
    world.send("d")
    reading = bent(world, lambda part: replace(part, hot_end=4))
    return world.judge(reading)


def start_moved_up() -> Verdict:
    """Old records are gone although nothing may expire."""
    world = world_of("a", "b", "c")
    rows = world.rows[0]
    reading = bent(world, lambda part: replace(part, start=1, cold_rows=rows[1:2]))
    return world.judge(reading)


def same_offset_twice_in_one_file() -> Verdict:
    """The table was fed twice with one segment."""
    world = world_of("a", "b", "c")
    rows = world.rows[0]
    reading = bent(world, lambda part: replace(part, cold_rows=sorted(rows[:2] * 2)))
    return world.judge(reading)


def row_beyond_the_cut() -> Verdict:
    """A read returns a record above the hot end of its cut."""
    world = world_of("a", "b", "c")
    return world.judge(bent(world, lambda part: replace(part, hot_end=2)))


def rows_out_of_order() -> Verdict:
    """A reader that promises offset order breaks it."""
    world = world_of("a", "b", "c", "d", cold_end=0)
    rows = world.rows[0]
    return world.judge(bent(world, lambda part: replace(part, hot_rows=rows[::-1])))


def nobody_sent_it() -> Verdict:
    """A row has content that no client ever sent."""
    world = world_of("a")
    world.store("z")
    return world.judge()


def null_became_empty() -> Verdict:
    """A tombstone came back as an empty value."""
    world = World()
    sent = fingerprint(key=b"k", value=None, headers=None, subject="s")
    read = fingerprint(key=b"k", value=b"", headers=None, subject="s")
    record = world.history.publish(sent, partition=0, at_ns=1)
    world.history.ok(record, offset=0, at_ns=2)
    world.rows[0].append(Row(0, read, 1))
    world.tick()
    return world.judge()


def refused_record_is_there() -> Verdict:
    """A publisher was told that its record is not stored, and it is."""
    world = world_of("a")
    world.send("b")
    world.refuse("b")
    world.store("b")
    return world.judge()


def ordered_producer_is_shuffled() -> Verdict:
    """Two records of a producer stand the other way round."""
    world = World()
    world.history.expect_order("p")
    world.send("a")
    world.send("b")
    world.ack("b", world.store("b"))
    world.ack("a", world.store("a"))
    return world.judge()


def later_record_stands_below_an_acked_one() -> Verdict:
    """A record got an offset below one that was acked before it was sent."""
    world = World()
    world.send("a", by="p")
    world.ack("a", 1)
    world.send("b", by="q")
    world.ack("b", world.store("b"))
    world.store("a")
    return world.judge()


def late_unknown_record_stands_below_an_acked_one() -> Verdict:
    """A record without an answer must not appear at an earlier offset either."""
    world = World()
    world.send("a", by="p")
    world.ack("a", 1)
    world.send("b", by="q")
    world.store("b")
    world.store("a")
    return world.judge()


def leader_epoch_falls() -> Verdict:
    """A later offset carries an older epoch."""
    world = world_of("a", "b")
    world.rows[0][0] = Row(0, content("a"), 2)
    world.epoch = 1
    return world.judge()


def ack_names_another_epoch() -> Verdict:
    """A record was acked once, in an epoch that is not its row's."""
    world = world_of("a")
    world.send("b")
    offset = world.store("b")
    world.epoch = 2
    world.ack("b", offset)
    return world.judge()


def two_acks_of_one_record_differ() -> Verdict:
    """A retry was answered with another offset than the first time."""
    world = world_of("a", "b")
    world.retry("b")
    world.ack("b", 0, duplicate=True)
    return world.judge()


def two_records_share_an_acked_offset() -> Verdict:
    """Two publishers were told the same offset."""
    world = world_of("a")
    world.send("b")
    world.ack("b", 0)
    return world.judge()


def ack_for_nothing() -> Verdict:
    """An answer names a record that was never sent."""
    world = world_of("a")
    world.history.ok_unsent("ghost", partition=0, offset=1)
    return world.judge()


def first_send_is_called_a_duplicate() -> Verdict:
    """A record that was sent once is answered as stored before."""
    world = World()
    world.send("a")
    world.ack("a", world.store("a"), duplicate=True)
    return world.judge()


def high_watermark_is_withdrawn() -> Verdict:
    """A record that a read has shown is gone in the next read; nobody had acked it."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    checker = Checker(world.history)
    assert checker.check(world.read()).ok
    world.rows[0].pop()
    return checker.check(world.read())


def cold_end_is_withdrawn() -> Verdict:
    """A table loses its newest commit; the tail still has the rows."""
    world = world_of("a", "b", "c")
    checker = Checker(world.history)
    assert checker.check(world.read()).ok
    world.cold_ends[0] = 1
    return checker.check(world.read())


def history_is_rewritten() -> Verdict:
    """Two records without answers have changed places between two reads."""
    world = World()
    for name in ("a", "b"):
        world.send(name)
        world.store(name)
    checker = Checker(world.history)
    assert checker.check(world.read()).ok
    world.rows[0] = [Row(0, content("b"), 1), Row(1, content("a"), 1)]
    return checker.check(world.read())


BAD: Final[dict[Callable[[], Verdict], set[Anomaly]]] = {
    acked_record_is_missing: {Anomaly.LOST},
    acked_record_was_replaced_by_another: {Anomaly.LOST},
    acked_record_moved: {Anomaly.MOVED},
    acked_record_is_in_the_other_partition: {Anomaly.MOVED},
    one_bit_differs: {Anomaly.FOREIGN, Anomaly.DAMAGED},
    retry_was_stored_again: {Anomaly.DOUBLED},
    seam_doubles_a_record: {Anomaly.OUTSIDE, Anomaly.OVERLAP},
    seam_skips_a_record: {Anomaly.GAP, Anomaly.LOST},
    unacked_record_is_missing_inside: {Anomaly.GAP},
    head_is_missing: {Anomaly.GAP, Anomaly.LOST},
    tail_is_missing: {Anomaly.GAP},
    start_moved_up: {Anomaly.GAP, Anomaly.LOST},
    same_offset_twice_in_one_file: {Anomaly.OVERLAP},
    row_beyond_the_cut: {Anomaly.OUTSIDE},
    rows_out_of_order: {Anomaly.UNSORTED},
    nobody_sent_it: {Anomaly.FOREIGN},
    null_became_empty: {Anomaly.FOREIGN, Anomaly.DAMAGED},
    refused_record_is_there: {Anomaly.ABORTED},
    ordered_producer_is_shuffled: {Anomaly.SENT_ORDER},
    later_record_stands_below_an_acked_one: {Anomaly.REAL_TIME_ORDER},
    late_unknown_record_stands_below_an_acked_one: {Anomaly.REAL_TIME_ORDER},
    leader_epoch_falls: {Anomaly.EPOCH},
    ack_names_another_epoch: {Anomaly.EPOCH},
    two_acks_of_one_record_differ: {Anomaly.ACK_CHANGED},
    two_records_share_an_acked_offset: {Anomaly.ACK_SHARED, Anomaly.LOST},
    ack_for_nothing: {Anomaly.ACK_UNSENT},
    first_send_is_called_a_duplicate: {Anomaly.FALSE_DUPLICATE},
    high_watermark_is_withdrawn: {Anomaly.END_WENT_BACK},
    cold_end_is_withdrawn: {Anomaly.END_WENT_BACK},
    history_is_rewritten: {Anomaly.REWRITTEN},
    time_is_rewritten: {Anomaly.REWRITTEN},
    sent_time_is_another: {Anomaly.OTHER_TIME},
}


@pytest.mark.parametrize("story", BAD, ids=lambda story: story.__name__)
def test_a_bad_history_is_named(story: Callable[[], Verdict]) -> None:
    """Each broken promise is found, under its own name."""
    verdict = story()
    assert BAD[story] <= set(verdict.counts), f"{story.__doc__} Found: {verdict}"


def test_every_kind_has_a_bad_history() -> None:
    """No check is untested; test_runs.py has the anomalies that one read cannot show."""
    assert set.union(*BAD.values()) == set(Anomaly) - OF_RUNS


# ---------------------------------------------------------------------------- good ones


def everything_was_acked() -> Verdict:
    """The plain case, over both tiers and both partitions."""
    world = world_of("a", "b", "c")
    world.publish("d", to=1, by="q")
    return world.judge()


def unanswered_record_was_stored() -> Verdict:
    """A record without an answer is in the log, once."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    return world.judge()


def unanswered_record_was_not_stored() -> Verdict:
    """A record without an answer is nowhere."""
    world = world_of("a")
    world.send("b")
    return world.judge()


def retry_was_recognised() -> Verdict:
    """The first ack was lost with the connection; the retry got the first offset, a restart on."""
    world = world_of("a")
    world.send("b")
    offset = world.store("b")
    world.epoch = 2
    world.retry("b")
    world.publish("c", by="q")
    world.ack("b", offset, duplicate=True)
    return world.judge()


def both_attempts_were_answered() -> Verdict:
    """The answer of the first attempt came late, and the second one agrees."""
    world = world_of("a")
    world.send("b")
    offset = world.store("b")
    world.retry("b")
    world.ack("b", offset, duplicate=True)
    world.ack("b", offset)
    return world.judge()


def records_in_flight_overtook_each_other() -> Verdict:
    """Two unordered records were on their way at the same time; either may be first."""
    world = World()
    world.send("a")
    world.send("b")
    world.ack("b", world.store("b"))
    world.ack("a", world.store("a"))
    return world.judge()


def retried_record_of_an_unordered_producer_is_late() -> Verdict:
    """A lost message is stored after its successors; its producer does not promise order."""
    world = World()
    world.send("a")
    world.publish("b")
    world.publish("c")
    world.retry("a")
    world.ack("a", world.store("a"))
    return world.judge()


def ack_came_during_the_read() -> Verdict:
    """A record acked after the cut was begun may be missing from it."""
    world = world_of("a")
    reading = world.read()
    world.publish("b")
    return world.judge(reading)


def refused_then_accepted() -> Verdict:
    """A refusal after an attempt of unknown outcome proves nothing."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.retry("b")
    world.refuse("b")
    return world.judge()


def spark_returns_rows_in_any_order() -> Verdict:
    """A reader that promises no order may shuffle."""
    world = world_of("a", "b", "c", "d", cold_end=0)
    rows = world.rows[0]
    reading = bent(world, lambda part: replace(part, hot_rows=rows[::-1]))
    return world.judge(replace(reading, sorted_by_offset=False))


def nothing_was_sent() -> Verdict:
    """An empty stream is complete."""
    return World().judge()


def tiering_moved_the_seam_between_reads() -> Verdict:
    """A later read finds the same records, more of them in the table."""
    world = world_of("a", "b", "c")
    checker = Checker(world.history)
    checker.check(world.read())
    world.publish("d")
    world.cold_ends[0] = 4
    checker.check(world.read())
    return checker.verdict


GOOD: Final = (
    everything_was_acked,
    unanswered_record_was_stored,
    unanswered_record_was_not_stored,
    retry_was_recognised,
    both_attempts_were_answered,
    records_in_flight_overtook_each_other,
    retried_record_of_an_unordered_producer_is_late,
    ack_came_during_the_read,
    refused_then_accepted,
    spark_returns_rows_in_any_order,
    nothing_was_sent,
    tiering_moved_the_seam_between_reads,
)


@pytest.mark.parametrize("story", GOOD, ids=lambda story: story.__name__)
def test_a_good_history_passes(story: Callable[[], Verdict]) -> None:
    """What may happen to an honest system is no violation."""
    verdict = story()
    assert verdict.ok, f"{story.__doc__} Found: {verdict}"


# ---------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[:1],
        lambda rows: [*rows, rows[0]],
        lambda rows: [*rows, Row(7, content("z"), 1)],
        lambda rows: [rows[0], rows[1]._replace(leader_epoch=9)],
        lambda rows: [rows[0], rows[1]._replace(timestamp_us=9)],
    ],
    ids=["fewer", "twice", "more", "other", "time"],
)
def test_a_table_that_differs_is_named(change: Callable[[list[Row]], list[Row]]) -> None:
    """Rows of a foreign reader are compared both ways with ours below the cold end."""
    part = world_of("a", "b", "c").read().parts[0]
    same = list(as_rows(part.cold_rows))
    assert not list(compare_tables(part, same, reader="delta-rs"))
    found = list(compare_tables(part, change(same), reader="delta-rs"))
    assert {one.kind for one in found} == {Anomaly.TABLE_DIFFERS}


def test_a_verdict_counts_everything_and_shows_a_few() -> None:
    """A thousand losses are counted, five are printed."""
    verdict = Verdict()
    verdict.add(Violation(Anomaly.LOST, 0, offset, "gone") for offset in range(1000))
    verdict.add([Violation(Anomaly.DOUBLED, 0, 1, "again")])
    assert (verdict.lost, verdict.doubled, len(verdict.examples)) == (1000, 1, 6)
    assert str(verdict).startswith("lost 1000, doubled 1\n")


def test_a_fingerprint_separates_its_parts() -> None:
    """No two different contents can be spelled the same way."""
    contents = [
        fingerprint(
            key=key, value=value, headers=headers, subject="s", reply_subject=reply,
            correlation_id=correlation,
        )
        for reply in (None, "", "s", "a")
        for correlation in (None, "", "s", "a")
        for key in (None, b"", b"ab")
        for value in (None, b"", b"a", b"b")
        for headers in (None, (), (("ab", b""),), (("a", b"b"),), (("a", None), ("", b"b")))
    ]  # fmt: skip
    assert len(set(contents)) == len(contents)
