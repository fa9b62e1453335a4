"""Consumers against a cluster that loses its leaders: every record, once, or a typed error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.errors import TruncatedError
from clusterkit.load import Following, check, load
from clusterkit.running import Cluster

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_follower_goes_on_when_its_broker_ends(cluster: Cluster, end: str) -> None:
    """The leader that it reads from ends: it sees every record once, in order."""
    name = f"followed-{end}"
    client = cluster.client()
    client.create_stream(name)
    following = Following(client.fetch(name, follow=True))
    try:
        with load(client, name) as running:
            following.wait(50)
            leader = cluster.leader(name)
            (cluster.kill if end == "killed" else cluster.stop)(leader)
            running.wait_acked(50)
        check(client, name, running)
        following.wait(len(running.sent))
        assert following.values == running.sent
    finally:
        following.stop()


def test_latest_is_said_once(cluster: Cluster) -> None:
    """Records that come while a quiet follower has no broker are not skipped."""
    client = cluster.client()
    client.create_stream("quiet")
    with client.producer("quiet") as producer:
        producer.send([b"before"])
    following = Following(client.fetch("quiet", start="latest", follow=True))
    try:
        cluster.kill(cluster.leader("quiet"))
        with client.producer("quiet") as producer:
            producer.send([b"after"])
        following.wait(1)
        assert following.values == [b"after"]
    finally:
        following.stop()


def test_every_replica_serves_what_is_committed(cluster: Cluster) -> None:
    """At every broker, a read without an end has every acknowledged record."""
    client = cluster.client()
    client.create_stream("everywhere")
    with client.producer("everywhere") as producer:
        sent: list[bytes] = []
        for number in range(5):
            sent.append(b"%d" % number)
            producer.send(sent[-1:]).result(90)
            for broker in range(3):
                assert cluster.read_at(broker, "everywhere") == sent


@pytest.mark.slow
def test_truncation_is_told(own_cluster: Callable[..., Cluster]) -> None:
    """What an uncommitted reader was shown and the next leader has not is an error to it.

    A reader of committed records never saw it, and goes on. Without the others a leader takes
    records until its lease ends, which must be later than a busy machine needs to send one.
    """
    cluster = own_cluster(session_ms=10_000)
    client = cluster.client()
    client.create_stream("cut")
    producer = client.producer("cut", retry_ms_max=90_000)
    producer.send([b"0"]).result(90)  # from here on it has its connection
    leader = cluster.leader("cut")
    others = [number for number in range(3) if number != leader]
    careful = Following(client.fetch("cut", follow=True))
    bold = Following(client.fetch("cut", follow=True, isolation="uncommitted"))
    try:
        careful.wait(1)
        bold.wait(1)
        for number in others:
            cluster.kill(number)
        sent = producer.send([b"1"])
        bold.wait(2)
        assert careful.values == [b"0"]
        cluster.kill(leader)
        cluster.start_all(others)
        assert sent.result(90).base_offset == 1  # sent again, to the next leader
        failure = bold.wait_failure()
        assert isinstance(failure, TruncatedError)
        assert (failure.offset, failure.partition) == (2, 0)
        careful.wait(2)
        assert careful.values == [b"0", b"1"]
    finally:
        producer.close()
        careful.stop()
        bold.stop()
