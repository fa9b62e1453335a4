"""Producers against a cluster that loses its leaders: every acked record is there exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.errors import UnknownStreamError
from clusterkit.load import Following, check, load, stored
from clusterkit.running import Cluster
from headwater.client.operations import Operations

pytestmark = pytest.mark.integration


def _kill(cluster: Cluster, number: int) -> None:
    cluster.kill(number)


def _stop(cluster: Cluster, number: int) -> None:
    cluster.stop(number)


@pytest.mark.parametrize(("name", "end"), [("killed", _kill), ("stopped", _stop)])
def test_producers_go_on_when_their_leader_ends(
    cluster: Cluster, name: str, end: Callable[[Cluster, int], None]
) -> None:
    """The leader ends under load: nothing is lost, doubled or out of order."""
    client = cluster.client()
    client.create_stream(name)
    with load(client, name) as running:
        running.wait_acked(100)
        end(cluster, cluster.leader(name))
        running.wait_acked(100)
    check(client, name, running)


def test_one_address_is_enough(cluster: Cluster) -> None:
    """A client that knows a broker which does not lead finds the leader, and outlives it."""
    cluster.client().create_stream("found")
    leader = cluster.leader("found")
    client = cluster.client(cluster.url_of((leader + 1) % 3))
    with load(client, "found") as running:
        running.wait_acked(50)
        cluster.kill(leader)
        running.wait_acked(50)
    check(client, "found", running)


def test_a_paused_leader_is_left(cluster: Cluster) -> None:
    """A frozen leader with open connections is left; its later answers are ignored."""
    client = cluster.client()
    client.create_stream("paused")
    with load(client, "paused") as running:
        running.wait_acked(50)
        leader = cluster.leader("paused")
        cluster.pause(leader)  # answers that it has sent before may still arrive
        other = cluster.client(cluster.url_of((leader + 1) % 3))
        left = (None, cluster.plan.brokers[leader])
        cluster.wait_for(lambda: other.locate("paused")[0].leader not in left, "another leader")
        running.wait_acked(50)
        cluster.resume(leader)
        running.wait_acked(50)
    check(client, "paused", running)


def test_metadata_is_asked_of_whoever_answers(cluster: Cluster) -> None:
    """Streams are made, described and deleted, leases and cuts taken, with a broker gone."""
    client = cluster.client()
    client.create_stream("kept", partitions=3)
    cluster.kill(0)
    cluster.wait_for(
        lambda: "fenced" in [one.state for one in Operations(client).status().brokers],
        "it is missed",
    )
    created = client.create_stream("made", partitions=2)
    assert [part.records_count for part in client.describe("made").partitions] == [0, 0]
    assert client.create_stream("made", partitions=2) == created
    lease = client.take_lease("made")
    client.renew_lease(lease.lease_id)
    client.drop_lease(lease.lease_id)
    with client.producer("kept", 1) as producer:
        producer.send([b"x"])
    assert client.cut("kept").partitions[1].hot_end == 1
    assert client.high_watermarks(["kept"])["kept"].offsets == (0, 1, 0)
    assert [one.partition for one in client.tier_flush("kept", timeout_ms=90_000)] == [0, 1, 2]
    assert client.delete_stream("made").uuid == created.uuid
    assert [stream.name for stream in client.streams() if stream.name == "made"] == []


def test_a_stream_is_known_everywhere_once_it_is_made(cluster: Cluster) -> None:
    """Brokers that have not applied the creation yet ask a majority for the unknown name."""
    clients = [cluster.client(cluster.url_of(number)) for number in range(3)]
    for number in range(30):
        name = f"seen{number}"
        made = clients[number % 3].create_stream(name)
        assert [one.stream(name).uuid for one in clients] == [made.uuid] * 3
    with pytest.raises(UnknownStreamError, match="nowhere"):
        clients[0].stream("nowhere")


def test_one_replica_alone_acknowledges_nothing(own_cluster: Callable[..., Cluster]) -> None:
    """What only the leader has is not acknowledged, and is stored once when the others are back.

    Without the others a leader takes records until its lease ends, which must be later than a busy
    machine needs to pause two brokers and to send a record.
    """
    cluster = own_cluster(session_ms=30_000)
    client = cluster.client()
    client.create_stream("alone")
    watching = Following(client.fetch("alone", follow=True, isolation="uncommitted"))
    producer = client.producer("alone")
    try:
        producer.send([b"0"]).result(90)
        others = {0, 1, 2} - {cluster.leader("alone")}
        for number in others:
            cluster.pause(number)
        sent = producer.send([b"1"])
        watching.wait(2)  # the leader has it
        assert not sent.done()
        for number in others:
            cluster.resume(number)
        assert sent.result(90).base_offset == 1
        assert stored(client, "alone") == [b"0", b"1"]
    finally:
        producer.close()
        watching.stop()
