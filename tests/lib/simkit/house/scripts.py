"""Schedules told step by step, for stories that random seeds do not meet.

A script chooses the stopped broker, the lost message and the arrival of a late one; everything else
is the simulation's. It ends with the usual look at everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from broker.codec.peer import replica_messages
from broker.core.metadata.commands import NameCandidate, ReassignReplicas, StartElection
from broker.core.metadata.state import PartitionState
from broker.errors import CommitTimeoutError, InvalidRequestError
from broker.model.ids import BrokerId, PartitionId
from broker.model.records import AckPolicy
from broker.model.replica_messages import FetchAnswer, FetchRequest
from broker.ports.partition import StoredBatch
from simkit.house.clients import Publish
from simkit.house.house import House, opened
from simkit.house.metadata import META
from simkit.house.node import Node
from simkit.house.oracle import log_of
from simkit.house.shape import Shape
from simkit.network.world import both_ways
from simkit.replacing import Mutant

_CLIENT: Final = "script"
_PATIENCE_MS: Final = 5_000
NO_FAULTS: Final = frozenset[str]()


@contextmanager
def one_partition(seed: int, *, with_lake: bool = False, **shape: Any) -> Iterator[House]:
    """Lend a house of one partition, in which nothing goes wrong by itself."""
    chosen = Shape(streams=1, partitions=1, **shape)
    with opened(seed, faults=NO_FAULTS, shape=chosen, with_lake=with_lake) as house:
        house.network.join(_CLIENT, lambda *_: None)
        house.begin()
        yield house


def the_one(house: House) -> PartitionId:
    """Return the partition."""
    return house.partitions[0]


def row(house: House) -> PartitionState:
    """Return the partition as the metadata has it."""
    return house.row(the_one(house))


def committed(house: House) -> int:
    """Return how many records were shown as committed."""
    return len(house.oracle.of(the_one(house)).committed)


def leader(house: House) -> Node:
    """Return the broker that leads."""
    return house.nodes[row(house).leader or ""]


def log_end(house: House, name: str) -> int:
    """Return where a replica's log ends."""
    driver = house.nodes[name].replica(the_one(house))
    assert driver is not None, f"{name} runs, and holds it"
    return log_of(driver).log_end


def resume(nodes: Iterable[Node]) -> None:
    """Let stopped processes go on."""
    for node in nodes:
        node.machine.resume()


def run_until(house: House, reached: Callable[[], object], what: str) -> None:
    """Let time pass until something is so."""
    until_ms = house.world.now_ms + _PATIENCE_MS
    while not reached():
        assert house.world.now_ms < until_ms, f"never reached: {what}\n{house.describe()}"
        assert house.world.step()
        house.look_now()


def finish(house: House) -> None:
    """End all trouble, and look at everything."""
    house.network.loses = None
    house.heal()
    house.look()


def cut_off(house: House, name: str) -> list[tuple[str, str]]:
    """Cut a broker off from all others; return the links."""
    links = both_ways([name], [META, *sorted({*house.nodes} - {name})])
    for sender, receiver in links:
        house.network.cut(sender, receiver)
    return links


def mend(house: House, links: Iterable[tuple[str, str]]) -> None:
    """Undo :func:`cut_off`."""
    for sender, receiver in links:
        house.network.heal(sender, receiver)


# ---------------------------------------------------------------------- late messages


@contextmanager
def three_replicas(seed: int) -> Iterator[tuple[House, BrokerId, BrokerId, BrokerId]]:
    """Lend a house whose brokers hold three records, with the leader's name and the others'."""
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 2}
    with one_partition(seed, policies=(AckPolicy.NONE,), **shape) as house:
        for publisher in house.publishers:
            publisher.stopped = True
        run_until(house, lambda: _leads(house, row(house).leader or ""), "a leader")
        house.run_for(200)
        name = BrokerId(row(house).leader or "")
        first, second = (one for one in row(house).replicas if one != name)
        end = log_end(house, name)
        write(house, name, 3)
        run_until(house, lambda: _all_end_at(house, end + 3), "three records everywhere")
        yield house, name, first, second


def _leads(house: House, name: str) -> bool:
    driver = house.nodes[name].replica(the_one(house)) if name else None
    return driver is not None and driver.leads


def write(house: House, name: str, count: int) -> None:
    """Publish to this broker, one record after the other, without waiting for acks."""
    for _ in range(count):
        number = len(house.history.names)
        value = f"script:{number}".encode()
        house.history.publish(
            value, partition=0, at_ns=house.world.steps, producer=_CLIENT, sequence=number,
            policy=AckPolicy.NONE, identified=False, client=_CLIENT,
        )  # fmt: skip
        publish = Publish(
            client=_CLIENT, number=0, partition_id=the_one(house), producer=-1, sequence=number,
            value=value, policy=AckPolicy.NONE,
        )  # fmt: skip
        house.nodes[name]._receive(_CLIENT, ("publish", publish))


def hand_over(house: House, to: BrokerId) -> None:
    """Make another member of the ISR the leader, and wait until it is."""
    present = row(house)
    command = NameCandidate(
        stream_uuid=the_one(house).stream_uuid,
        partition=0,
        leader_epoch=present.leader_epoch,
        partition_epoch=present.partition_epoch,
        candidate=to,
        candidate_epoch=house.house.state.brokers[to].epoch,
    )
    assert house.house.propose(command) is None
    run_until(house, lambda: row(house).leader == to and _leads(house, to), f"{to} leads")


def _all_end_at(house: House, end: int) -> bool:
    drivers = [house.nodes[name].replica(the_one(house)) for name in row(house).replicas]
    logs = [log_of(one) for one in drivers if one is not None]
    return len(logs) == len(drivers) and all(one.log_end == one.synced_end == end for one in logs)


def replica_message(sender: str, message: Any) -> Any:
    """Return what a replica says in a message of the network; None if it is another kind."""
    if message[0] != "replica":
        return None
    found = replica_messages.decode(
        memoryview(message[1]), sender=BrokerId(sender), batch=StoredBatch
    )
    return found[-1]


def _fetch_of(sender: str, message: Any, follower: BrokerId) -> FetchRequest | None:
    found = replica_message(sender, message) if sender == follower else None
    return found if isinstance(found, FetchRequest) else None


def _fetching(sender: str, receiver: str, message: Any, follower: BrokerId) -> bool:
    """Tell whether a message is a follower's fetch, or the answer to it."""
    answers = receiver == follower and isinstance(replica_message(sender, message), FetchAnswer)
    return answers or _fetch_of(sender, message, follower) is not None


def late_fetch_of_an_older_epoch() -> None:
    """A fetch tells of records that were cut since; the same leader, elected again, gets it late.

    In the first epoch a follower has synced four records that are never committed. The third
    replica leads in the second epoch without them. In the third epoch the first leader writes
    four others, which that follower has yet to fetch.
    """
    with three_replicas(2) as (house, first, follower, third):
        end = log_end(house, first)
        kept: list[Any] = []

        def uncommitted(sender: str, receiver: str, message: Any) -> bool:
            fetch = _fetch_of(sender, message, follower)
            if fetch is not None and fetch.synced_end == end + 4:
                kept.append(message)
            return _fetching(sender, receiver, message, third)

        house.network.loses = uncommitted
        write(house, first, 4)
        run_until(house, lambda: kept, "a follower with an uncommitted tail")
        hand_over(house, third)
        house.network.loses = None
        write(house, third, 1)
        run_until(house, lambda: _all_end_at(house, end + 1), "the tail is gone")
        hand_over(house, first)
        told: list[Any] = []

        def silent(sender: str, receiver: str, message: Any) -> bool:
            fetch = _fetch_of(sender, message, third)
            if fetch is not None and fetch.synced_end == end + 4:
                told.append(message)
            return _fetching(sender, receiver, message, follower)

        house.network.loses = silent
        write(house, first, 3)
        run_until(house, lambda: told, "one other copy")
        house.run_for(100)
        house.nodes[first]._receive(follower, kept[0])
        house.run_for(20)
        finish(house)


def answer_of_a_follower() -> None:
    """A replica answers the controller, and acknowledges to the former leader after that.

    The leader counts three records from a follower whose disk then forgets them; the other
    follower has yet to tell that it holds them. An election begins of which that one and the leader
    hear nothing for a while: what it answers now says nothing about what it will have helped to
    commit.
    """
    with three_replicas(1) as (house, first, forgetful, other):
        end = log_end(house, first)
        disk = house.nodes[forgetful].machine.disk
        copy = {path: disk.peek(path) for path in disk.paths()}
        told: list[Any] = []

        def untold(sender: str, receiver: str, message: Any) -> bool:
            fetch = _fetch_of(sender, message, forgetful)
            if fetch is not None and fetch.synced_end == end + 3:
                told.append(message)
            proposed = sender == first and receiver == META and message[0] == "propose"
            return proposed or _fetching(sender, receiver, message, other)

        house.network.loses = untold
        write(house, first, 3)
        run_until(house, lambda: told, "records that one follower has told of")
        house.run_for(70)
        node = house.nodes[forgetful]
        node.kill(power=True)
        house.damage.put_this_back(node, copy)

        def deaf(sender: str, receiver: str, message: Any) -> bool:
            pushed = sender == META and receiver in (first, other)
            mute = _fetch_of(sender, message, forgetful) is not None
            return pushed or mute or untold(sender, receiver, message)

        house.network.loses = deaf
        node.start_again()
        run_until(house, lambda: forgetful in row(house).restarted, "a process that restarted")
        while house.house.leader != forgetful:  # the only member that is told of it
            house.house.change_leader()
        opened_now = StartElection(
            stream_uuid=the_one(house).stream_uuid,
            partition=0,
            leader_epoch=row(house).leader_epoch,
            partition_epoch=row(house).partition_epoch,
            suspect=first,
        )
        assert house.house.propose(opened_now) is None
        run_until(house, lambda: row(house).candidate or row(house).leader, "a candidate")

        def pushes_alone(sender: str, receiver: str, message: Any) -> bool:
            return sender == META and receiver in (first, other)

        house.network.loses = pushes_alone
        known = end + 3
        run_until(house, lambda: committed(house) == known, "committed by the former leader")
        finish(house)


def reassign(house: House, target: tuple[BrokerId, ...]) -> None:
    """Begin to move the partition to these brokers."""
    command = ReassignReplicas(
        stream_uuid=the_one(house).stream_uuid,
        partition=0,
        partition_epoch=row(house).partition_epoch,
        target=target,
    )
    assert house.house.propose(command) is None


def late_fetch_of_a_removed_log() -> None:
    """A replica leaves a partition, and comes back; a fetch of the log that it had comes late.

    The broker is the same process, led by the same leader; its new log is still empty when the
    fetch says that it has synced every record.
    """
    shape: dict[str, Any] = {"brokers": 4, "factor": 3, "min_isr": 2}
    with one_partition(0, policies=(AckPolicy.ALL,), **shape) as house:
        run_until(house, lambda: committed(house) > 5, "records")
        for publisher in house.publishers:
            publisher.stopped = True
        house.run_for(1_500)
        before, first = row(house).replicas, row(house).leader or ""
        moved = next(one for one in before if one != first)
        free = next(BrokerId(one) for one in house.nodes if one not in before)
        end, kept = log_end(house, moved), list[Any]()

        def overheard(sender: str, receiver: str, message: Any) -> bool:
            fetch = _fetch_of(sender, message, moved)
            if fetch is not None and fetch.synced_end == end:
                kept.append(message)
            return False

        house.network.loses = overheard
        run_until(house, lambda: kept, "a fetch of a log with every record")
        reassign(house, tuple(free if one == moved else one for one in before))
        run_until(house, lambda: moved not in row(house).replicas, "a replica that left")
        house.run_for(500)
        assert house.nodes[moved].replica(the_one(house)) is None, "its log is removed"
        assert row(house).leader == first, "the same broker leads"

        def silent(sender: str, receiver: str, message: Any) -> bool:
            return _fetching(sender, receiver, message, moved)

        house.network.loses = silent
        reassign(house, before)
        run_until(house, lambda: house.nodes[moved].replica(the_one(house)), "its new log")
        house.run_for(100)
        assert (log_end(house, moved), committed(house)) == (0, end), "the new log is empty"
        house.nodes[first]._receive(moved, kept[0])
        house.run_for(500)
        assert moved not in row(house).isr, "an empty log is not in sync"
        finish(house)
        assert row(house).replicas == before


def elect(house: House, name: str, *, accepts: bool = True) -> None:
    """Ask until the answer is known: now and then a proposal ends as after a timeout."""
    for _ in range(20):
        try:
            house.operator.elect(the_one(house), name, accepts=accepts)
        except CommitTimeoutError:
            house.run_for(300)
        except InvalidRequestError:
            if not row(house).losses:  # else it was done before, and its answer was late
                raise
        if row(house).losses:
            return
    raise AssertionError("nobody answered")


def table_beyond_the_last_replica(*, note_is_lost: bool) -> None:
    """The only remaining replica ends below the table, whose end may be noted nowhere.

    It leads with a log that begins at the table's end; the others follow it when they are back.
    """
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 2}
    with one_partition(2, with_lake=True, policies=(AckPolicy.ALL,), **shape) as house:
        house.run_for(400)
        last = next(name for name in house.nodes if name != row(house).leader)
        links = cut_off(house, last)
        end = log_end(house, last)
        until_ms, commits = house.world.now_ms + 10_000, 0
        while True:
            assert house.world.now_ms < until_ms, "nothing was shipped"
            house.run_for(1)
            assert house.lake is not None
            before, commits = commits, len(list(house.lake.root.rglob("_delta_log/*.json")))
            noted = row(house).cold_end
            if note_is_lost and commits > before and house.operator.held(the_one(house)) > noted:
                break
            if not note_is_lost and noted > end:
                break
        assert house.operator.held(the_one(house)) > end, "the table has what this replica lacks"
        for name in sorted({*house.nodes} - {last}):
            house.nodes[name].kill(power=True)
        mend(house, links)
        house.run_for(3000)
        elect(house, last)
        run_until(house, lambda: row(house).leader == last, "the last replica leads")
        house.run_for(1000)
        finish(house)
        assert house.world.seen["T log begins at the cold end"]


def table_beyond_the_last_replica_is_not_noted() -> None:
    """See :func:`table_beyond_the_last_replica`."""
    table_beyond_the_last_replica(note_is_lost=True)


def log_that_another_leader_replaced(*, with_lake: bool) -> None:
    """The only remaining replica is long enough, and has its own records where others committed.

    It had led alone. With a lake, the table has its successor's records at their offsets.
    """
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 2}
    policies = (AckPolicy.NONE, AckPolicy.ALL)
    with one_partition(0, with_lake=with_lake, policies=policies, **shape) as house:
        house.run_for(400)
        former = BrokerId(row(house).leader or "")
        links = cut_off(house, former)
        run_until(house, lambda: row(house).leader not in (former, None), "a successor")
        start, end = row(house).lineage[-1].start, log_end(house, former)
        held = partial(house.operator.held, the_one(house))
        shown = held if with_lake else partial(committed, house)
        run_until(house, lambda: shown() > start, "records of the successor")
        assert start < shown() < end, "by its end alone the log is long enough"
        for name in sorted({*house.nodes} - {former}):
            house.nodes[name].kill(power=True)
        mend(house, links)
        run_until(house, lambda: row(house).status == "offline", "no leader")
        house.run_for(1000)
        elect(house, former)
        run_until(house, lambda: row(house).leader == former, "the last replica leads")
        assert row(house).losses[0].log_end == start
        assert row(house).lineage[-1].start == max(start, held())
        house.run_for(1000)
        finish(house)


def log_that_the_table_replaced() -> None:
    """See :func:`log_that_another_leader_replaced`."""
    log_that_another_leader_replaced(with_lake=True)


def polite_stop_of_everybody() -> None:
    """A stream that syncs by interval survives it; a kill after it proves nothing any more."""
    shape: dict[str, Any] = {"brokers": 3, "factor": 3, "min_isr": 1, "policies": (AckPolicy.ALL,)}
    with one_partition(4, interval=True, **shape) as house:
        house.run_for(400)
        for node in house.nodes.values():
            node.stop()
        house.run_for(2_500)
        assert house.world.seen["clean stop noted"] == 3
        until_ms = house.world.now_ms + 5_000
        while row(house).leader is None:
            house.run_for(10)
            assert house.world.now_ms < until_ms, house.describe()
        assert row(house).losses == ()
        for node in house.nodes.values():
            node.kill(power=True)
        for node in house.nodes.values():
            node.start_again()
        while row(house).status != "offline":
            house.run_for(10)
            assert house.world.now_ms < until_ms + 10_000, house.describe()
        assert (row(house).isr, row(house).eligible) == ((), ())
        finish(house)
        assert row(house).losses


# By the mutant that a script is there for.
SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    "clean_stop_believed_twice": polite_stop_of_everybody,
    "every_end_is_a_clean_stop": polite_stop_of_everybody,
    "cold_end_learned_after_the_election": table_beyond_the_last_replica_is_not_noted,
    "log_end_says_enough": log_that_the_table_replaced,
    "no_epoch_in_acks": late_fetch_of_an_older_epoch,
    "answers_of_followers": answer_of_a_follower,
    "late_fetches_of_a_removed_log_count": late_fetch_of_a_removed_log,
}


def caught(mutant: Mutant, script: Callable[[], None]) -> bool:
    """Tell whether a script notices a mistake."""
    with mutant():
        try:
            script()
        except AssertionError:
            return True
    return False
