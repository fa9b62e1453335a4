"""``cluster.raft``: a cluster runs on either Raft, changes it when stopped, never mixes the two."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.process.exit_codes import EXIT_CONFIG
from clusterkit.running import Cluster, controller_of

pytestmark = pytest.mark.integration

STREAM = "kept"


@pytest.fixture
def cluster(own_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster whose metadata are pysyncobj's."""
    return own_cluster(raft="pysyncobj")


def _set(cluster: Cluster, raft: str) -> None:
    """Write another Raft into the files of the brokers that are started from now on."""
    section = {**cluster.plan.settings.get("cluster", {}), "raft": raft}
    cluster.plan.settings = {**cluster.plan.settings, "cluster": section}


def test_a_cluster_runs_on_pysyncobj_and_changes_when_stopped(cluster: Cluster) -> None:
    """It survives its controller; a broker with the other Raft is refused; all change together."""
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    cluster.publish(STREAM, b"one")
    controller = cluster.plan.brokers.index(controller_of(cluster))
    cluster.kill(controller)
    client.create_stream("made-meanwhile", replication_factor=1)
    cluster.publish(STREAM, b"two")
    cluster.start(controller)
    cluster.wait_for(cluster.in_sync(STREAM), "every broker in sync")

    _is_refused_alone(cluster)

    _set(cluster, "own")
    for number in range(3):
        cluster.stop(number)
    cluster.start_all()
    cluster.wait_for(cluster.in_sync(STREAM), "every broker in sync")
    cluster.publish(STREAM, b"three")
    assert cluster.read_at(cluster.leader(STREAM), STREAM) == [b"one", b"two", b"three"]
    assert sorted(one.name for one in client.streams()) == [STREAM, "made-meanwhile"]


def _is_refused_alone(cluster: Cluster) -> None:
    cluster.stop(2)
    _set(cluster, "own")
    name = cluster.name(2)
    refused = cluster.plan.start(name, wait=False)
    assert refused.process.wait(90) == EXIT_CONFIG
    said = cluster.said(2, "start_failed")[-1]
    assert (said["expected"], said["found"]) == ("pysyncobj", "own")
    assert "stop all brokers" in said["reason"]
    _set(cluster, "pysyncobj")
    cluster.start(2)
    cluster.wait_for(cluster.in_sync(STREAM), "every broker in sync")
