"""Stories that are told on purpose: how other systems lost data, and what happens here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.core.metadata.commands import ElectUnclean
from broker.errors import InvalidRequestError
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from simkit.cluster.control import CONTROL
from simkit.cluster.mutants import MUTANTS
from simkit.cluster.sim import UUID, ClusterSim
from simkit.network.world import both_ways

SEEDS = range(8)


def _five(seed: int) -> ClusterSim:
    """Return five brokers that all hold the partition, and publishers that wait for ALL."""
    sim = ClusterSim(
        seed,
        brokers=5,
        factor=5,
        min_isr=3,
        faults=frozenset(),
        policies=(AckPolicy.ALL, AckPolicy.ALL),
    )
    sim.begin()
    sim.run_for(600)
    return sim


def _play(seed: int, *, pause_the_leader: bool) -> ClusterSim:
    """Pause two of five, power-fail a third, restart it, resume the two, pause the others."""
    sim = _five(seed)
    leader = sim.brokers[sim.one.leader or ""]
    others = [broker for broker in sim.brokers.values() if broker is not leader]
    first = [leader, others[0]] if pause_the_leader else others[:2]
    third = next(broker for broker in sim.brokers.values() if broker not in first)
    rest = [one for one in sim.brokers.values() if one not in first and one is not third]
    for broker in first:
        broker.pause()
    sim.run_for(1500)
    third.crash(power=True)
    sim.run_for(20)
    third.start()
    for broker in first:
        broker.resume()
    for broker in rest:
        broker.pause()
    sim.run_for(1500)
    for broker in rest:
        broker.resume()
    return sim


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pause_the_leader", [False, True])
def test_two_paused_a_third_loses_power_then_the_others_pause(
    seed: int, pause_the_leader: bool
) -> None:
    """The scenario in which JetStream lost acknowledged messages (nats-server #7567)."""
    sim = _play(seed, pause_the_leader=pause_the_leader)
    sim.heal()
    sim.look()
    assert sim.result().acked > 0


def test_that_scenario_loses_records_that_were_acked_unsynced() -> None:
    """The same story on brokers that ack before they sync, as JetStream does, breaks promises."""
    broken = 0
    for seed in SEEDS:
        with MUTANTS["follower_acks_before_sync"](), MUTANTS["leader_acks_before_sync"]():
            try:
                sim = _play(seed, pause_the_leader=True)
                sim.heal()
                sim.look()
            except AssertionError:
                broken += 1
    assert broken


@pytest.mark.parametrize("seed", SEEDS)
def test_the_power_of_all_brokers_goes(seed: int) -> None:
    """Nothing acked is lost, and nobody has to be asked: the folders prove themselves."""
    sim = _five(seed)
    for _ in range(3):
        for broker in sim.brokers.values():
            broker.crash(power=True)
        for broker in sim.brokers.values():
            broker.start()
        sim.run_for(2000)
    committed = len(sim.oracle.committed)
    sim.heal()
    sim.look()
    assert len(sim.oracle.committed) >= committed > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_leader_is_replaced_and_comes_back_as_a_follower(seed: int) -> None:
    """Publishing goes on within the session and two timers; the old leader rejoins by itself."""
    sim = _five(seed)
    killed = sim.brokers[sim.one.leader or ""]
    before = len(sim.oracle.committed)
    killed.crash(power=True)
    at_ms = sim.world.now_ms
    while len(sim.oracle.committed) <= before + 1:
        sim.run_for(10)
        assert sim.world.now_ms - at_ms < 3_000, sim.describe()
    assert sim.one.leader != killed.name
    killed.start()
    sim.heal()
    sim.look()
    assert killed.name in sim.one.isr


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_nobody_hears_is_reported_and_replaced(seed: int) -> None:
    """Its session lives, for it still hears the controller; the majority of the ISR decides."""
    sim = _five(seed)
    deaf = sim.one.leader or ""
    for name in sim.names:
        if name != deaf:
            sim.network.cut(deaf, name)
    sim.run_for(2500)
    assert sim.one.leader not in (deaf, None)
    sim.heal()
    sim.look()


@pytest.mark.parametrize("seed", range(6))
def test_an_unclean_election_needs_consent_and_is_told_to_everybody(seed: int) -> None:
    """Without its ISR a partition stays offline; what an operator gives up is reported (A10)."""
    sim = ClusterSim(
        seed, brokers=3, factor=3, min_isr=2, faults=frozenset(), policies=(AckPolicy.NONE,)
    )
    sim.begin()
    sim.run_for(400)
    last = next(name for name in sim.names if name != sim.one.leader)
    others = [name for name in sim.names if name != last]
    for one, two in both_ways([last], [*others, CONTROL]):
        sim.network.cut(one, two)
    sim.run_for(2000)
    assert last not in (*sim.one.isr, *sim.one.eligible)
    for name in others:
        sim.brokers[name].crash(power=True)
    for one, two in both_ways([last], [*others, CONTROL]):
        sim.network.heal(one, two)
    sim.run_for(3000)
    assert (sim.one.status, sim.one.leader) == ("offline", None)
    log = sim.brokers[last].log.facts()
    assert log.log_end < len(sim.oracle.committed)
    force = ElectUnclean(
        stream_uuid=UUID,
        partition=0,
        partition_epoch=sim.one.partition_epoch,
        broker=last,
        broker_epoch=sim.control.state.brokers[last].epoch,
        log_end=log.log_end,
        known_end=Offset(len(sim.oracle.committed)),
        operator="test",
    )
    assert isinstance(sim.control.propose(force), InvalidRequestError)
    sim.oracle.give_up(log.log_end)
    sim.reader.truncated(log.log_end)
    assert sim.control.propose(replace(force, accept_data_loss=True)) is None
    sim.run_for(1000)
    assert sim.one.leader == last
    sim.heal()
    sim.look()
    (loss,) = sim.one.losses
    assert (loss.leader, loss.log_end, set(loss.given_up)) == (last, log.log_end, set(others))


def test_a_polite_stop_of_everybody_is_believed_once() -> None:
    """A stream that syncs now and then goes on by itself; after the next end nobody vouches."""
    sim = ClusterSim(
        4, brokers=3, factor=3, faults=frozenset(), policies=(AckPolicy.ALL,), interval=True
    )
    sim.begin()
    sim.run_for(200)
    brokers = list(sim.brokers.values())
    for broker in brokers:
        broker.stop()
    for broker in brokers:
        broker.start()
    until_ms = sim.world.now_ms + 5_000
    while sim.one.leader is None or not sim.brokers[sim.one.leader].serves:
        sim.run_for(10)
        assert sim.world.now_ms < until_ms, sim.describe()
    assert sim.one.losses == ()
    for broker in brokers:
        broker.crash(power=True)
    for broker in brokers:
        broker.start()
    while sim.one.status != "offline":
        sim.run_for(10)
        assert sim.world.now_ms < until_ms + 10_000, sim.describe()
    assert (sim.one.isr, sim.one.eligible) == ((), ())
    sim.heal()
    sim.look()
    assert sim.one.losses


def test_a_follower_says_which_committed_records_the_new_leader_lacks() -> None:
    """A replica that had shown them reports the loss before it cuts them off."""
    sim = ClusterSim(
        5, brokers=3, factor=3, min_isr=2, faults=frozenset(), policies=(AckPolicy.NONE,)
    )
    sim.begin()
    sim.run_for(400)
    last = next(name for name in sim.names if name != sim.one.leader)
    others = [name for name in sim.names if name != last]
    for one, two in both_ways([last], [*others, CONTROL]):
        sim.network.cut(one, two)
    sim.run_for(2000)
    for name in others:
        sim.brokers[name].pause()
    for one, two in both_ways([last], [*others, CONTROL]):
        sim.network.heal(one, two)
    sim.run_for(3000)
    known_end = Offset(len(sim.oracle.committed))
    kept_end = sim.brokers[last].log.facts().log_end
    sim.oracle.give_up(kept_end)
    sim.reader.truncated(kept_end)
    force = ElectUnclean(
        stream_uuid=UUID,
        partition=0,
        partition_epoch=sim.one.partition_epoch,
        broker=last,
        broker_epoch=sim.control.state.brokers[last].epoch,
        log_end=kept_end,
        known_end=known_end,
        operator="test",
        accept_data_loss=True,
    )
    assert sim.control.propose(force) is None
    sim.run_for(1000)
    sim.heal()
    sim.look()
    assert sim.world.seen["A10 lost records reported"] == len(others)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_replicas_that_lead_in_turn_and_never_meet_agree_in_the_end(seed: int) -> None:
    """Each has epochs that the other lacks: alignment walks back over both (KIP-279, A2).

    Their processes are stopped, not ended: one that restarted would wait for the other's answer.
    """
    sim = ClusterSim(
        seed, brokers=3, factor=2, min_isr=2, faults=frozenset(), policies=(AckPolicy.LEADER,)
    )
    sim.begin()
    sim.run_for(300)
    one, two = sim.one.leader or "", next(n for n in sim.one.replicas if n != sim.one.leader)
    sim.brokers[two].pause()
    for leading, waiting in ((one, two), (two, one), (one, two), (two, one)):
        sim.brokers[waiting].pause()
        sim.brokers[leading].resume()
        sim.run_for(4000)
        assert sim.one.leader == leading
    sim.heal()
    sim.look()
    assert sim.world.seen["A2 walked back over more than one epoch"]


def test_a_controller_that_was_stopped_blames_nobody() -> None:
    """After a pause longer than every session no broker is fenced (A17)."""
    sim = _five(3)
    sim.control.pause()
    sim.run_for(3000)
    before = sim.world.seen["applied FenceBroker"]
    sim.control.resume()
    sim.run_for(1500)
    assert sim.world.seen["applied FenceBroker"] == before
    sim.heal()
    sim.look()
