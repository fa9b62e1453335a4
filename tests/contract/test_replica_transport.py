"""Every replica transport keeps the same promises: whole messages, in order, with the true sender.

A transport may lose messages, and a replica asks again. So the tests send again, too.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    NewDataNotice,
    ReplicaMessage,
)
from simkit.brokers.replica_rigs import (
    TIMEOUT_S,
    A,
    B,
    C,
    Delivered,
    NatsRig,
    PeerRig,
    ReplicaRig,
    address,
    answer,
    fetch,
    stored,
)

pytestmark = pytest.mark.integration

RIGS: dict[str, Callable[[Path], ReplicaRig]] = {"peer": PeerRig, "nats": NatsRig}


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplicaRig]:
    """Return three running brokers; `a` leads partition 0."""
    found = RIGS[request.param](tmp_path)
    found.transports[A].serve(address())
    yield found
    found.close()


def _meet(rig: ReplicaRig, follower: BrokerId, leader: BrokerId = A, number: int = 0) -> None:
    """Send until both sides have heard each other and none of these messages is under way."""
    for attempt in range(1_000_000, 1_000_600):
        request = fetch(attempt, follower=follower)
        rig.transports[follower].send(leader, address(number), request)
        if not _comes(rig, leader, (follower, address(number).partition_id, request), 0.1):
            continue
        told = answer(attempt)
        rig.transports[leader].send(follower, address(number), told)
        if _comes(rig, follower, (leader, address(number).partition_id, told), 1.0):
            return
    pytest.fail(f"{follower} and {leader} get no messages from each other")


def _comes(rig: ReplicaRig, broker: BrokerId, wanted: Delivered, timeout_s: float) -> bool:
    """Read an inbox until this comes, or nothing does."""
    while (found := _next(rig, broker, timeout_s)) is not None:
        if found == wanted:
            return True
    return False


def _next(rig: ReplicaRig, broker: BrokerId, timeout_s: float = TIMEOUT_S) -> Delivered | None:
    try:
        return rig.inboxes[broker].get(timeout=timeout_s)
    except queue.Empty:
        return None


def _ask(rig: ReplicaRig, request_id: int, *, at: int = 0) -> None:
    """Bring a request of `b` to `a`."""
    rig.transports[B].send(A, address(), fetch(request_id, at=at))
    assert _next(rig, A) == (B, address().partition_id, fetch(request_id, at=at))


def test_every_kind_of_message_arrives_as_it_was_sent(rig: ReplicaRig) -> None:
    """Requests, answers, refusals and notices keep every field, and name their sender."""
    _meet(rig, B)
    epochs = EpochEndRequest(
        follower=B,
        broker_epoch=BrokerEpoch(4),
        leader_epoch=LeaderEpoch(7),
        request_id=1,
        epoch=LeaderEpoch(5),
    )
    told = EpochEndAnswer(
        leader_epoch=LeaderEpoch(7),
        request_id=1,
        epoch=LeaderEpoch(5),
        known_epoch=LeaderEpoch(3),
        end=Offset(17),
    )
    refused = FetchAnswer(
        leader_epoch=LeaderEpoch(9),
        request_id=2,
        start=Offset(0),
        high_watermark=Offset(0),
        log_end=Offset(5),
        refusal="fenced_epoch",
    )
    full = answer(3, (stored(17, b"x" * 64), stored(18, b"y" * 128)), at=17)
    talk: list[tuple[BrokerId, BrokerId, ReplicaMessage]] = [
        (B, A, epochs),
        (A, B, told),
        (B, A, fetch(2)),
        (A, B, refused),
        (B, A, fetch(3, at=17)),
        (A, B, full),
        (A, B, NewDataNotice(leader_epoch=LeaderEpoch(7))),
    ]
    for sender, receiver, message in talk:
        rig.transports[sender].send(receiver, address(), message)
        assert _next(rig, receiver) == (sender, address().partition_id, message)


def test_messages_of_a_partition_do_not_overtake_each_other(rig: ReplicaRig) -> None:
    """Small and large ones in one direction arrive in the order in which they were sent."""
    _meet(rig, B)
    answers = []
    for number in range(60):
        _ask(rig, number, at=number)
        body = b"z" * (1000 if number % 3 else 400_000)
        answers.append(answer(number, (stored(number, body),), at=number))
    for one in answers:
        rig.transports[A].send(B, address(), one)
    arrived = [_next(rig, B) for _ in answers]
    assert [one[2] for one in arrived if one is not None] == answers


def test_a_batch_far_larger_than_a_frame_arrives_whole(rig: ReplicaRig) -> None:
    """A record of 8 MiB, which the log takes, has to reach the other replicas, too."""
    _meet(rig, B)
    big = answer(5, (stored(0, bytes(range(256)) * 32768), stored(1, b"end" + bytes(5))))
    _ask(rig, 5)
    rig.transports[A].send(B, address(), big)
    arrived = _next(rig, B)
    assert arrived is not None
    found = arrived[2]
    assert isinstance(found, FetchAnswer)
    # A transport may carry fewer batches than it was given, but at least one, and each whole.
    assert found.batches == big.batches[: max(1, len(found.batches))]


def test_a_damaged_batch_is_not_delivered(rig: ReplicaRig) -> None:
    """Its checksum is checked on arrival; later messages still arrive."""
    _meet(rig, B)
    before = rig.malformed_count(B)  # a late answer to a meeting that was tried again
    damaged = answer(1, (stored(0, b"x" * 64, crc=1),))
    _ask(rig, 1)
    rig.transports[A].send(B, address(), damaged)
    _ask(rig, 2)
    rig.transports[A].send(B, address(), answer(2))
    arrived = _next(rig, B)
    assert arrived is not None
    assert arrived[2] == answer(2)
    assert rig.malformed_count(B) == before + 1


def test_a_peer_that_was_away_is_heard_again(rig: ReplicaRig) -> None:
    """While it is away, sending does nothing bad; once it is back, both directions work."""
    for _ in range(3):
        _meet(rig, B)
        rig.stop(B)
        for number in range(100):
            rig.transports[A].send(B, address(), answer(number, (stored(0, b"x" * 1000),)))
        rig.start(B)
    _meet(rig, B)


def test_a_leader_that_restarted_is_heard_again(rig: ReplicaRig) -> None:
    """The broker that leads the partition stops and starts, not the one that asks."""
    _meet(rig, B)
    rig.stop(A)
    rig.start(A)
    rig.transports[A].serve(address())
    _meet(rig, B)
    _meet(rig, C)


def test_too_much_is_dropped_and_the_caller_never_waits(rig: ReplicaRig) -> None:
    """A peer that is away costs bounded memory; a gigabyte sent to it is mostly thrown away."""
    _meet(rig, B)
    rig.stop(B)
    batch = stored(0, b"x" * 4_000_000)
    for number in range(250):
        rig.transports[A].send(B, address(), answer(number, (batch,)))
    rig.start(B)
    _meet(rig, B)
    _meet(rig, C)


def test_nothing_is_delivered_after_close(rig: ReplicaRig) -> None:
    """When close returns, the last delivery is over; later sends to it do no harm."""
    _meet(rig, B)
    for number in range(200):
        rig.transports[B].send(A, address(), fetch(number))
    inbox = rig.inboxes[A]
    rig.stop(A)
    count = inbox.qsize()
    for number in range(200):
        rig.transports[B].send(A, address(), fetch(number))
    rig.transports[B].serve(address(9))
    _meet(rig, C, leader=B, number=9)
    assert inbox.qsize() == count


def test_many_partitions_share_two_connections(rig: ReplicaRig) -> None:
    """Whatever the number of partitions, two brokers have at most two connections."""
    _meet(rig, B)
    for number in range(500):
        rig.transports[A].serve(address(number))
    unheard = {address(number).partition_id: number for number in range(500)}
    for _ in range(60):  # a subscription may begin late, and a transport may lose messages
        for number in unheard.values():
            rig.transports[B].send(A, address(number), fetch(number))
        while unheard and (found := _next(rig, A, 0.5)) is not None:
            unheard.pop(found[1], None)
        if not unheard:
            break
    assert not unheard
    assert rig.connections_count(A, B) <= 2
