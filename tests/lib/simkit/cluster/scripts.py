"""Schedules told step by step, for mistakes that random seeds do not meet.

A script chooses which messages are lost and when a late one arrives; everything else is the
simulation's. It ends with the usual look at everything, and raises AssertionError as a seed does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.core.metadata.commands import NameCandidate, StartElection
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE, BrokerId
from broker.model.records import AckPolicy
from broker.model.replica_messages import FetchAnswer, FetchRequest
from simkit.cluster.control import Proposal, StatePush
from simkit.cluster.publish import Publish
from simkit.cluster.sim import UUID, ClusterSim

_CLIENT: Final = "script"
_PATIENCE_MS: Final = 5_000


def run_until(sim: ClusterSim, reached: Callable[[], object], what: str) -> None:
    """Let time pass until something is so."""
    until_ms = sim.world.now_ms + _PATIENCE_MS
    while not reached():
        assert sim.world.now_ms < until_ms, f"never reached: {what}\n{sim.describe()}"
        assert sim.world.step()
        sim.oracle.check()


def three_replicas(seed: int) -> tuple[ClusterSim, BrokerId, BrokerId, BrokerId]:
    """Return brokers that hold three records, the leader's name, and those of its followers."""
    sim = ClusterSim(
        seed, brokers=3, factor=3, min_isr=2, faults=frozenset(), policies=(AckPolicy.NONE,)
    )
    sim.network.join(_CLIENT, lambda *_: None)
    sim.begin()
    for producer in sim.producers:
        producer.stopped = True
    leader = sim.one.leader
    assert leader is not None
    first, second = (name for name in sim.one.replicas if name != leader)
    run_until(sim, lambda: sim.brokers[leader].serves, "a leader")
    write(sim, leader, 3)
    run_until(sim, lambda: _all_end_at(sim, 3), "three records everywhere")
    return sim, leader, first, second


def write(sim: ClusterSim, leader: BrokerId, count: int) -> None:
    """Publish to this broker, one record after the other; nobody waits for an ack."""
    for _ in range(count):
        value = f"script:{sim.world.steps}:{len(sim.witness.history.records)}".encode()
        sim.witness.sent(_CLIENT, NO_PRODUCER, NO_SEQUENCE, value, AckPolicy.NONE)
        publish = Publish(_CLIENT, 0, NO_PRODUCER, NO_SEQUENCE, value, AckPolicy.NONE)
        sim.brokers[leader].receive(_CLIENT, publish)


def hand_over(sim: ClusterSim, to: BrokerId) -> None:
    """Make another member of the ISR the leader, and wait until it is."""
    one = sim.one
    assert one.leader is not None
    command = NameCandidate(
        stream_uuid=UUID,
        partition=0,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        candidate=to,
        candidate_epoch=sim.control.state.brokers[to].epoch,
    )
    assert sim.control.propose(command) is None
    run_until(sim, lambda: sim.one.leader == to and sim.brokers[to].serves, f"{to} leads")


def _all_end_at(sim: ClusterSim, end: int) -> bool:
    facts = [sim.brokers[name].log.facts() for name in sim.one.replicas]
    return all(one.log_end == one.synced_end == end for one in facts)


def _fetch_of(message: Any, follower: BrokerId) -> bool:
    return isinstance(message, FetchRequest) and message.follower == follower


def _fetching(message: Any, receiver: str, follower: BrokerId) -> bool:
    """Tell whether a message is a follower's fetch, or the answer to it."""
    answers = receiver == follower and isinstance(message, FetchAnswer)
    return answers or _fetch_of(message, follower)


def late_fetch_of_an_older_epoch() -> None:
    """A fetch tells of records that were cut since; the same leader, elected again, gets it late.

    In the first epoch a follower has synced four records that are never committed. The third
    replica leads in the second epoch without them. In the third epoch the first leader writes
    four others, which that follower has yet to fetch.
    """
    sim, leader, follower, third = three_replicas(1)
    kept: list[FetchRequest] = []

    def uncommitted(_: str, receiver: str, message: Any) -> bool:
        if _fetch_of(message, follower) and message.synced_end == 7:
            kept.append(message)
        return _fetching(message, receiver, third)

    sim.network.loses = uncommitted
    write(sim, leader, 4)
    run_until(sim, lambda: kept, "a follower with an uncommitted tail")
    hand_over(sim, third)
    sim.network.loses = None
    write(sim, third, 1)
    run_until(sim, lambda: _all_end_at(sim, 4), "the tail is gone")
    hand_over(sim, leader)
    told: list[FetchRequest] = []

    def silent(_: str, receiver: str, message: Any) -> bool:
        if _fetch_of(message, third) and message.synced_end == 7:
            told.append(message)
        return _fetching(message, receiver, follower)

    sim.network.loses = silent
    write(sim, leader, 3)
    run_until(sim, lambda: told, "one other copy")
    sim.run_for(100)
    sim.brokers[leader].receive(follower, kept[0])
    sim.run_for(20)
    _end(sim)


def answer_of_a_follower() -> None:
    """A replica answers the controller, and acknowledges to the former leader after that.

    The leader counts three records from a follower whose disk then forgets them; the other
    follower has yet to tell that it holds them. An election begins of which that one and the leader
    hear nothing for a while: what it answers now says nothing about what it will have helped to
    commit.
    """
    sim, leader, forgetful, other = three_replicas(1)
    copy, folder = sim.brokers[forgetful].log.copy(), list(sim.brokers[forgetful].folder)
    told: list[FetchRequest] = []

    def untold(sender: str, receiver: str, message: Any) -> bool:
        if _fetch_of(message, forgetful) and message.synced_end == 6:
            told.append(message)
        proposed = sender == leader and isinstance(message, Proposal)
        return proposed or _fetching(message, receiver, other)

    sim.network.loses = untold
    write(sim, leader, 3)
    run_until(sim, lambda: told, "records that one follower has told of")
    sim.run_for(70)
    sim.brokers[forgetful].put_back(copy, folder)

    def deaf(sender: str, receiver: str, message: Any) -> bool:
        pushed = receiver in (leader, other) and isinstance(message, StatePush)
        return pushed or _fetch_of(message, forgetful) or untold(sender, receiver, message)

    sim.network.loses = deaf
    sim.brokers[forgetful].start()
    run_until(sim, lambda: forgetful in sim.one.restarted, "a process that restarted")
    opened = StartElection(
        stream_uuid=UUID,
        partition=0,
        leader_epoch=sim.one.leader_epoch,
        partition_epoch=sim.one.partition_epoch,
        suspect=leader,
    )
    assert sim.control.propose(opened) is None
    run_until(sim, lambda: sim.one.candidate or sim.one.leader, "a candidate")

    def pushes_alone(_: str, receiver: str, message: Any) -> bool:
        return receiver in (leader, other) and isinstance(message, StatePush)

    sim.network.loses = pushes_alone
    run_until(sim, lambda: len(sim.oracle.committed) == 6, "committed by the former leader")
    _end(sim)


def _end(sim: ClusterSim) -> None:
    sim.network.loses = None
    sim.heal()
    sim.look()


# By the mutant that a script is there for.
SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    "no_epoch_in_acks": late_fetch_of_an_older_epoch,
    "answers_of_followers": answer_of_a_follower,
}
