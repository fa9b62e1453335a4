"""Runs that look wrong at first sight and are not: what happens to an honest cluster passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from broker.model.records import AckPolicy
from checkkit.anomalies import Verdict
from checkkit.facts import Rules
from checkkit.readings import Reading, of_log
from checkkit.story import World, world_of

LEADER, NONE = AckPolicy.LEADER, AckPolicy.NONE


def everything_agrees() -> Verdict:
    """Replicas, table, unified read and a consumer of both kinds agree."""
    world = world_of("a", "b", "c")
    world.publish("d", to=1)
    world.poll("committed", 0, 3, high_watermark=3, node="broker 1")
    world.poll("uncommitted", 0, 3, committed=False)
    world.history.follow_to_the_end("committed", 0)
    return world.judge_all()


def leader_ack_is_lost_with_its_leader() -> Verdict:
    """A record acked under LEADER died with its leader; another one took its offset."""
    world = world_of("a")
    world.publish("b", policy=LEADER)
    world.fail_over(keep=1)
    world.publish("c")
    return world.judge_all()


def leader_ack_shares_its_offset_over_epochs() -> Verdict:
    """Two LEADER acks name one offset in two epochs; the first record is gone."""
    world = world_of("a")
    world.publish("b", policy=LEADER)
    world.fail_over(keep=1)
    world.publish("c", policy=LEADER)
    return world.judge_all()


def leader_ack_survives_by_a_retry() -> Verdict:
    """Acked by a leader that died; a retry on the way reached the next one and landed lower."""
    world = world_of("a")
    world.send("x", by="q")
    world.store("x")
    world.send("b", policy=LEADER)
    world.retry("b")
    world.ack("b", world.store("b"))
    world.fail_over(keep=1)
    world.store("b")
    return world.judge_all()


def none_promises_nothing() -> Verdict:
    """Records under NONE are absent, or present; one was even said to be stored."""
    world = world_of("a")
    world.send("b", policy=NONE, identified=False)
    world.send("c", policy=NONE, identified=False)
    world.store("c")
    world.ack("b", 1)
    return world.judge_all()


def unidentified_record_is_doubled() -> Verdict:
    """Without an id a retry is stored again: nobody promised otherwise."""
    world = world_of("a")
    world.send("b", policy=NONE, identified=False)
    world.retry("b")
    world.store("b")
    world.store("b")
    return world.judge_all()


def refused_once_and_stored_by_the_retry() -> Verdict:
    """One attempt surely failed; the other one has no answer, and is there."""
    world = world_of("a")
    world.send("b")
    world.refuse("b")
    world.retry("b")
    world.store("b")
    world.poll("consumer", 0, 2)
    return world.judge_all()


def uncommitted_read_is_truncated_with_notice() -> Verdict:
    """An UNCOMMITTED consumer saw a record that died, was told, and went on from there."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.poll("consumer", 0, 2, committed=False)
    world.fail_over(keep=1)
    world.publish("c")
    world.history.truncated("consumer", 0, 1)
    world.poll("consumer", 1, 2, committed=False)
    return world.judge_all()


def uncommitted_reader_stopped_on_the_lost_branch() -> Verdict:
    """An UNCOMMITTED consumer read two records of a lost branch and never came back."""
    world = world_of("a")
    for name in ("b", "c"):
        world.send(name)
        world.store(name)
    world.poll("consumer", 0, 2, committed=False)
    world.poll("consumer", 2, 3, committed=False)
    world.fail_over(keep=1)
    world.publish("d")
    return world.judge_all()


def consumer_restarts_from_its_cursor() -> Verdict:
    """A consumer died before it stored its cursor, and reads again: at least once."""
    world = world_of("a", "b", "c")
    world.poll("consumer", 0, 2)
    world.history.seek("consumer", 0, 1)
    world.poll("consumer", 1, 3)
    return world.judge_all()


def consumer_reads_over_a_hole() -> Verdict:
    """Compaction removed a record; the hole is recorded, so the row is not missed."""
    world = world_of("a", "b", "c")
    world.history.hole(0, 1, 2)
    rows = [world.rows[0][0], world.rows[0][2]]
    world.give("consumer", rows)
    world.history.follow_to_the_end("consumer", 0)
    return world.judge_all([world.replica("a", rows), world.replica("b", rows)])


def replica_begins_where_the_table_ends() -> Verdict:
    """A local log was freed below the cold end; the table has the freed records."""
    world = world_of("a", "b", "c", "d", cold_end=3)
    return world.judge_all([world.replica("a"), world.replica("b", start=2), *world.finals()[3:]])


def every_local_log_was_freed() -> Verdict:
    """No replica holds the beginning; the table and the unified read do."""
    world = world_of("a", "b", "c", "d", cold_end=3)
    return world.judge_all([world.replica("a", start=2), world.table(), world.read()])


def new_leader_s_high_watermark_lags() -> Verdict:
    """Another leader, in a later epoch, knows less for a moment (KIP-207)."""
    world = world_of("a", "b")
    world.poll("one", 0, 2, high_watermark=2, node="broker 1")
    world.fail_over()
    world.poll("two", 0, 1, high_watermark=1, node="broker 2")
    return world.judge_all()


def two_clients_hear_epochs_in_other_orders() -> Verdict:
    """An old answer on its way arrives after another client has heard of the next epoch."""
    world = World()
    world.send("a", client="one", policy=LEADER)
    world.send("b", client="two", policy=LEADER)
    world.fail_over()
    world.ack("b", world.store("b"))
    world.epoch = 1
    world.ack("a", 0)
    return world.judge_all()


def leader_acks_before_it_can_know_its_successor() -> Verdict:
    """Within its lease a replaced leader acks under LEADER; nobody has the record in the end."""
    world = world_of("a")
    world.fail_over()
    world.publish("b")
    world.epoch = 1
    world.send("c", policy=LEADER)
    world.ack("c", 1)
    return world.judge_all()


def unclean_election_loses_what_was_accepted() -> Verdict:
    """An operator accepted a loss: acked and shown records from there on may be gone."""
    world = world_of("a", "b", "c")
    world.poll("consumer", 0, 3, high_watermark=3, node="broker 1")
    world.history.forgive(0, 1, world.tick())
    world.fail_over(keep=1)
    world.publish("d")
    return world.judge_all()


def retry_is_shown_again_after_its_first_copy_was_given_up() -> Verdict:
    """A consumer saw "b" before an operator accepted its loss; a retry stored it elsewhere."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.poll("early", 0, 2)
    world.history.forgive(0, 1, world.tick())
    world.fail_over(keep=1)
    world.publish("c")
    world.retry("b")
    world.ack("b", world.store("b"))
    world.poll("late", 0, 3)
    return world.judge_all()


def retry_meets_a_log_whose_first_copy_only_the_table_has() -> Verdict:
    """An operator accepted a loss from the table's end on; the new leader does not know "b"."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.history.forgive(0, 2, world.tick())
    world.fail_over()
    world.retry("b")
    world.ack("b", world.store("b"))
    world.poll("consumer", 0, 3)
    world.cold_ends[0] = 3
    return world.judge_all()


def table_lags_behind() -> Verdict:
    """The newest records are not shipped yet."""
    return world_of("a", "b", "c", cold_end=1).judge_all()


def spark_s_read_is_in_any_order() -> Verdict:
    """A unified read by Spark returns the right rows in no order."""
    world = world_of("a", "b", "c", cold_end=0)
    rows = world.rows[0][::-1]
    parts = [of_log(0, rows, end=3), of_log(1, [])]
    spark = Reading.of("spark", world.tick(), parts, sorted_by_offset=False)
    return world.judge_all([world.replica("a"), spark])


def a_late_stray_copy_was_recognised() -> Verdict:
    """The network delivered one message twice, over a failover: answered with its first offset."""
    world = World(Rules(transport_doubles=True))
    world.send("a")
    offset = world.store("a")
    world.fail_over()
    world.ack("a", offset, duplicate=True)
    return world.judge_all()


GOOD: Final = (
    everything_agrees,
    leader_ack_is_lost_with_its_leader,
    leader_ack_shares_its_offset_over_epochs,
    leader_ack_survives_by_a_retry,
    none_promises_nothing,
    unidentified_record_is_doubled,
    refused_once_and_stored_by_the_retry,
    uncommitted_read_is_truncated_with_notice,
    uncommitted_reader_stopped_on_the_lost_branch,
    consumer_restarts_from_its_cursor,
    consumer_reads_over_a_hole,
    replica_begins_where_the_table_ends,
    every_local_log_was_freed,
    new_leader_s_high_watermark_lags,
    two_clients_hear_epochs_in_other_orders,
    leader_acks_before_it_can_know_its_successor,
    unclean_election_loses_what_was_accepted,
    retry_is_shown_again_after_its_first_copy_was_given_up,
    retry_meets_a_log_whose_first_copy_only_the_table_has,
    table_lags_behind,
    spark_s_read_is_in_any_order,
    a_late_stray_copy_was_recognised,
)


@pytest.mark.parametrize("story", GOOD, ids=lambda story: story.__name__)
def test_a_good_run_passes(story: Callable[[], Verdict]) -> None:
    """What may happen to an honest cluster is no violation."""
    verdict = story()
    assert verdict.ok, f"{story.__doc__} Found: {verdict}"
