"""What the peers say of a stream's replicas, and the configuration that makes them a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.peers.jetstream_cluster import stream_in_sync, stream_leader
from bench.peers.kafka import Node, properties
from bench.peers.kafka_cluster import partition_state

DESCRIBED = (
    "Topic: fail\tTopicId: x\tPartitionCount: 1\tReplicationFactor: 3\tConfigs: \n"
    "\tTopic: fail\tPartition: 0\tLeader: 2\tReplicas: 2,3,1\tIsr: 3,1\tElr: \tLastKnownElr: \n"
)


def info(*current: bool, leader: str = "js-0", offline: bool = False) -> dict[str, Any]:
    """An answer of STREAM.INFO with followers."""
    replicas = [{"name": "js", "current": one, "offline": offline} for one in current]
    return {"cluster": {"leader": leader, "replicas": replicas}}


def test_kafkas_leader_and_isr_are_read_from_its_own_description() -> None:
    """The line of the partition, not that of the topic."""
    assert partition_state(DESCRIBED) == ("2", ["3", "1"])


@pytest.mark.parametrize("leader", ["none", "-"])
def test_a_kafka_partition_without_a_leader_has_none(leader: str) -> None:
    """As while an election runs."""
    assert partition_state(DESCRIBED.replace("Leader: 2", f"Leader: {leader}"))[0] is None


def test_a_kafka_partition_with_an_empty_isr_has_nobody_in_sync() -> None:
    """An empty field is not taken for one replica without a name."""
    assert partition_state(DESCRIBED.replace("Isr: 3,1", "Isr: ")) == ("2", [])


def test_nothing_is_known_of_a_topic_that_is_not_described() -> None:
    """The tool failed, or printed something else."""
    assert partition_state("") == (None, [])


def test_jetstream_is_in_sync_when_both_followers_are() -> None:
    """One that is behind or away, or no leader, is not enough."""
    assert stream_in_sync(info(True, True))
    assert not stream_in_sync(info(True, False))
    assert not stream_in_sync(info(True))
    assert not stream_in_sync(info(True, True, offline=True))
    assert not stream_in_sync(info(True, True, leader=""))


def test_jetstream_has_no_leader_when_nobody_answers() -> None:
    """An error, or an answer without a cluster."""
    assert stream_leader({}) is None
    assert stream_leader(info(True, True)) == "js-0"


def test_every_kafka_node_knows_all_voters(tmp_path: Path) -> None:
    """Three combined nodes are one quorum, and inner topics have as many replicas as nodes."""
    nodes = [Node(1, 11, 21), Node(2, 12, 22), Node(3, 13, 23)]
    lines = properties(tmp_path, nodes[1], nodes, min_isr=2).splitlines()
    assert "node.id=2" in lines
    assert "controller.quorum.voters=1@127.0.0.1:21,2@127.0.0.1:22,3@127.0.0.1:23" in lines
    assert "listeners=PLAINTEXT://127.0.0.1:12,CONTROLLER://127.0.0.1:22" in lines
    assert "min.insync.replicas=2" in lines
    assert "offsets.topic.replication.factor=3" in lines
