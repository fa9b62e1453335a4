"""Kafka RF3: three combined brokers and controllers (KRaft) on the loopback.

All settings are defaults except ``min.insync.replicas=2`` and acks=all. A record is acknowledged
when all in-sync brokers, at least two, have written it; none of them has synced it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench.clusters import COUNT
from bench.peers.kafka import HEAP, Kafka, KafkaServer, Node, cluster_id, properties
from bench.peers.kafka_client import KafkaClient
from bench.processes import BenchError, Child, run_text
from headwater.local.embedded import free_port

_PARTITION: Final = re.compile(
    r"Partition:\s*0\s+Leader:\s*(\S+)\s+Replicas:\s*\S+\s+Isr:[ ]*(\S*)"
)


class KafkaCluster:
    """The three nodes, named by their numbers as text. Made by :func:`kafka_cluster`."""

    def __init__(self, kafka: Kafka, client: KafkaClient, folder: Path) -> None:
        self._kafka, self.client, self._folder = kafka, client, folder
        self._nodes = [Node(number + 1, free_port(), free_port()) for number in range(COUNT)]
        self._children: dict[str, Child] = {}

    @property
    def address(self) -> str:
        """Bootstrap servers."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    @property
    def tools(self) -> KafkaServer:
        """Kafka's own tools, for this cluster."""
        return KafkaServer(self._kafka, self.address, next(iter(self._children.values())))

    def start_all(self) -> None:
        """Format and start every node; return when topics can be listed."""
        name = cluster_id()
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(lambda node: self._format(node, name), self._nodes))
        for node in self._nodes:
            self._spawn(str(node.number))
        self.tools.wait_ready()

    def stop_all(self) -> None:
        """End every node."""
        for child in self._children.values():
            child.kill()

    def create(self, topic: str) -> None:
        """See clusters.Replicated."""
        self.tools.create(topic, replicas=COUNT)

    def leader(self, topic: str) -> str | None:
        """See clusters.Replicated."""
        return partition_state(self._describe(topic))[0]

    def in_sync(self, topic: str) -> bool:
        """See clusters.Replicated."""
        leader, isr = partition_state(self._describe(topic))
        return leader is not None and len(isr) == COUNT

    def kill(self, node: str) -> None:
        """See clusters.Replicated."""
        self._children[node].kill()

    def start(self, node: str) -> None:
        """See clusters.Replicated; does not wait, because the ISR shows when the node is back."""
        self._spawn(node)

    def probe(self, topic: str) -> list[str]:
        """See clusters.Replicated."""
        return self.client.command("probe", self.address, topic)

    def _format(self, node: Node, name: str) -> None:
        folder = self._folder / str(node.number)
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "server.properties"
        text = properties(folder, node, self._nodes, min_isr=2)
        config.write_text(text, encoding="utf-8")
        tool = self._kafka.java("kafka.tools.StorageTool")
        run_text([*tool, "format", "-t", name, "-c", str(config)])

    def _spawn(self, node: str) -> None:
        folder = self._folder / node
        command = [
            "java", *HEAP, "-cp", f"{self._kafka.libs}/*", "kafka.Kafka",
            str(folder / "server.properties"),
        ]  # fmt: skip
        self._children[node] = Child(f"kafka {node}", command, folder / "kafka.log")

    def _describe(self, topic: str) -> str:
        with contextlib.suppress(BenchError, subprocess.TimeoutExpired):
            return run_text([
                *self._kafka.java("org.apache.kafka.tools.TopicCommand"), "--bootstrap-server",
                self.address, "--describe", "--topic", topic,
            ], timeout_s=30)  # fmt: skip
        return ""


def partition_state(described: str) -> tuple[str | None, list[str]]:
    """Return leader and ISR of partition 0 from the output of ``--describe``; None: no leader."""
    found = _PARTITION.search(described)
    if found is None:
        return None, []
    leader = found[1] if found[1].isdigit() else None
    return leader, [one for one in found[2].split(",") if one]


@contextlib.contextmanager
def kafka_cluster(kafka: Kafka, folder: Path) -> Iterator[KafkaCluster]:
    """Run three nodes; the folder is removed at the end."""
    cluster = KafkaCluster(kafka, KafkaClient.find(kafka), folder)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
