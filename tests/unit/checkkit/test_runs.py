"""The checker on trial, a whole run at a time: replicas, tables, consumers, leaders, ack policies.

Each story names exactly the anomalies that it holds. test_good_runs.py has those without any.

The file is not split: it is a list of stories and the anomalies that each of them holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from broker.model.records import AckPolicy
from checkkit.anomalies import OF_RUNS, Anomaly, Verdict
from checkkit.facts import Rules
from checkkit.history import History
from checkkit.readings import Reading, Row, RowColumns, Source, of_log
from checkkit.story import World, content, world_of

LEADER = AckPolicy.LEADER

# ---------------------------------------------------------------------------- bad histories


def replica_has_other_bytes() -> Verdict:
    """One replica holds another record at an offset that nobody acknowledged."""
    world = world_of("a", "b")
    for name in ("c", "d"):
        world.send(name)
    world.store("c")
    rows = [*world.rows[0][:2], Row(2, content("d"), 1)]
    return world.judge_all([world.replica("a"), world.replica("b", rows)])


def replica_has_another_epoch() -> Verdict:
    """One replica holds the same record under another leader epoch."""
    world = world_of("a", "b")
    world.send("c")
    world.store("c")
    rows = [*world.rows[0][:2], Row(2, content("c"), 2)]
    return world.judge_all([world.replica("a"), world.replica("b", rows)])


def replica_has_another_time() -> Verdict:
    """One replica holds the same record with another time."""
    world = world_of("a", "b")
    rows = [world.rows[0][0], world.rows[0][1]._replace(timestamp_us=9)]
    return world.judge_all([world.replica("a"), world.replica("b", rows)])


def table_has_another_time() -> Verdict:
    """What was shipped was stamped anew."""
    world = world_of("a", "b")
    rows = [world.rows[0][0], world.rows[0][1]._replace(timestamp_us=9)]
    return world.judge_all([world.replica("a"), world.table(rows)])


def consumers_see_two_times() -> Verdict:
    """Two consumers were given one record with two times; no final read is there to say which."""
    world = world_of("a")
    world.give("left", world.rows[0])
    world.give("right", [world.rows[0][0]._replace(timestamp_us=9)])
    return world.judge_all([])


def consumer_saw_another_time() -> Verdict:
    """A consumer was given a time that no copy has in the end."""
    world = world_of("a")
    world.give("reader", [world.rows[0][0]._replace(timestamp_us=9)])
    return world.judge_all()


def consumer_saw_another_time_than_was_sent() -> Verdict:
    """A record that brought its time was shown with another."""
    world = world_of("a")
    world.send("b", timestamp_us=5)
    world.store("b", timestamp_us=6)
    world.give("reader", world.rows[0], committed=False)
    return world.judge_all([])


def replica_ends_early_and_a_consumer_reads_it() -> Verdict:
    """A healed replica never got the newest record; it was acknowledged."""
    world = world_of("a", "b", "c")
    return world.judge_all([world.replica("a"), world.replica("b", world.rows[0][:2])])


def replica_ends_early_without_an_ack() -> Verdict:
    """A healed replica lacks a record whose outcome nobody knows; the others have it."""
    world = world_of("a", "b")
    world.send("c")
    world.store("c")
    return world.judge_all([world.replica("b", world.rows[0][:2]), world.replica("a")])


def all_replicas_lost_it() -> Verdict:
    """All replicas are equal and lack an acknowledged record: JetStream's case."""
    world = world_of("a", "b", "c")
    world.fail_over(keep=2)
    return world.judge_all()


def table_has_other_content() -> Verdict:
    """A zombie shipped its own record to the table."""
    world = world_of("a", "b", "c")
    world.send("z")
    table = world.table([world.rows[0][0], Row(1, content("z"), 1)])
    return world.judge_all([world.replica("a"), table])


def table_lacks_a_row() -> Verdict:
    """The table's history has a gap below its end."""
    world = world_of("a", "b", "c", "d", cold_end=4)
    rows = [world.rows[0][0], *world.rows[0][2:]]
    return world.judge_all([world.replica("a"), world.table(rows)])


def table_is_ahead_of_the_log() -> Verdict:
    """A leader shipped uncommitted records, which were then truncated."""
    world = world_of("a", "b")
    world.send("z")
    table = world.table([*world.rows[0], Row(2, content("z"), 1)])
    return world.judge_all([world.replica("a"), world.replica("b"), table])


def unified_read_takes_another_branch() -> Verdict:
    """A read of both tiers returns a record that no replica holds."""
    world = world_of("a", "b", cold_end=1)
    for name in ("c", "d"):
        world.send(name)
    world.store("c")
    replicas = [world.replica("a"), world.replica("b")]
    world.rows[0][2] = Row(2, content("d"), 1)
    return world.judge_all([*replicas, world.read()])


def unified_read_ends_early() -> Verdict:
    """A read of both tiers after all load lacks the newest record."""
    world = world_of("a", "b")
    world.send("c")
    world.store("c")
    replicas = [world.replica("a"), world.replica("b")]
    world.rows[0].pop()
    return world.judge_all([*replicas, world.read()])


def poll_skips() -> Verdict:
    """A consumer was given 0 and then 2."""
    world = world_of("a", "b", "c")
    world.poll("consumer", 0, 1)
    world.poll("consumer", 2, 3)
    return world.judge_all()


def poll_skips_inside() -> Verdict:
    """One answer lacks a record in its middle."""
    world = world_of("a", "b", "c")
    world.give("consumer", [world.rows[0][0], world.rows[0][2]])
    return world.judge_all()


def poll_skips_the_beginning() -> Verdict:
    """A consumer asked for 0 and was given 1."""
    world = world_of("a", "b")
    world.history.seek("consumer", 0, 0)
    world.poll("consumer", 1, 2)
    return world.judge_all()


def poll_goes_back() -> Verdict:
    """A consumer was given the same record twice without asking for it."""
    world = world_of("a", "b")
    world.poll("consumer", 0, 2)
    world.poll("consumer", 1, 2)
    return world.judge_all()


def shown_and_withdrawn() -> Verdict:
    """A committed record that nobody had acked was read, and is gone."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.poll("consumer", 0, 2)
    world.fail_over(keep=1)
    return world.judge_all()


def shown_and_replaced() -> Verdict:
    """Another record took the place of one that a COMMITTED consumer had seen."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.poll("early", 0, 2)
    world.fail_over(keep=1)
    world.publish("c")
    world.poll("late", 0, 2)
    return world.judge_all()


def consumers_see_two_logs() -> Verdict:
    """A split brain that lasts: two consumers see two records at one offset."""
    world = world_of("a")
    for name in ("b", "c"):
        world.send(name)
    world.give("left", [*world.rows[0], Row(1, content("b"), 1)])
    world.give("right", [*world.rows[0], Row(1, content("c"), 1)])
    return world.judge_all([])


def ack_and_poll_disagree() -> Verdict:
    """A publisher was told an offset at which a consumer read something else."""
    world = world_of("a")
    for name in ("b", "c"):
        world.send(name)
    world.ack("b", 1)
    world.give("consumer", [*world.rows[0], Row(1, content("c"), 1)])
    return world.judge_all([])


def refused_record_is_polled() -> Verdict:
    """An aborted read: every attempt failed, and a consumer has it."""
    world = world_of("a")
    world.send("b")
    world.refuse("b")
    world.retry("b")
    world.refuse("b")
    world.give("consumer", [*world.rows[0], Row(1, content("b"), 1)], committed=False)
    return world.judge_all([])


def nonsense_is_polled() -> Verdict:
    """A consumer was given a record that nobody sent."""
    world = world_of("a")
    world.give("consumer", [*world.rows[0], Row(1, content("?"), 1)], committed=False)
    return world.judge_all([])


def one_record_polled_at_two_offsets() -> Verdict:
    """A retried record was stored twice; a consumer shows it, also without final reads."""
    world = world_of("a")
    world.send("b")
    world.retry("b")
    rows = [*world.rows[0], Row(1, content("b"), 1), Row(2, content("b"), 1)]
    world.give("consumer", rows)
    return world.judge_all([])


def truncation_is_hidden() -> Verdict:
    """An UNCOMMITTED consumer read a record, then the next one of a log that lacks it."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    world.poll("consumer", 0, 2, committed=False)
    world.fail_over(keep=1)
    for name in ("c", "d"):
        world.publish(name)
    world.poll("consumer", 2, 3, committed=False)
    return world.judge_all()


def follower_never_gets_the_newest() -> Verdict:
    """A consumer that follows says that it is at the end, and one acked record is above."""
    world = world_of("a", "b", "c")
    world.poll("consumer", 0, 2)
    world.history.follow_to_the_end("consumer", 0)
    return world.judge_all()


def two_processes_lead_one_epoch() -> Verdict:
    """Two brokers acknowledge in the same leader epoch."""
    world = World()
    for name, node in (("a", "broker 1"), ("b", "broker 2")):
        world.send(name)
        world.ack(name, world.store(name), node=node)
    return world.judge_all()


def restarted_leader_goes_on_in_its_epoch() -> Verdict:
    """The same broker leads the same epoch again after a restart (A25)."""
    world = world_of("a")
    world.poll("consumer", 0, 1, high_watermark=1, node="broker 1 life 1")
    world.history.leads(0, 1, "broker 1 life 1")
    world.history.leads(0, 1, "broker 1 life 2")
    return world.judge_all()


def zombie_acks_after_its_successor() -> Verdict:
    """A publish sent after an ack of epoch 2 was acked in epoch 1 (A13)."""
    world = world_of("a")
    world.fail_over()
    world.publish("b")
    world.epoch = 1
    world.send("c")
    world.ack("c", 2)
    return world.judge_all()


def client_believes_an_old_epoch() -> Verdict:
    """A client heard of epoch 2, and then took an answer of epoch 1 (A14)."""
    world = World()
    world.send("a", client="me", policy=LEADER)
    world.send("b", client="me", policy=LEADER)
    world.fail_over()
    world.ack("b", world.store("b"))
    world.epoch = 1
    world.ack("a", 0)
    return world.judge_all()


def high_watermark_falls() -> Verdict:
    """One leader shows 2 as committed, and later 1."""
    world = world_of("a", "b")
    world.poll("one", 0, 2, high_watermark=2, node="broker 1")
    world.poll("two", 0, 1, high_watermark=1, node="broker 1")
    return world.judge_all()


def high_watermark_above_the_final_log() -> Verdict:
    """A leader showed 3 as committed; the log ends at 2."""
    world = world_of("a", "b")
    world.poll("one", 0, 2, high_watermark=3, node="broker 1")
    return world.judge_all()


def ordered_producer_s_acks_fall() -> Verdict:
    """An ordered producer's second record was acked below its first."""
    world = World()
    world.history.expect_order("p")
    world.send("a")
    world.send("b")
    world.ack("b", 0)
    world.ack("a", 1)
    return world.judge_all([])


def acks_go_back_in_real_time() -> Verdict:
    """A record sent after an ack at 5 was acked at 3; nothing was read yet."""
    world = World()
    world.send("a")
    world.ack("a", 5)
    world.send("b", by="q")
    world.ack("b", 3)
    return world.judge_all([])


def leader_ack_moved_within_its_epoch() -> Verdict:
    """Under LEADER, too, an ack names the offset as long as its epoch lasts."""
    world = world_of("a")
    world.send("b", policy=LEADER)
    world.send("x", by="q")
    world.ack("b", 2)
    world.store("b")
    return world.judge_all()


def leader_acks_share_an_offset_in_one_epoch() -> Verdict:
    """Two LEADER acks of one epoch at one offset are one too many."""
    world = World()
    for name in ("a", "b"):
        world.send(name, policy=LEADER)
        world.ack(name, 0)
    world.store("b")
    return world.judge_all()


def leader_ack_lost_with_one_replica() -> Verdict:
    """One replica, which kept its disk: its LEADER ack was for good."""
    world = World(Rules(leader_acks_survive=True))
    world.publish("a", policy=LEADER)
    world.publish("b", policy=LEADER)
    world.fail_over(keep=1)
    return world.judge_all()


def more_lost_than_the_operator_accepted() -> Verdict:
    """An unclean election accepted the loss from 2 on, and 1 is gone as well."""
    world = world_of("a", "b", "c", cold_end=0)
    world.history.forgive(0, 2, world.tick())
    world.fail_over(keep=1)
    return world.judge_all()


def _twice(*, loss_from: int, first_is_acked: bool, retried: bool) -> Verdict:
    """Tell of "b" at 1 and at 2, and of a loss that an operator accepted between the two."""
    world = world_of("a")
    world.send("b")
    world.store("b")
    if first_is_acked:
        world.ack("b", 1)
    world.history.forgive(0, loss_from, world.tick())
    world.fail_over()
    if retried:
        world.retry("b")
    offset = world.store("b")
    if not first_is_acked:
        world.ack("b", offset)
    world.cold_ends[0] = 3
    return world.judge_all()


def acknowledged_and_stored_again_after_an_accepted_loss() -> Verdict:
    """The first copy was acknowledged below the loss."""
    return _twice(loss_from=2, first_is_acked=True, retried=True)


def sent_once_and_stored_again_after_an_accepted_loss() -> Verdict:
    """Nobody sent it a second time."""
    return _twice(loss_from=2, first_is_acked=False, retried=False)


def stored_again_within_an_accepted_loss() -> Verdict:
    """The loss begins below both copies: the new leader's log has them both."""
    return _twice(loss_from=1, first_is_acked=False, retried=True)


def polled_at_two_offsets_after_an_accepted_loss() -> Verdict:
    """Both copies were stored and shown after the loss."""
    world = world_of("a", "b")
    world.history.forgive(0, 1, world.tick())
    world.fail_over(keep=1)
    world.send("c")
    world.store("c")
    world.poll("early", 0, 2)
    world.retry("c")
    world.ack("c", world.store("c"))
    world.poll("late", 2, 3)
    return world.judge_all()


BAD: Final[dict[Callable[[], Verdict], set[Anomaly]]] = {
    replica_has_other_bytes: {Anomaly.DIVERGED},
    replica_has_another_epoch: {Anomaly.DIVERGED},
    replica_ends_early_and_a_consumer_reads_it: {Anomaly.DIVERGED, Anomaly.LOST},
    replica_ends_early_without_an_ack: {Anomaly.DIVERGED},
    all_replicas_lost_it: {Anomaly.LOST},
    table_has_other_content: {Anomaly.TABLE_DIFFERS, Anomaly.LOST},
    table_lacks_a_row: {Anomaly.TABLE_DIFFERS, Anomaly.GAP, Anomaly.LOST},
    table_is_ahead_of_the_log: {Anomaly.TABLE_DIFFERS},
    unified_read_takes_another_branch: {Anomaly.UNIFIED_DIFFERS},
    unified_read_ends_early: {Anomaly.UNIFIED_DIFFERS},
    poll_skips: {Anomaly.POLL_SKIP},
    poll_skips_inside: {Anomaly.POLL_SKIP},
    poll_skips_the_beginning: {Anomaly.POLL_SKIP},
    poll_goes_back: {Anomaly.POLL_BACK},
    shown_and_withdrawn: {Anomaly.WITHDRAWN},
    shown_and_replaced: {Anomaly.WITHDRAWN, Anomaly.INCONSISTENT},
    consumers_see_two_logs: {Anomaly.INCONSISTENT},
    replica_has_another_time: {Anomaly.DIVERGED},
    table_has_another_time: {Anomaly.TABLE_DIFFERS},
    consumers_see_two_times: {Anomaly.INCONSISTENT},
    consumer_saw_another_time: {Anomaly.WITHDRAWN},
    consumer_saw_another_time_than_was_sent: {Anomaly.OTHER_TIME},
    ack_and_poll_disagree: {Anomaly.INCONSISTENT},
    refused_record_is_polled: {Anomaly.ABORTED},
    nonsense_is_polled: {Anomaly.FOREIGN},
    one_record_polled_at_two_offsets: {Anomaly.DOUBLED},
    truncation_is_hidden: {Anomaly.HIDDEN_TRUNCATION},
    follower_never_gets_the_newest: {Anomaly.UNSEEN},
    two_processes_lead_one_epoch: {Anomaly.TWO_LEADERS},
    restarted_leader_goes_on_in_its_epoch: {Anomaly.TWO_LEADERS},
    zombie_acks_after_its_successor: {Anomaly.EPOCH_BACK, Anomaly.LOST},
    client_believes_an_old_epoch: {Anomaly.EPOCH_BACK},
    high_watermark_falls: {Anomaly.HIGH_WATERMARK_BACK},
    high_watermark_above_the_final_log: {Anomaly.WITHDRAWN},
    ordered_producer_s_acks_fall: {Anomaly.SEND_BACK},
    acks_go_back_in_real_time: {Anomaly.REAL_TIME_ORDER},
    leader_ack_moved_within_its_epoch: {Anomaly.MOVED},
    leader_acks_share_an_offset_in_one_epoch: {Anomaly.ACK_SHARED},
    leader_ack_lost_with_one_replica: {Anomaly.LOST},
    more_lost_than_the_operator_accepted: {Anomaly.LOST},
    acknowledged_and_stored_again_after_an_accepted_loss: {Anomaly.DOUBLED},
    sent_once_and_stored_again_after_an_accepted_loss: {Anomaly.DOUBLED},
    stored_again_within_an_accepted_loss: {Anomaly.DOUBLED},
    polled_at_two_offsets_after_an_accepted_loss: {Anomaly.DOUBLED},
}


@pytest.mark.parametrize("story", BAD, ids=lambda story: story.__name__)
def test_a_bad_run_is_named(story: Callable[[], Verdict]) -> None:
    """Each broken promise is found under its own name, and nothing else is."""
    verdict = story()
    assert set(verdict.counts) == BAD[story], f"{story.__doc__} Found: {verdict}"


def test_every_anomaly_of_runs_has_a_bad_history() -> None:
    """No check that needs more than one full read is untested."""
    assert set.union(*BAD.values()) >= OF_RUNS


# ---------------------------------------------------------------------------- the rest


def test_rows_and_columns_are_judged_alike() -> None:
    """A reading in columns finds what the same reading in rows finds."""
    world = world_of("a", "b", "c", cold_end=0)
    part = of_log(0, world.rows[0][:2], end=3)
    columns = replace(part, hot_rows=RowColumns.of(world.rows[0][:2]))
    verdicts = [
        world.judge_all([Reading.of("r", world.tick(), [one, of_log(1, [])], Source.REPLICA)])
        for one in (part, columns)
    ]
    assert verdicts[0] == verdicts[1]
    assert set(verdicts[0].counts) == {Anomaly.GAP, Anomaly.LOST}


def test_the_same_content_twice_is_a_mistake_of_the_test() -> None:
    """Records are known by their content, so a content can be published as new only once."""
    history = History()
    history.publish(content("a"), partition=0, at_ns=1)
    with pytest.raises(AssertionError, match="not unique"):
        history.publish(content("a"), partition=0, at_ns=2)


def test_an_empty_run_is_clean() -> None:
    """Nothing sent, nothing read, nothing wrong."""
    assert World().judge_all([]).ok
    assert World().judge_all().ok
