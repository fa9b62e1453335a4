"""A broker that does not vote is added to a running cluster, serves like any other, and leaves."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.model.cluster_status import ClusterStatus
from clusterkit.load import Load, load, stored
from clusterkit.running import Cluster, controller_of
from headwater.cli.main import app
from headwater.client.operations import Operations
from headwater.local.cluster_certificates import make_certificates
from headwater.local.embedded import free_port
from headwater.local.embedded_cluster import BrokerPorts

pytestmark = pytest.mark.integration

STREAM = "kept"
NEW = "broker-3"


@pytest.fixture
def cluster(own_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of this test's own: its brokers get other configurations."""
    return own_cluster(session_ms=4000)


def _run(server: str, *arguments: str) -> Any:
    """Run ``headwater cluster …`` as a person would; it has to succeed."""
    result = CliRunner().invoke(app, ["cluster", *arguments, "--server", server])
    assert result.exit_code == 0, result.output
    return result


def _voters(cluster: Cluster) -> dict[str, bool]:
    listed = _run(cluster.url, "brokers", "--json").stdout.splitlines()
    return {one["broker"]: one["voter"] for one in map(json.loads, listed)}


def _status(cluster: Cluster) -> ClusterStatus:
    return Operations(cluster.client()).status()


def _wait_in_sync(cluster: Cluster, *names: str) -> None:
    def so() -> bool:
        one = cluster.look(STREAM)
        return one.leader is not None and set(names) <= set(one.isr)

    cluster.wait_for(so, f"{', '.join(names)} in sync")


def _wait_led_by_another(cluster: Cluster, name: str) -> None:
    cluster.wait_for(lambda: cluster.look(STREAM).leader not in (None, name), f"{name} replaced")


def _name_new_broker(cluster: Cluster) -> None:
    """Give the longer list to every broker that is started from now on."""
    plan = cluster.plan
    at = BrokerPorts(peer=free_port(), flight=free_port(), http=free_port())
    cluster.plan = dataclasses.replace(plan, ports={**plan.ports, NEW: at})
    certificates = plan.folder / "certificates"
    make_certificates(certificates, cluster=plan.name, brokers=cluster.plan.brokers)


def test_a_broker_is_added_leads_and_is_removed_under_load(cluster: Cluster) -> None:
    """No acknowledged record is lost by the restart of each broker, or by a later step."""
    old = cluster.plan.brokers
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    with load(client, STREAM, every_s=0.05) as running:
        running.wait_acked(20)
        _name_new_broker(cluster)
        for number in range(3):  # until all are done, some know of the new broker and some do not
            cluster.stop(number)
            cluster.start(number)
            _wait_in_sync(cluster, *old)
            running.wait_acked(20)
        cluster.start(3)
        voters = {**dict.fromkeys(old, True), NEW: False}
        cluster.wait_for(lambda: _voters(cluster) == voters, "the new one, which does not vote")

        _run(cluster.url, "move", STREAM, "0", "--to", f"{NEW},{old[0]},{old[1]}")
        _leads_dies_and_returns(cluster, running)
        _follows_new_controllers(cluster, running)
        _loses_its_disk(cluster, running)

        _run(cluster.url, "move", STREAM, "0", "--to", ",".join(old))
        cluster.stop(3)
        cluster.wait_for(lambda: _is_fenced(cluster), f"{NEW} is fenced")
        _run(cluster.url, "remove-broker", NEW)
        running.wait_acked(20)
    cluster.wait_for(
        lambda: [one.broker for one in _status(cluster).brokers] == old, "the old ones only"
    )
    _check_stored(cluster, running)


def _leads_dies_and_returns(cluster: Cluster, running: Load) -> None:
    _run(cluster.url, "transfer-leader", STREAM, "0", "--to", NEW)
    running.wait_acked(20)
    cluster.kill(3)
    _wait_led_by_another(cluster, NEW)
    running.wait_acked(20)
    cluster.start(3)
    _wait_in_sync(cluster, NEW)
    _run(cluster.url, "transfer-leader", STREAM, "0", "--to", NEW)


def _follows_new_controllers(cluster: Cluster, running: Load) -> None:
    """It leads a partition, and the next controller grants its lease, too."""
    office = controller_of(cluster)
    assert office in cluster.plan.controllers
    number = cluster.plan.brokers.index(office)
    cluster.kill(number)
    cluster.wait_for(lambda: _has_another_controller(cluster, office), "another controller")
    running.wait_acked(20)
    cluster.start(number)
    _wait_in_sync(cluster, *cluster.look(STREAM).replicas)


def _has_another_controller(cluster: Cluster, before: str) -> bool:
    found = _status(cluster)
    return found.confirmed and found.controller not in (None, before)


def _loses_its_disk(cluster: Cluster, running: Load) -> None:
    """A non-voting broker's lost disk needs no wait and no question to a controller."""
    cluster.kill(3)
    _wait_led_by_another(cluster, NEW)
    shutil.rmtree(cluster.plan.folder_of(NEW))
    cluster.start(3)
    _wait_in_sync(cluster, NEW)
    running.wait_acked(20)


def _is_fenced(cluster: Cluster) -> bool:
    found = _status(cluster).broker(NEW)
    return found is not None and found.fenced


def _check_stored(cluster: Cluster, running: Load) -> None:
    """Check that each acknowledged record is stored once, at its acknowledged offset."""
    found = stored(cluster.client(), STREAM)
    assert [found[offset] for offset, _ in running.acked] == [value for _, value in running.acked]
    assert max(Counter(found).values()) == 1
    assert len(running.acked) >= 180
