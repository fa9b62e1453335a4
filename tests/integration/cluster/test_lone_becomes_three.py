"""A broker that was alone becomes the first of three, with its folder and every record."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.errors import InvalidConfigError
from clusterkit.load import load, publish, stored
from clusterkit.running import Cluster
from headwater.cli.main import app
from headwater.client.client import Client
from headwater.client.operations import Operations
from headwater.local.embedded import EmbeddedServer, free_port, start_nats, start_up
from headwater.local.embedded_cluster import BrokerPorts, plan_cluster
from headwater.local.runtime_file import RuntimeFile

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ARCHIVE = Path(__file__).parents[2] / "golden" / "lone_data_folder_0_1.tar.xz"
PORTS = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A nats-server of the test's own."""
    with start_nats(tmp_path / "nats") as server:
        yield server


def _run(url: str, command: str, stream: str, *brokers: str) -> None:
    """Run ``headwater cluster move`` or another of its like, as a person would."""
    arguments = ["cluster", command, stream, "0", "--to", ",".join(brokers), "--server", url]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def test_up_and_then_up_with_three_brokers_goes_on_with_the_same_records(tmp_path: Path) -> None:
    """The same folder, the same streams and offsets; all three vote, from the first start on."""
    data = tmp_path / "data"
    with start_up(data, *PORTS), Client(RuntimeFile.read(data).flight) as client:
        client.create_stream("kept", subject="kept", flush="interval")
        client.create_stream("orders", subject="orders", partitions=2)
        publish(client, "kept", *(b"%d" % number for number in range(50)))
        publish(client, "orders", b"a")
    for _ in range(2):  # the first start moves the folder, the second finds it moved
        with _three(data), Client(RuntimeFile.read(data).flight) as client:
            found = stored(client, "kept")
            assert found[:50] == [b"%d" % number for number in range(50)]
            publish(client, "kept", b"more")
            assert stored(client, "kept") == [*found, b"more"]
            assert stored(client, "orders") == [b"a"]
            status = Operations(client).status()
            assert status.controllers == ("broker-0", "broker-1", "broker-2")
            assert [one.broker for one in status.brokers] == [
                "broker-0",
                "broker-1",
                "broker-2",
            ]
            name = f"new{len(found)}"
            client.create_stream(name, subject=name, replication_factor=3, min_isr=2)
            publish(client, name, b"x")
        assert not (data / "broker").exists()
        plan = data / "cluster" / "cluster.json"
        noted = json.loads(plan.read_text())
        assert "controllers" not in noted
        # As if this process had died before it noted that all three vote.
        plan.write_text(json.dumps({**noted, "controllers": ["broker-0"]}))
    result = CliRunner().invoke(app, ["up", "--data", str(data), "--brokers", "5"])
    assert result.exit_code != 0
    assert "--brokers 3" in result.output


def _three(data: Path) -> EmbeddedServer:
    return start_up(data, "--brokers", "3", *PORTS)


@pytest.fixture
def cluster(tmp_path: Path, nats: EmbeddedServer) -> Iterator[Cluster]:
    """Plan brokers; the test says which."""
    with ExitStack() as stack:
        cluster = Cluster(tmp_path / "planned", nats)
        stack.callback(cluster.close)
        yield cluster


def test_a_folder_of_the_last_release_becomes_a_broker_of_three(
    tmp_path: Path, cluster: Cluster, nats: EmbeddedServer
) -> None:
    """No start as a single broker comes in between; its records are on all three in the end.

    It was killed, so the stream that syncs by interval waits for an operator, as in any cluster.
    """
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    cluster.plan = plan_cluster(
        tmp_path / "cluster",
        count=3,
        nats_url=nats.address,
        lake_uri=str(tmp_path / "lake"),
        name="test",
        lone=tmp_path / "data",
    )
    assert cluster.plan.controllers == ["b1"]
    assert cluster.plan.brokers == ["b1", "broker-1", "broker-2"]
    cluster.start_all()
    client = cluster.client()
    assert stored(client, "wide") == [b"w0"]
    cluster.wait_for(lambda: cluster.look("lazy").status == "offline", "it waits for an operator")
    _run(cluster.url, "move", "wide", "broker-1", "broker-2", "b1")
    cluster.wait_for(lambda: len(cluster.look("wide").isr) == 3, "three copies")
    _run(cluster.url, "transfer-leader", "wide", "broker-1")
    publish(client, "wide", b"new")
    cluster.kill(1)
    cluster.wait_for(lambda: cluster.look("wide").leader not in (None, "broker-1"), "another")
    publish(client, "wide", b"newer")
    assert stored(client, "wide") == [b"w0", b"new", b"newer"]


def test_a_running_broker_with_a_peer_address_becomes_three_under_load(
    tmp_path: Path, cluster: Cluster, nats: EmbeddedServer
) -> None:
    """It is restarted once with the longer list; nothing acknowledged is lost or doubled."""
    whole = plan_cluster(
        tmp_path / "cluster",
        count=3,
        nats_url=nats.address,
        lake_uri="",
        settings={"cluster": {"session_ms": 4000}},
    )
    whole = dataclasses.replace(whole, voters=("broker-0",))
    alone = dataclasses.replace(whole, ports={"broker-0": whole.ports["broker-0"]})
    cluster.plan = alone
    cluster.start_all([0])
    client = cluster.client(whole.flight_url)
    client.create_stream("kept", subject="kept")
    with load(client, "kept", every_s=0.02) as running:
        running.wait_acked(50)
        cluster.plan = whole
        cluster.stop(0)
        cluster.start(0)
        running.wait_acked(50)
        cluster.start_all()
        _run(cluster.url, "move", "kept", "broker-1", "broker-2", "broker-0")
        cluster.wait_for(lambda: len(cluster.look("kept").isr) == 3, "three copies")
        running.wait_acked(50)
    found = stored(client, "kept")
    assert [found[offset] for offset, _ in running.acked] == [value for _, value in running.acked]
    assert max(Counter(found).values()) == 1
    assert len(running.acked) >= 150


def test_a_folder_with_a_cluster_and_a_broker_alone_is_refused(tmp_path: Path) -> None:
    """An operator has to say which of the two records count; the folders are unchanged."""

    def plan() -> Callable[..., object]:
        lone = tmp_path / "broker"
        return lambda: plan_cluster(
            tmp_path / "cluster", count=3, nats_url="", lake_uri="", lone=lone
        )

    plan()()
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "node.json").write_text('{"broker_id": "broker-0"}')
    with pytest.raises(InvalidConfigError, match="not part of the cluster"):
        plan()()
    assert (tmp_path / "broker" / "node.json").exists()


def test_a_move_that_a_crash_cut_short_is_finished(tmp_path: Path) -> None:
    """The plan is written first: the next start moves the folder, whatever it is asked for."""
    lone = tmp_path / "broker"
    lone.mkdir()
    (lone / "node.json").write_text('{"broker_id": "mine"}')
    ports = (BrokerPorts(peer=free_port(), flight=free_port(), http=free_port()),)

    def plan() -> list[str]:
        found = plan_cluster(
            tmp_path / "cluster",
            count=3,
            nats_url="",
            lake_uri="",
            first_ports=ports,
            lone=lone,
        )
        return found.controllers

    assert plan() == ["mine"]
    (tmp_path / "cluster" / "mine").rename(lone)
    assert plan() == ["mine"]
    assert (tmp_path / "cluster" / "mine" / "node.json").exists()
    assert plan() == ["mine"]
