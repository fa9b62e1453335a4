"""Producers against a cluster that loses its leaders: every acked record is there exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.load import check, load
from clusterkit.running import Cluster

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
