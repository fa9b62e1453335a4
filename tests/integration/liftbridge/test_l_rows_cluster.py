"""Tests named after rows of docs/compatibility.md that need several brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import grpc
import pytest

from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from clusterkit.lift_brokers import LiftCluster, lift_cluster
from clusterkit.lift_calls import LiftCalls, new_name, offsets, publish_async, until, values

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
]


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
_MOVED = (
    UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftCluster]:
    """Run three brokers."""
    with lift_cluster(tmp_path_factory.mktemp("rows")) as running:
        yield running


@pytest.fixture(scope="module")
def brokers(cluster: LiftCluster) -> Iterator[list[LiftCalls]]:
    """Give a client of each broker."""
    made = [LiftCalls(one) for one in cluster.addresses.split(",")]
    yield made
    for one in made:
        one.__exit__()


def names(cluster: LiftCluster) -> list[str]:
    """Return the ids of the brokers, in the order of their clients."""
    return list(cluster.ports)


def created(brokers: list[LiftCalls], factor: int, at: int = 0, **fields: object) -> str:
    """Create a stream at one broker; return its name once it has a leader and is in sync."""
    stream = brokers[at].create(replicationFactor=factor, **fields)
    everywhere = len(brokers) if factor == -1 else factor
    until(
        lambda: bool(
            brokers[0].partition(stream).leader
            and len(brokers[0].partition(stream).isr) == everywhere
        ),
        "a leader, and every replica in sync",
    )
    return stream


def leader(cluster: LiftCluster, brokers: list[LiftCalls], stream: str) -> LiftCalls:
    """Return the client of the partition's leader."""
    found: list[int] = []

    def look() -> bool:
        told = brokers[0].partition(stream).leader
        found[:] = [names(cluster).index(told)] if told else []
        return bool(found)

    until(look, "a leader")
    return brokers[found[0]]


def test_l09_replication_factors(cluster: LiftCluster, brokers: list[LiftCalls]) -> None:
    """Two replicas are two; -1 is every server; more than there are servers are refused."""
    two = brokers[0].partition(created(brokers, 2))
    assert len(set(two.replicas)) == 2
    every = brokers[0].partition(created(brokers, -1))
    assert sorted(every.replicas) == sorted(names(cluster))
    for factor in (4, -2):
        asked = {"name": new_name(), "subject": "x", "replicationFactor": factor}
        code = brokers[0].refused("CreateStream", **asked)
        assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_l10_load_is_spread(brokers: list[LiftCalls]) -> None:
    """Nine partitions of one replica each: three on each broker, as replicas and as leaders."""
    stream = brokers[0].create(partitions=9)
    told = brokers[0].ask("FetchMetadata", streams=[stream]).streamMetadata[0].partitions
    holders = [one for place in told.values() for one in place.replicas]
    assert sorted(holders.count(one) for one in set(holders)) == [3, 3, 3]


def test_l18_only_what_is_committed_is_read(cluster: LiftCluster, brokers: list[LiftCalls]) -> None:
    """A record that the in-sync replicas do not have is not delivered, although it is appended."""
    assert any(_waits_for_the_follower(cluster, brokers) for _ in range(3)), "the leader moves"


def _waits_for_the_follower(cluster: LiftCluster, brokers: list[LiftCalls]) -> bool:
    """Tell whether the leader stayed; if it moves, subscriptions end, and the record may be lost.

    Whatever moves, nothing is delivered while the follower stands still.
    """
    stream = created(brokers, 2, minIsr=api.NullableInt32(value=2))
    place = brokers[0].partition(stream)  # one answer: the leader may move between two
    leads = brokers[names(cluster).index(place.leader)]
    (follower,) = (one for one in place.replicas if one != place.leader)
    got: list[wire.Message] = []
    ended: list[grpc.RpcError] = []

    def read() -> None:
        try:
            got.append(next(reading))
        except grpc.RpcError as error:
            ended.append(error)

    assert leads.publish(stream, b"0", ackPolicy=wire.ALL).offset == 0
    reading = leads.subscribe(stream, startPosition=api.EARLIEST)
    assert next(reading).value == b"0"
    cluster.cluster.pause(names(cluster).index(follower))
    waits = threading.Thread(target=read, daemon=True)
    try:
        assert leads.publish(stream, b"1", ackPolicy=wire.LEADER).offset == 1
        waits.start()
        waits.join(1.0)
        assert got == []
        if not ended:
            told = leads.ask("FetchPartitionMetadata", stream=stream, partition=0).metadata
            assert (told.highWatermark, told.newestOffset) == (0, 1)
    except grpc.RpcError as error:
        ended.append(error)
    finally:
        cluster.cluster.resume(names(cluster).index(follower))
    if not ended:
        waits.join(60.0)
    if ended:
        assert ended[0].code() in _MOVED, ended[0]
        return False
    assert list(values(got)) == [b"1"]
    reading.cancel()
    return True


def test_l22_followers_are_read(cluster: LiftCluster, brokers: list[LiftCalls]) -> None:
    """A follower serves what it knows to be committed, if it is asked to, and refuses else."""
    stream = created(brokers, 3)
    leads = leader(cluster, brokers, stream)
    for number in range(5):
        leads.publish(stream, b"%d" % number, ackPolicy=wire.ALL)
    for one in brokers:
        _reads(one, stream)
        if one is not leads:
            code = one.refused("Subscribe", stream=stream)
            assert code is grpc.StatusCode.FAILED_PRECONDITION


def _reads(broker: LiftCalls, stream: str) -> None:
    until(lambda: broker.partition(stream).highWatermark == 4, "what is committed")
    assert offsets(broker.read(stream, readISRReplica=True)) == [0, 1, 2, 3, 4]


def test_l39_min_isr_of_a_stream(cluster: LiftCluster, brokers: list[LiftCalls]) -> None:
    """Below it ALL is refused at once and not stored; with it, ALL is acknowledged again."""
    stream = created(brokers, 2, minIsr=api.NullableInt32(value=2))
    place = brokers[0].partition(stream)
    leads = leader(cluster, brokers, stream)
    (follower,) = (one for one in place.replicas if one != place.leader)
    cluster.cluster.pause(names(cluster).index(follower))
    try:
        asked: dict[str, Any] = {"stream": stream, "ackPolicy": wire.ALL}
        # Until the follower has left the ISR, its acknowledgement is waited for.
        until(
            lambda: leads.refused("Publish", 1.0, value=b"early", **asked) is UNAVAILABLE,
            "a small ISR",
        )
        assert leads.refused("Publish", value=b"x", **asked) is UNAVAILABLE
        (told,) = publish_async(leads, [api.PublishRequest(value=b"x", **asked)])
        assert told.asyncError.code == api.PublishAsyncError.INTERNAL
    finally:
        cluster.cluster.resume(names(cluster).index(follower))
    until(lambda: leads.publish(stream, b"y", ackPolicy=wire.ALL).offset >= 0, "an acknowledgement")
    stored = set(values(leads.read(stream)))
    assert b"y" in stored
    assert b"x" not in stored


def test_l43_an_idle_follower_wakes_up(cluster: LiftCluster, brokers: list[LiftCalls]) -> None:
    """After a pause in the traffic ALL is acknowledged in milliseconds, not after a sleep."""
    stream = created(brokers, 3)
    leads = leader(cluster, brokers, stream)
    leads.publish(stream, ackPolicy=wire.ALL)
    took_s = []
    for _ in range(3):  # the machine may stand still during one of them
        threading.Event().wait(2.0)  # nothing is published
        began = time.monotonic()
        leads.publish(stream, ackPolicy=wire.ALL)
        took_s.append(time.monotonic() - began)
    assert median(took_s) < 1.0, took_s


def test_l44_any_broker_creates_and_deletes(brokers: list[LiftCalls]) -> None:
    """The request is forwarded; a stream made at one is deleted at another."""
    for number in range(3):
        stream = created(brokers, 1, at=number)
        _delete(brokers[(number + 1) % 3], stream)


def _delete(broker: LiftCalls, stream: str) -> None:
    until(lambda: bool(broker.partition(stream).leader), "known there")
    broker.ask("DeleteStream", name=stream)
