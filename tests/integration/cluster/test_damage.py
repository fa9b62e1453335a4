"""Replicas that cannot continue their own log: far behind, rotten, or not let in yet."""

from __future__ import annotations

import pytest

from clusterkit.load import stored
from clusterkit.running import Cluster

pytestmark = pytest.mark.integration


def _follower(cluster: Cluster, stream: str) -> int:
    leader = cluster.leader(stream)
    return next(n for n in range(3) if n != leader)


def test_a_broker_that_was_stopped_while_the_log_moved_on_begins_anew(cluster: Cluster) -> None:
    """The records that it lacks are in the table; every record can be read through it."""
    client = cluster.client()
    client.create_stream(
        "moved", segment_bytes_max=4096, local_retention_bytes=0, dedup_window_ms=0
    )
    values = [b"%03d" % number * 30 for number in range(200)]
    cluster.publish("moved", *values[:20])
    behind = _follower(cluster, "moved")
    cluster.kill(behind)
    for number in range(20, 200, 20):
        cluster.publish("moved", *values[number : number + 20])
    client.tier_flush("moved")
    leader = cluster.client(cluster.url_of(cluster.leader("moved")))
    cluster.wait_for(
        lambda: leader.describe("moved").partitions[0].log_start > 20, "the leader's log moved on"
    )
    cluster.start(behind)
    cluster.wait_for(cluster.in_sync("moved"), "it is in sync again")
    assert cluster.said(behind, "log_begins_anew")
    assert stored(cluster.client(cluster.url_of(behind)), "moved") == values
    cluster.kill(cluster.leader("moved"))
    cluster.publish("moved", b"after")
    assert stored(client, "moved") == [*values, b"after"]


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_rotten_log_is_set_aside_and_fetched_anew(cluster: Cluster, leads: bool) -> None:
    """No acknowledged record is lost; the rotten log is kept aside, and the broker reports it."""
    client = cluster.client()
    stream = f"rotten-{leads}"
    client.create_stream(stream, tiering=False)
    values = [b"%03d" % number * 300 for number in range(40)]
    for number in range(0, 40, 10):
        cluster.publish(stream, *values[number : number + 10])
    leader, follower = cluster.leader(stream), _follower(cluster, stream)
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
    cluster.wait_for(cluster.in_sync(stream), "it is in sync again")
    said = [one["partition"] for one in cluster.said(victim, "damaged_log_set_aside")]
    assert said.count(f"{uuid}/0") == 1
    assert list((folder / "damaged").iterdir())
    assert stored(cluster.client(cluster.url_of(victim)), stream) == values


def test_a_broker_that_waits_for_a_majority_can_be_stopped(cluster: Cluster) -> None:
    """It names the voters that it waits for, and ends cleanly: a voter asks the others first."""
    for number in range(3):
        cluster.kill(number)
    waited = len(cluster.said(0, "waiting_for_members"))
    server = cluster.plan.start(cluster.name(0), wait=False)
    cluster.wait_for(lambda: len(cluster.said(0, "waiting_for_members")) > waited, "it says so")
    names = cluster.said(0, "waiting_for_members")[-1]["unanswered"]
    assert names == ",".join(cluster.plan.brokers[1:])
    server.process.terminate()
    assert server.process.wait(60) == 0
