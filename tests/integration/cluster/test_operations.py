"""Operators' commands take effect on a real cluster, and its reports are true."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from broker.errors import CompactedRangeError, HeadwaterError
from broker.model.cluster_status import PartitionInfo, ReplicaCompaction
from clusterkit.load import publish, stored
from clusterkit.running import Cluster
from headwater.cli.main import app
from headwater.client.client import Client
from headwater.client.operations import Operations
from headwater.local.embedded import EmbeddedServer, http_status, start_up, wait_ready
from headwater.local.runtime_file import RuntimeFile
from headwater.reads.whole import read_table

# One worker runs all of them: each module starts a cluster.
pytestmark = pytest.mark.integration


def _run(server: str, *arguments: str) -> Any:
    """Run ``headwater cluster …`` as a person would; it has to succeed."""
    result = CliRunner().invoke(app, ["cluster", *arguments, "--server", server])
    assert result.exit_code == 0, result.output
    return result


def _wait(cluster: Cluster, stream: str, so: Callable[[PartitionInfo], bool], what: str) -> None:
    cluster.wait_for(lambda: so(cluster.look(stream)), what)


def test_status_shows_the_cluster(cluster: Cluster) -> None:
    """Brokers, the one controller in office, and each partition with its replicas."""
    client = cluster.client()
    client.create_stream("told", partitions=2)
    cluster.publish("told", b"a", b"b")
    found: dict[str, Any] = {}

    def is_whole() -> bool:
        """Tell whether a majority and each broker have answered, and none has stalled lately."""
        found.update(json.loads(_run(cluster.url, "status", "--json").stdout))
        (one,) = [
            one for one in found["partitions"] if (one["stream"], one["partition"]) == ("told", 0)
        ]
        followers = set(one["replicas"]) - {one["leader"]}
        return (
            bool(found["confirmed"])
            and all(broker["state"] == "alive" for broker in found["brokers"])
            and sorted(one["isr"]) == sorted(one["replicas"])
            and one.get("lag_records", {}).keys() == followers
        )

    cluster.wait_for(is_whole, "what every broker knows")
    assert [one["state"] for one in found["brokers"]] == ["alive"] * 3
    assert [one["broker"] for one in found["brokers"] if one["controller"]] == [found["controller"]]
    assert found["alone"] is False
    first = next(one for one in found["partitions"] if one["stream"] == "told")
    assert first["status"] == "online"
    assert sorted(first["isr"]) == sorted(first["replicas"]) == cluster.plan.brokers
    assert first["high_watermark"] == 2
    text = _run(cluster.url, "partitions", "told").stdout
    assert "told/0" in text
    assert "Online" in text
    listed = [
        json.loads(line)
        for line in _run(cluster.url, "brokers", "--json").stdout.split("\n")
        if line
    ]
    assert [one["addresses"]["flight"] for one in listed] == cluster.url.split(",")


def test_metrics_agree_with_the_status(cluster: Cluster) -> None:
    """One controller is in office, leaders report every follower, and peers are connected."""
    cluster.client().create_stream("measured")

    def agree() -> bool:
        scraped = [cluster.metrics(one) for one in range(len(cluster.plan.brokers))]
        here = '{partition="0",stream="measured"}'
        leading = [one for one in scraped if one.get(f"headwater_replica_leads{here}")]
        lags = [name for one in leading for name in one if "_lag_records" in name]
        return (
            sorted(one["headwater_cluster_in_office"] for one in scraped) == [0, 0, 1]
            and len(leading) == 1
            and sum('stream="measured"' in name for name in lags) == 2
            and all(_is_well(one) for one in scraped)
        )

    cluster.wait_for(agree, "the same story in every broker's metrics")


def _is_well(scraped: dict[str, float]) -> bool:
    return (
        scraped.get('headwater_replica_isr{partition="0",stream="measured"}') == 3
        and scraped["headwater_cluster_offline_partitions"] == 0
        and scraped["headwater_cluster_raft_applied_index"] > 0
        and sum(name.startswith("headwater_peer_connected") for name in scraped) == 2
    )


def test_leadership_is_handed_over(cluster: Cluster) -> None:
    """The named broker leads in a newer epoch, with every record, and accepts more."""
    client = cluster.client()
    client.create_stream("handed")
    cluster.publish("handed", b"before")
    before = cluster.look("handed")
    to = next(name for name in before.isr if name != before.leader)
    _run(cluster.url, "transfer-leader", "handed", "0", "--to", to)
    after = cluster.look("handed")
    assert after.leader == to
    assert after.leader_epoch > before.leader_epoch
    cluster.publish("handed", b"after")
    assert stored(client, "handed") == [b"before", b"after"]


def test_every_replica_compacts_its_log_when_told(cluster: Cluster) -> None:
    """Also the segment that is written to; a reader gets the last record of each key, and more."""
    client = cluster.client()
    client.create_stream("thinned", tiering=False, compact=True, dedup_window_ms=0)
    with client.producer("thinned") as producer:
        for number in range(40):
            producer.send([{"key": b"k%d" % (number % 4), "value": b"%d" % number}]).result(90)
    ended = client.cut("thinned")
    client.drop_lease(ended.lease.lease_id)
    removed: dict[str, int] = dict.fromkeys(cluster.plan.brokers, 0)

    def all_of_it() -> bool:
        rows = _compact(cluster.url, "thinned")
        removed.update({one.broker: removed[one.broker] + one.removed_count for one in rows})
        return len(rows) == 3 and all(one.reason is None and one.end == 40 for one in rows)

    cluster.wait_for(all_of_it, "every replica knows what is committed")
    assert removed == dict.fromkeys(cluster.plan.brokers, 36)
    assert stored(client, "thinned") == [b"36", b"37", b"38", b"39"]
    newest, _ = read_table("thinned", latest=True, columns=["value"], server=client)
    assert newest.column("value").to_pylist() == [b"36", b"37", b"38", b"39"]
    for moment in ({0: 20}, ended):  # each key had a record then, and may have none now
        with pytest.raises(CompactedRangeError, match="not known any more"):
            read_table("thinned", latest=True, as_of=moment, server=client)
    for url in cluster.url.split(","):  # also brokers that do not lead it
        told = cluster.client(url).describe("thinned")
        assert (told.records_count, told.offsets_count, told.knows_records) == (4, 40, True)
    cluster.publish("thinned", b"without a key")
    assert stored(client, "thinned")[-1] == b"without a key"
    client.create_stream("whole", tiering=False)
    off = CliRunner().invoke(app, ["stream", "compact", "whole", "--server", cluster.url])
    assert off.exit_code == 2
    assert "stream alter whole --compact" in " ".join(off.stderr.split())


def _compact(server: str, stream: str) -> list[ReplicaCompaction]:
    run = CliRunner().invoke(app, ["stream", "compact", stream, "--json", "--server", server])
    assert run.exit_code == 0, run.output
    return [ReplicaCompaction.from_dict(json.loads(line)) for line in run.stdout.splitlines()]


def test_a_partition_moves_to_another_broker(cluster: Cluster) -> None:
    """The new replica has all of it before the old one goes, and its folder with it."""
    client = cluster.client()
    stream = client.create_stream("moved", replication_factor=2, min_isr=1)
    cluster.publish("moved", *(b"%d" % number for number in range(100)))
    before = cluster.look("moved")
    (spare,) = set(cluster.plan.brokers) - set(before.replicas)
    leaving, staying = before.replicas
    _run(cluster.url, "move", "moved", "0", "--to", f"{staying},{spare}")
    after = cluster.look("moved")
    assert after.replicas == (staying, spare)
    assert set(after.isr) == {staying, spare}
    assert after.leader in after.replicas
    gone = cluster.plan.folder_of(leaving) / "streams" / stream.uuid
    cluster.wait_for(lambda: not gone.exists(), "the old replica's files are removed")
    assert len(stored(client, "moved")) == 100
    (there,) = [
        one
        for one in Operations(
            cluster.client(cluster.url_of(cluster.plan.brokers.index(spare)))
        ).replicas()
        if one.stream == "moved"
    ]
    assert (there.broker, there.log_end) == (spare, 100)


def test_leaders_return_to_where_they_belong(cluster: Cluster) -> None:
    """A broker that was killed and came back gets its leaderships by `balance`, not before."""
    cluster.client().create_stream("balanced")
    before = cluster.look("balanced")
    preferred = before.replicas[0]
    number = cluster.plan.brokers.index(preferred)
    cluster.kill(number)
    _wait(cluster, "balanced", lambda one: one.leader not in (None, preferred), "another leader")
    cluster.start(number)
    _wait(cluster, "balanced", lambda one: preferred in one.isr, "the broker in sync again")
    assert cluster.look("balanced").leader != preferred
    assert "balanced/0" in _run(cluster.url, "balance").stdout
    assert cluster.look("balanced").leader == preferred
    assert "balanced/0" not in _run(cluster.url, "balance").stdout


def test_giving_records_up_is_asked_shown_and_recorded(cluster: Cluster) -> None:
    """Only one broker has the newest records, and it is gone: no leader is elected by itself."""
    client = cluster.client()
    client.create_stream("lossy", replication_factor=2, min_isr=1)
    cluster.publish("lossy", b"on both")
    one = cluster.look("lossy")
    (behind,) = set(one.isr) - {one.leader}
    assert one.leader is not None
    leader = one.leader
    first, second = (cluster.plan.brokers.index(name) for name in (behind, leader))
    cluster.kill(first)
    _wait(cluster, "lossy", lambda now: now.isr == (leader,), "the leader in sync with itself")
    cluster.publish("lossy", b"on the leader only")
    cluster.kill(second)
    cluster.start(first)
    _wait(cluster, "lossy", lambda now: now.status == "offline", "nobody who could lead")
    command = (
        "cluster",
        "unclean-elect",
        "lossy",
        "0",
        "--broker",
        behind,
        "--server",
        cluster.url,
    )
    asked: list[Any] = []

    def is_told() -> bool:
        """Tell whether the broker has said where its log ends: a busy one may take over 2 s."""
        asked[:] = [CliRunner().invoke(app, list(command))]
        return "ends at offset 1" in asked[0].stderr

    cluster.wait_for(is_told, "what would be kept")
    assert asked[0].exit_code == 2
    assert f"is on {leader}" in asked[0].stderr
    assert cluster.look("lossy").status == "offline"

    done = CliRunner().invoke(app, [*command, "--accept-data-loss"])
    assert done.exit_code == 0, done.output
    after = cluster.look("lossy")
    assert (after.status, after.leader) == ("online", behind)
    (loss,) = after.losses
    assert (loss.leader, loss.log_end, loss.given_up) == (behind, 1, (leader,))
    assert "lossy/0 lost records" in _run(cluster.url, "status").stderr
    cluster.publish("lossy", b"afterwards")
    assert stored(client, "lossy") == [b"on both", b"afterwards"]
    cluster.start(second)
    _wait(cluster, "lossy", lambda now: set(now.isr) == {behind, leader}, "the old leader follows")
    assert stored(client, "lossy") == [b"on both", b"afterwards"]


def _says(server: EmbeddedServer, text: str) -> bool:
    return text in server.log_path.read_text("utf-8")


def test_up_runs_a_cluster_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """Its folder names all brokers; a killed one is started again without a loss of service."""
    ports = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    with start_up(tmp_path, "--brokers", "3", *ports) as server:
        found = RuntimeFile.read(tmp_path)
        assert len(found.flight.split(",")) == 3
        port = int(found.http.rpartition(":")[2])
        wait_ready(server, lambda: http_status(port, "GET", "/readyz") == 200)
        with Client(found.flight) as client:
            client.create_stream("kept")
            publish(client, "kept", b"one")
            brokers = [
                one
                for one in psutil.Process(server.process.pid).children(recursive=True)
                if "broker-2.toml" in " ".join(one.cmdline())
            ]
            brokers[0].kill()
            publish(client, "kept", b"two")
            assert stored(client, "kept") == [b"one", b"two"]
            operations = Operations(client)

            def is_whole() -> bool:
                with suppress(HeadwaterError):  # a busy cluster answers later
                    whole = len(operations.status().partitions[0].isr) == 3
                    return whole and _says(server, "was restarted.")
                return False

            wait_ready(server, is_whole)
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 0
        assert psutil.wait_procs(children, timeout=60)[1] == []
        text = server.log_path.read_text("utf-8")
        assert "broker-2 has ended" in text
        assert "2 of 3 continue" in text
        assert "broker-2 was restarted." in text
        assert "Stopped. Everything is on disk." in text
        assert not (tmp_path / "headwater.json").exists()
