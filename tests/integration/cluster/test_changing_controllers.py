"""The controllers change under load: one becomes three, and dead ones are replaced."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.errors import UnavailableError
from broker.model.cluster_status import ClusterStatus
from clusterkit.load import Load, load, stored
from clusterkit.running import Cluster, controller_of
from headwater.cli.main import app
from headwater.client.operations import Operations
from headwater.local.cluster_certificates import make_certificates
from headwater.local.embedded import free_port, start_nats
from headwater.local.embedded_cluster import BrokerPorts

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAM = "kept"


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return what starts a cluster of three or four, of whom the first few vote."""
    with start_nats(tmp_path / "nats") as nats, ExitStack() as stack:

        def start(*, brokers: int, voters: int) -> Cluster:
            cluster = Cluster(tmp_path, nats, settings={"cluster": {"session_ms": 4000}})
            stack.callback(cluster.close)
            plan = cluster.plan
            ports = dict(plan.ports)
            for number in range(len(ports), brokers):
                at = BrokerPorts(peer=free_port(), flight=free_port(), http=free_port())
                ports[f"broker-{number}"] = at
            names = list(ports)[:voters]
            cluster.plan = dataclasses.replace(plan, ports=ports, voters=names)
            certificates = plan.folder / "certificates"
            make_certificates(certificates, cluster=plan.name, brokers=cluster.plan.brokers)
            cluster.start_all(range(brokers))
            return cluster

        yield start


def _run(cluster: Cluster, *arguments: str, fails: bool = False) -> Any:
    """Run ``headwater cluster controllers …`` as a person would."""
    command = ["cluster", "controllers", *arguments]
    result = CliRunner().invoke(app, [*command, "--server", cluster.url])
    assert (result.exit_code != 0) == fails, result.output
    return result


def _voters(cluster: Cluster) -> dict[str, bool]:
    command = ["cluster", "controllers", "--json", "--server", cluster.url]
    result = CliRunner().invoke(app, command)
    if result.exit_code != 0:
        raise UnavailableError(result.output)
    lines = map(json.loads, result.stdout.splitlines())
    return {one["broker"]: one["votes"] for one in lines}


def _wait_voters(cluster: Cluster, voters: dict[str, bool]) -> None:
    """Wait until the leader has told: another broker may lag, and is asked if none is known."""
    cluster.wait_for(lambda: _voters(cluster) == voters, f"{voters} as voters")


def _status(cluster: Cluster) -> ClusterStatus:
    return Operations(cluster.client()).status()


def _wait_decides(cluster: Cluster) -> None:
    cluster.wait_for(lambda: _status(cluster).confirmed, "a majority of the controllers")


def _wait_counted(cluster: Cluster, *, controllers: int, alive: int) -> None:
    """Wait until every broker that runs shows these numbers in its metrics."""

    def so() -> bool:
        running = [one for one in range(len(cluster.plan.brokers)) if cluster.runs(one)]
        scraped = [cluster.metrics(one) for one in running]
        return (
            all(
                (one["headwater_cluster_controllers"], one["headwater_cluster_controllers_alive"])
                == (controllers, alive)
                and sum("controller_alive{" in name for name in one) == controllers
                for one in scraped
            )
            and sum(one["headwater_cluster_votes"] for one in scraped) == alive
        )

    cluster.wait_for(so, f"{alive} of {controllers} controllers in every broker's metrics")


def _wait_in_sync(cluster: Cluster, *names: str) -> None:
    def so() -> bool:
        one = cluster.look(STREAM)
        return one.leader is not None and set(names) <= set(one.isr)

    cluster.wait_for(so, f"{', '.join(names)} in sync")


def _check_stored(cluster: Cluster, running: Load) -> None:
    """Check that each acknowledged record is stored once, at its acknowledged offset."""
    found = stored(cluster.client(), STREAM)
    assert [found[offset] for offset, _ in running.acked] == [value for _, value in running.acked]
    assert max(Counter(found).values()) == 1


def test_a_dead_controller_is_replaced_by_a_new_id_under_load(
    cluster_of: Callable[..., Cluster],
) -> None:
    """The new one counts: with it the cluster survives the loss of another."""
    cluster = cluster_of(brokers=4, voters=3)
    names = cluster.plan.brokers
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    with load(client, STREAM, every_s=0.05) as running:
        running.wait_acked(20)
        office = controller_of(cluster)
        dead = names.index(office)
        cluster.kill(dead)
        _wait_decides(cluster)
        _run(cluster, "replace", office, "broker-3")
        voters = {one: one != office for one in names}
        _wait_voters(cluster, voters)
        running.wait_acked(20)
        cluster.start(dead)  # a voter by its configuration, and not by the Raft log
        cluster.wait_for(
            lambda: bool(cluster.said(dead, "controllers_differ")), "the file and the log compared"
        )
        assert _voters(cluster) == voters
        _wait_in_sync(cluster, *cluster.look(STREAM).replicas)
        running.wait_acked(20)
        another = next(one for one in range(3) if one != dead)
        cluster.kill(another)
        _wait_decides(cluster)
        running.wait_acked(20)
    _check_stored(cluster, running)


def test_one_controller_becomes_three_and_is_killed_under_load(
    cluster_of: Callable[..., Cluster],
) -> None:
    """The others decide without the killed one. It comes back, and is removed as a controller."""
    cluster = cluster_of(brokers=3, voters=1)
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    with load(client, STREAM, every_s=0.05) as running:
        running.wait_acked(20)
        _wait_voters(cluster, {"broker-0": True, "broker-1": False, "broker-2": False})
        assert "2 controllers survive" in _run(cluster, "add", "broker-1").output
        _run(cluster, "add", "broker-2")
        _run(cluster, "add", "broker-2")  # a repeated change does nothing
        running.wait_acked(20)
        cluster.kill(0)
        _wait_decides(cluster)
        running.wait_acked(20)
        cluster.start(0)
        _wait_in_sync(cluster, *cluster.plan.brokers)
        _run(cluster, "remove", "broker-0")
        _run(cluster, "remove", "broker-1")
        _wait_voters(cluster, {"broker-0": False, "broker-1": False, "broker-2": True})
        running.wait_acked(20)
    refused = _run(cluster, "remove", "broker-2", fails=True)
    assert "only voter" in refused.output
    refused = _run(cluster, "add", "broker-9", fails=True)
    assert "cluster.brokers" in refused.output
    _check_stored(cluster, running)


def test_one_controller_becomes_three_and_five_and_the_dead_are_replaced_under_load(
    cluster_of: Callable[..., Cluster],
) -> None:
    """Five survive the loss of two. Once a new broker replaces one, they survive another loss."""
    cluster = cluster_of(brokers=6, voters=1)
    names = cluster.plan.brokers
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    _wait_in_sync(cluster, *cluster.look(STREAM).replicas)
    holders = set(cluster.look(STREAM).replicas)
    with load(client, STREAM, every_s=0.05) as running:
        running.wait_acked(20)
        for count in (3, 5):
            for name in names[1:count]:
                _run(cluster, "add", name)
            _wait_counted(cluster, controllers=count, alive=count)
            running.wait_acked(20)
        office = controller_of(cluster)
        # At most one of the stream's three replicas dies, so that writes go on.
        rest = [one for one in names if one not in (office, *holders)]
        new = names[5]
        dead = next(one for one in rest if one != new)
        for name in (office, dead):
            cluster.kill(names.index(name))
        _wait_decides(cluster)
        running.wait_acked(20)
        _wait_counted(cluster, controllers=5, alive=3)
        _run(cluster, "replace", office, new)
        _wait_voters(cluster, {one: one != office for one in names})
        _wait_counted(cluster, controllers=5, alive=4)
        running.wait_acked(20)
        another = next((one for one in rest if one not in (dead, new)), new)
        cluster.kill(names.index(another))
        _wait_decides(cluster)
        running.wait_acked(20)
        _wait_counted(cluster, controllers=5, alive=3)
    _check_stored(cluster, running)


def test_the_only_controller_does_not_start_with_a_file_that_names_more(
    cluster_of: Callable[..., Cluster],
) -> None:
    """The others would start as controllers with empty disks; the error says what to write."""
    cluster = cluster_of(brokers=3, voters=1)
    cluster.stop(0)
    plan = cluster.plan
    cluster.plan = dataclasses.replace(plan, voters=plan.brokers)
    with pytest.raises(UnavailableError, match="is the only controller of its cluster so far"):
        cluster.start(0)
    cluster.plan = plan
    cluster.start(0)
    cluster.wait_for(
        lambda: _status(cluster).controllers == ("broker-0",), "it is the only one again"
    )


def test_a_controller_whose_disk_is_lost_votes_again_once_it_is_replaced_by_itself(
    cluster_of: Callable[..., Cluster],
) -> None:
    """In a group that has changed, a new disk is not the voter; until then it follows."""
    cluster = cluster_of(brokers=4, voters=3)
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    _run(cluster, "replace", "broker-2", "broker-3")
    with load(client, STREAM, every_s=0.05) as running:
        running.wait_acked(20)
        for number in (1, 3):
            name = cluster.name(number)
            cluster.kill(number)
            _wait_decides(cluster)
            shutil.rmtree(cluster.plan.folder_of(name))
            cluster.start(number)
            _run(cluster, "replace", name, name)
            _wait_in_sync(cluster, *cluster.look(STREAM).replicas)
            running.wait_acked(20)
        cluster.kill(0)
        _wait_decides(cluster)  # the two new voters decide
        running.wait_acked(20)
    _check_stored(cluster, running)
