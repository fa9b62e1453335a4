"""Replicas that cannot go on from what they have: far behind, rotten, or not let in yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.model.cluster_status import PartitionInfo
from clusterkit.load import stored
from clusterkit.running import Cluster
from headwater.client.client import Client
from headwater.client.operations import Operations

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster_damage")]


def _publish(client: Client, stream: str, *values: bytes) -> None:
    with client.producer(stream) as producer:
        producer.send(list(values)).result(30)


def _look(client: Client, stream: str) -> PartitionInfo:
    found = Operations(client).status().partition(stream, 0)
    assert found is not None
    return found


def _follower(client: Client, cluster: Cluster, stream: str) -> int:
    leader = _look(client, stream).leader
    return next(n for n in range(3) if cluster.name(n) != leader)


def _in_sync(client: Client, cluster: Cluster, stream: str) -> Callable[[], bool]:
    return lambda: sorted(_look(client, stream).isr) == cluster.plan.brokers


def _said(cluster: Cluster, number: int, event: str) -> list[dict[str, Any]]:
    lines = cluster.plan.log_of(cluster.name(number)).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if f'"event": "{event}"' in line]


def test_a_broker_that_was_stopped_while_the_log_moved_on_begins_anew(cluster: Cluster) -> None:
    """What it lacks is in the table; it holds the rest, and every record is read through it."""
    client = cluster.client()
    client.create_stream(
        "moved", segment_bytes_max=4096, local_retention_bytes=0, dedup_window_ms=0
    )
    values = [b"%03d" % number * 30 for number in range(200)]
    _publish(client, "moved", *values[:20])
    behind = _follower(client, cluster, "moved")
    cluster.kill(behind)
    for number in range(20, 200, 20):
        _publish(client, "moved", *values[number : number + 20])
    client.tier_flush("moved")
    leader = cluster.client(cluster.url_of(cluster.leader("moved")))
    cluster.wait_for(
        lambda: leader.describe("moved").partitions[0].log_start > 20, "the leader's log moved on"
    )
    cluster.start(behind)
    cluster.wait_for(_in_sync(client, cluster, "moved"), "it is in sync again")
    assert _said(cluster, behind, "log_begins_anew")
    assert stored(cluster.client(cluster.url_of(behind)), "moved") == values
    cluster.kill(cluster.leader("moved"))
    _publish(client, "moved", b"after")
    assert stored(client, "moved") == [*values, b"after"]


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_rotten_log_is_set_aside_and_fetched_anew(cluster: Cluster, leads: bool) -> None:
    """Nothing acknowledged is lost, what was rotten is kept to be looked at, and it says so."""
    client = cluster.client()
    stream = f"rotten-{leads}"
    client.create_stream(stream, tiering=False)
    values = [b"%03d" % number * 300 for number in range(40)]
    for number in range(0, 40, 10):
        _publish(client, stream, *values[number : number + 10])
    leader, follower = cluster.leader(stream), _follower(client, cluster, stream)
    victim = leader if leads else follower
    uuid = client.stream(stream).uuid
    folder = cluster.plan.folder_of(cluster.name(victim))
    cluster.kill(victim)
    segment = next((folder / "streams" / uuid / "0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(3000)  # within the first batch
        byte = file.read(1)[0]
        file.seek(3000)
        file.write(bytes([byte ^ 0xFF]))
    cluster.start(victim)
    cluster.wait_for(_in_sync(client, cluster, stream), "it is in sync again")
    said = [one["partition"] for one in _said(cluster, victim, "damaged_log_set_aside")]
    assert said.count(f"{uuid}/0") == 1
    assert list((folder / "damaged").iterdir())
    assert stored(cluster.client(cluster.url_of(victim)), stream) == values


def test_a_broker_that_waits_for_a_majority_can_be_stopped(cluster: Cluster) -> None:
    """It says what it waits for, and ends politely."""
    for number in range(3):
        cluster.kill(number)
    waited = len(_said(cluster, 0, "waiting_for_controllers"))
    server = cluster.plan.start(cluster.name(0), wait=False)
    cluster.wait_for(
        lambda: len(_said(cluster, 0, "waiting_for_controllers")) > waited, "it says so"
    )
    server.process.terminate()
    assert server.process.wait(60) == 0
