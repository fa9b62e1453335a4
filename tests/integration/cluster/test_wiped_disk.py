"""A broker of a cluster loses its whole data directory and comes back as the same one."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable

import pytest

from clusterkit.load import stored
from clusterkit.running import Cluster, controller_of
from headwater.client.operations import Operations

pytestmark = pytest.mark.integration

STREAM = "kept"


@pytest.fixture
def cluster(own_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of this test's own, because it wipes disks."""
    return own_cluster()


def _lose_disk(cluster: Cluster, number: int) -> None:
    cluster.kill(number)
    shutil.rmtree(cluster.plan.folder_of(cluster.name(number)))


def test_a_broker_whose_disk_was_wiped_is_taken_back(cluster: Cluster) -> None:
    """It rejoins Raft below a floor, leaves the ISR until it has every record, and counts again.

    The controller in office is the one that loses its disk, and then the partition's leader: what
    was acknowledged is there after each, and the last loss shows that the first broker counts.
    """
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    values = [b"%d" % number for number in range(200)]
    cluster.publish(STREAM, *values)
    victim = cluster.plan.brokers.index(controller_of(cluster))
    _lose_disk(cluster, victim)
    more = [b"while it is away", b"and again"]
    cluster.publish(STREAM, *more)
    values += more
    before = cluster.look(STREAM)
    assert cluster.name(victim) != before.leader
    cluster.start(victim)
    (rejoined,) = cluster.said(victim, "raft_rejoins")
    assert rejoined["term"] > 1
    assert rejoined["floor_index"] > 0
    cluster.wait_for(cluster.in_sync(STREAM), "the wiped one in the ISR")
    cluster.wait_for(lambda: bool(cluster.said(victim, "raft_floor_reached")), "it may vote again")
    cluster.wait_for(
        lambda: stored(client, STREAM) == values, "everything that was acknowledged is there"
    )
    other = next(number for number in range(3) if number != victim)
    cluster.kill(other)  # the two that are left are a majority only with the one that was wiped
    cluster.publish(STREAM, b"last")
    values.append(b"last")
    assert stored(client, STREAM) == values
    (there,) = [
        one
        for one in Operations(cluster.client(cluster.url_of(victim))).replicas()
        if one.stream == STREAM
    ]
    assert there.log_end == len(values)


def test_two_wiped_of_three_do_not_begin_anew(cluster: Cluster) -> None:
    """The third knows that there was a group: they refuse to start and name what can be done."""
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    cluster.publish(STREAM, b"a")
    for number in (0, 1):
        _lose_disk(cluster, number)
    servers = {number: cluster.plan.start(cluster.name(number), wait=False) for number in (0, 1)}
    cluster.wait_for(
        lambda: any(not server.running() for server in servers.values()), "one refuses to start"
    )
    codes = []
    for number, server in servers.items():
        server.process.terminate()  # a broker that cannot ask the other any more waits for it
        codes.append(server.process.wait(60))
        assert not cluster.said(number, "registered")[1:], "no broker began a new group"
        if codes[-1] == 64:
            (failed,) = cluster.said(number, "start_failed")
            assert failed["error"] == "ControllersLostError"
            assert failed["lost"] == "broker-0,broker-1"
    assert 64 in codes
    assert set(codes) <= {0, 64, -signal.SIGTERM}  # -SIGTERM: before it handled signals


def test_who_waits_for_the_others_can_be_stopped(cluster: Cluster) -> None:
    """With an empty disk and another broker down it waits, names that broker, and ends cleanly."""
    _lose_disk(cluster, 0)
    cluster.kill(1)
    server = cluster.plan.start(cluster.name(0), wait=False)
    cluster.wait_for(
        lambda: (
            cluster.said(0, "waiting_for_members")[-1:] != []
            and cluster.said(0, "waiting_for_members")[-1]["unanswered"] == "broker-1"
        ),
        "it says for whom it waits",
    )
    server.process.terminate()
    assert server.process.wait(60) == 0
