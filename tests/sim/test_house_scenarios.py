"""Stories that are told on purpose: how other systems lost data, and what the product does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from broker.errors import InvalidRequestError, InvalidStreamError, KeyProviderUnavailableError
from broker.model.ids import BrokerId
from broker.model.records import AckPolicy
from broker.runtime.replica_opener import ReplicaOpener
from broker.storage.stream_folders import log_folder
from simkit.house.house import House
from simkit.house.scripts import (
    SCRIPTS,
    caught,
    committed,
    cut_off,
    elect,
    finish,
    hand_over,
    leader,
    log_end,
    log_that_another_leader_replaced,
    mend,
    one_partition,
    reassign,
    resume,
    row,
    run_until,
    table_beyond_the_last_replica,
    the_one,
    three_replicas,
)
from simkit.mistakes.cores import MUTANTS
from simkit.mistakes.shells import INTERVAL_MUTANTS
from simkit.mistakes.shells import MUTANTS as SHELL_MUTANTS
from simkit.mistakes.tiering import MIXED_MUTANTS

SEEDS = range(3)
SEEDS_OF_RETURNS = (0, 2, 3)  # in 2 and 3 the removal lasts until the replica is back
ALL_MUTANTS = {**MUTANTS, **MIXED_MUTANTS, **INTERVAL_MUTANTS}


@contextmanager
def _five(seed: int) -> Iterator[House]:
    """Lend five brokers that all hold the partition, and publishers that wait for ALL."""
    both = (AckPolicy.ALL, AckPolicy.ALL)
    with one_partition(seed, brokers=5, factor=5, min_isr=3, policies=both) as house:
        house.run_for(600)
        yield house


def _play(house: House, *, pause_the_leader: bool) -> None:
    """Pause two of five, power-fail a third, restart it, resume the two, pause the others."""
    leads = leader(house)
    others = [node for node in house.nodes.values() if node is not leads]
    first = [leads, others[0]] if pause_the_leader else others[:2]
    third = next(node for node in house.nodes.values() if node not in first)
    rest = [one for one in house.nodes.values() if one not in first and one is not third]
    for node in first:
        node.machine.pause()
    house.run_for(1500)
    third.kill(power=True)
    house.run_for(20)
    third.start_again()
    resume(first)
    for node in rest:
        node.machine.pause()
    house.run_for(1500)
    resume(rest)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pause_the_leader", [False, True])
def test_two_paused_a_third_loses_power_then_the_others_pause(
    seed: int, pause_the_leader: bool
) -> None:
    """The scenario in which JetStream lost acknowledged messages (nats-server #7567)."""
    with _five(seed) as house:
        _play(house, pause_the_leader=pause_the_leader)
        finish(house)
        assert house.history.acked_count > 0


def test_that_scenario_loses_records_that_were_acked_unsynced() -> None:
    """The same story on brokers that ack before they sync, as JetStream does, breaks promises."""

    def told() -> None:
        with _five(0) as house:
            _play(house, pause_the_leader=True)
            finish(house)

    assert caught(SHELL_MUTANTS["answer_before_the_sync"], told)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_power_of_all_brokers_goes(seed: int) -> None:
    """Nothing acked is lost, and nobody has to be asked: the folders prove themselves."""
    with _five(seed) as house:
        for _ in range(3):
            for node in house.nodes.values():
                node.kill(power=True)
            for node in house.nodes.values():
                node.start_again()
            house.run_for(2000)
        before = committed(house)
        finish(house)
        assert committed(house) >= before > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_leader_is_replaced_and_comes_back_as_a_follower(seed: int) -> None:
    """Publishing goes on within the session and two timers; the old leader rejoins by itself."""
    with _five(seed) as house:
        killed, before = leader(house), committed(house)
        killed.kill(power=True)
        at_ms = house.world.now_ms
        while committed(house) <= before + 1:
            house.run_for(10)
            assert house.world.now_ms - at_ms < 3_000, house.describe()
        assert row(house).leader != killed.name
        killed.start_again()
        finish(house)
        assert killed.name in row(house).isr


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_reaches_nobody_stops_without_a_hand_over(seed: int) -> None:
    """The wait of a graceful stop has an end; the others elect a leader, and nothing is lost."""
    with _five(seed) as house:
        stopped, before = leader(house), committed(house)
        links = cut_off(house, stopped.name)
        stopped.stop()
        house.run_for(5_000)
        assert house.world.seen["stopped, not handed over"] == 1
        assert not house.world.seen["stopped, handed over"]
        assert row(house).leader not in (stopped.name, None)
        assert committed(house) > before
        mend(house, links)
        stopped.start_again()
        finish(house)
        assert stopped.name in row(house).isr


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_nobody_hears_is_reported_and_replaced(seed: int) -> None:
    """Its session lives, for it still hears the controller; the majority of the ISR decides."""
    with _five(seed) as house:
        deaf = leader(house).name
        for name in house.nodes:
            if name not in (deaf, house.house.leader):
                house.network.cut(deaf, name)
        replicas = [one for one in house.nodes if one not in (deaf, house.house.leader)]
        house.run_for(4000)
        assert row(house).leader not in (deaf, None), (deaf, replicas)
        finish(house)


def test_followers_that_miss_their_leader_one_after_the_other_depose_nobody() -> None:
    """A report counts together with reports of its time, not with one of a later silence."""
    with three_replicas(0) as (house, leads, first, second):
        before, window_ms = row(house), house.setting.election.report_window_ms
        for name in (first, second):
            misses = partial(_misses_its_leader, house, name)
            house.network.loses = partial(_is_an_answer, leads, name)
            run_until(house, misses, f"{name} reports its leader")
            house.network.loses = None
            run_until(house, partial(_not, misses), f"{name} hears its leader")
            house.run_for(2 * window_ms)
        assert row(house).leader_epoch == before.leader_epoch
        finish(house)


def _is_an_answer(leader: str, follower: str, sender: str, receiver: str, message: Any) -> bool:
    return (sender, receiver, message[0]) == (leader, follower, "replica")


def _misses_its_leader(house: House, name: str) -> bool:
    driver = house.nodes[name].replica(the_one(house))
    return driver is not None and driver.replication.misses_leader(row(house).leader_epoch)


def _not(holds: Callable[[], bool]) -> bool:
    return not holds()


def test_a_broker_that_shows_its_replicas_the_metadata_late_does_not_lead_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It opens a long log, for example: it has applied who leads, and its replica has no view."""
    with three_replicas(0) as (house, leads, successor, _):
        broker = house.nodes[leads].broker
        assert broker is not None
        monkeypatch.setattr(broker, "reconcile", lambda **_: None)
        hand_over(house, successor)
        house.run_for(house.setting.election.lease_ms() + house.setting.election.hear_ms() + 1)
        former = house.nodes[leads].replica(the_one(house))
        assert former is not None
        core = former.replication.leader
        assert core is not None, "it has not heard that it was replaced"
        assert core.is_fenced(house.nodes[leads].machine.monotonic_ms())
        assert former.replication.newest_committed is None
        assert former.replication.whole_end is None
        monkeypatch.undo()
        finish(house)


def test_a_log_that_is_opened_late_and_is_damaged_is_fetched_anew_by_the_same_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its key could not be had at the start, for example, so the start gave up nothing of it."""
    with three_replicas(0) as (house, leads, name, _):
        node, partition_id = house.nodes[name], the_one(house)
        node.kill(power=False)
        node.machine.disk.remove_folder(log_folder(partition_id))
        opened, locked = ReplicaOpener.open, [True]

        def open_late(self: ReplicaOpener, *found: Any) -> Any:
            if self._setting.me == name and locked:
                raise KeyProviderUnavailableError("the key cannot be had now")
            return opened(self, *found)

        monkeypatch.setattr(ReplicaOpener, "open", open_late)
        node.start()
        run_until(house, lambda: node.is_open, "started")
        assert node.broker is not None
        assert partition_id in node.broker.replicas.unopened()
        life = node.machine.life
        locked.clear()
        run_until(house, lambda: name not in (*row(house).isr, *row(house).eligible), "withdrawn")
        run_until(house, lambda: name in row(house).isr, "in sync")
        assert node.machine.life == life
        assert node.broker.replicas.damaged() == []
        assert leads in row(house).isr
        finish(house)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_unclean_election_needs_consent_and_is_told_to_everybody(seed: int) -> None:
    """Without its ISR a partition stays offline; what an operator gives up is reported (A10)."""
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 2, "policies": (AckPolicy.NONE,)}
    with one_partition(seed, **shape) as house:
        house.run_for(400)
        last = next(name for name in house.nodes if name != row(house).leader)
        others = [house.nodes[name] for name in house.nodes if name != last]
        links = cut_off(house, last)
        house.run_for(2000)
        assert last not in (*row(house).isr, *row(house).eligible)
        for node in others:
            node.kill(power=True)
        mend(house, links)
        house.run_for(3000)
        assert (row(house).status, row(house).leader) == ("offline", None)
        end = log_end(house, last)
        assert end < committed(house)
        with pytest.raises(InvalidRequestError, match="accept the loss"):
            elect(house, last, accepts=False)
        elect(house, last, accepts=True)
        house.run_for(1000)
        assert row(house).leader == last
        finish(house)
        (loss,) = row(house).losses
        given_up = {node.name for node in others}
        assert (loss.leader, loss.log_end, set(loss.given_up)) == (last, end, given_up)


def test_a_follower_says_which_committed_records_the_new_leader_lacks() -> None:
    """A replica that had shown them reports the loss before it cuts them off."""
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 2, "policies": (AckPolicy.NONE,)}
    with one_partition(5, **shape) as house:
        house.run_for(400)
        last = next(name for name in house.nodes if name != row(house).leader)
        others = [house.nodes[name] for name in house.nodes if name != last]
        links = cut_off(house, last)
        house.run_for(2000)
        for node in others:
            node.machine.pause()
        mend(house, links)
        house.run_for(3000)
        elect(house, last, accepts=True)
        house.run_for(1000)
        resume(others)
        finish(house)
        assert house.world.seen["A10 lost records reported"] == len(others)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_replicas_that_lead_in_turn_and_never_meet_agree_in_the_end(seed: int) -> None:
    """Each has epochs that the other lacks: alignment walks back over both (KIP-279, A2).

    Their processes are stopped, not ended: one that restarted would wait for the other's answer.
    """
    shape: dict[str, Any] = {
        "brokers": 3,
        "factor": 2,
        "min_isr": 2,
        "policies": (AckPolicy.LEADER,),
    }
    with one_partition(seed, **shape) as house:
        house.run_for(300)
        one = leader(house)
        two = next(house.nodes[name] for name in row(house).replicas if name != one.name)
        two.machine.pause()
        for leading, waiting in ((one, two), (two, one), (one, two), (two, one)):
            waiting.machine.pause()
            if leading.machine.paused:
                leading.machine.resume()
            house.run_for(4000)
            assert row(house).leader == leading.name
        resume([one])
        finish(house)
        assert house.world.seen["A2 walked back over more than one epoch"]


@pytest.mark.parametrize("seed", SEEDS_OF_RETURNS)
def test_a_replica_that_comes_back_while_its_log_is_removed_opens_a_new_one(seed: int) -> None:
    """It waits for the removal, and for no other change of the metadata."""
    shape: dict[str, Any] = {"brokers": 4, "factor": 3, "min_isr": 2, "policies": (AckPolicy.ALL,)}
    with one_partition(seed, **shape) as house:
        run_until(house, lambda: committed(house) > 5, "records")
        for publisher in house.publishers:
            publisher.stopped = True
        house.run_for(1_500)
        before, partition_id = row(house).replicas, the_one(house)
        name = next(one for one in before if one != row(house).leader)
        free = next(BrokerId(one) for one in house.nodes if one not in before)
        node = house.nodes[name]
        reassign(house, tuple(free if one == name else one for one in before))
        run_until(house, lambda: name not in row(house).replicas, "a replica that left")
        run_until(house, lambda: node.replica(partition_id) is None, "a log that is closed")
        house.network.loses = lambda sender, receiver, message: (
            sender == name and message[0] == "replica"
        )
        reassign(house, before)
        run_until(house, lambda: node.replica(partition_id), "a new log")
        finish(house)
        assert row(house).replicas == before


def test_a_controller_that_was_stopped_blames_nobody() -> None:
    """After a pause longer than every session the paused controller fences no broker (A17)."""
    with _five(3) as house:
        officer = house.nodes[house.house.leader]
        before = house.world.seen["applied FenceBroker"]
        officer.machine.pause()
        house.run_for(3000)
        officer.machine.resume()
        house.run_for(1500)
        assert house.world.seen["applied FenceBroker"] <= before + 1  # the stopped one itself
        finish(house)


def test_the_last_replica_begins_at_the_table_s_end() -> None:
    """Its log ends below the table; no offset of the table is given out again."""
    table_beyond_the_last_replica(note_is_lost=False)


def test_the_last_replica_keeps_no_record_that_another_leader_replaced() -> None:
    """Readers of the successor's records are told of the loss, and never get others unnoticed."""
    log_that_another_leader_replaced(with_lake=False)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_lower_minimum_elects_no_log_that_nobody_compared(dry_run: bool) -> None:
    """All have restarted and one is back: by a minimum of 1 its own log would be enough."""
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 2, "policies": (AckPolicy.ALL,)}
    with one_partition(0, **shape) as house:
        run_until(house, lambda: committed(house) > 5, "records")
        for node in house.nodes.values():
            node.kill(power=True)
        house.nodes[BrokerId("b0")].start_again()
        run_until(house, lambda: row(house).status == "offline", "no leader")
        broker = house.nodes[BrokerId("b0")].broker
        assert broker is not None
        with pytest.raises(InvalidStreamError, match=r"/0 has no leader"):
            broker.streams.alter(house.streams[0].name, {"min_isr": 1}, dry_run=dry_run)
        house.run_for(3000)
        assert (row(house).leader, row(house).min_isr) == (None, 2)
        finish(house)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_pass_without_their_mistake(script: str) -> None:
    """What a script catches is the mutant's mistake."""
    SCRIPTS[script]()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_notice_their_mistake(script: str) -> None:
    """The mistake that a script is there for breaks a promise in it."""
    assert caught(ALL_MUTANTS[script], SCRIPTS[script])
