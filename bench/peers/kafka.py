"""Kafka as a second peer: one broker in KRaft mode, and Kafka's own performance tools.

Optional (``--kafka``), because it needs Java, Maven and 150 MB of jars. All settings are defaults,
so Kafka does not sync before an ack. acks=all, one replica, one partition.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.processes import BenchError, Child, run_text
from headwater.local.embedded import free_port

_POM: Final = Path(__file__).with_name("programs") / "kafka" / "pom.xml"
HEAP: Final = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
_SENT: Final = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")
PRODUCER: Final = ("acks=all", "linger.ms=5", "batch.size=65536")


@dataclass(frozen=True, slots=True)
class Node:
    """A combined broker and controller, and its ports."""

    number: int
    port: int
    controller_port: int


@dataclass(frozen=True, slots=True)
class Kafka:
    """Kafka's jars."""

    libs: Path

    @classmethod
    def find(cls, folder: Path) -> Kafka:
        """Copy the jars into ``folder`` with Maven, unless the folder has them already.

        Raises:
            BenchError: Java or Maven is missing, or Maven failed.
        """
        libs, done = folder / "libs", folder / "complete"
        if not done.exists():
            maven = shutil.which("mvn")
            if maven is None or shutil.which("java") is None:
                raise BenchError("--kafka needs Java and Maven (java, mvn) on PATH")
            folder.mkdir(parents=True, exist_ok=True)
            run_text([
                maven, "-q", "-B", "-f", str(_POM), f"-Dmaven.repo.local={folder / 'm2'}",
                "dependency:copy-dependencies", f"-DoutputDirectory={libs}",
            ])  # fmt: skip
            done.touch()
        return cls(libs)

    @contextlib.contextmanager
    def server(self, folder: Path) -> Iterator[KafkaServer]:
        """Run one combined broker and controller."""
        folder.mkdir(parents=True, exist_ok=True)
        node = Node(1, free_port(), free_port())
        config = folder / "server.properties"
        config.write_text(properties(folder, node, [node], min_isr=1), encoding="utf-8")
        tool = self.java("kafka.tools.StorageTool")
        run_text([*tool, "format", "-t", cluster_id(), "-c", str(config)])
        command = ["java", *HEAP, "-cp", f"{self.libs}/*", "kafka.Kafka", str(config)]
        with Child("kafka", command, folder / "kafka.log") as child:
            try:
                server = KafkaServer(self, f"127.0.0.1:{node.port}", child)
                server.wait_ready()
                yield server
            finally:
                child.stop()
                shutil.rmtree(folder, ignore_errors=True)

    def java(self, name: str) -> list[str]:
        """Return the command that runs one of Kafka's tools."""
        return ["java", "-Xmx512m", "-cp", f"{self.libs}/*", name]


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A running broker."""

    kafka: Kafka
    address: str
    child: Child

    def wait_ready(self) -> None:
        """Wait until the broker can list its topics."""
        command = [*self.kafka.java("org.apache.kafka.tools.TopicCommand")]
        for _ in range(20):
            self.child.check()
            with contextlib.suppress(BenchError, subprocess.TimeoutExpired):
                run_text([*command, "--bootstrap-server", self.address, "--list"], timeout_s=15)
                return
        raise BenchError(f"Kafka was not ready: {self.child.tail()}")

    def create(self, topic: str, *, partitions: int = 1, replicas: int = 1) -> None:
        """Create a topic."""
        run_text([
            *self.kafka.java("org.apache.kafka.tools.TopicCommand"), "--bootstrap-server",
            self.address, "--create", "--topic", topic, "--partitions", str(partitions),
            "--replication-factor", str(replicas),
        ])  # fmt: skip

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        run_text([
            *self.kafka.java("org.apache.kafka.tools.TopicCommand"), "--bootstrap-server",
            self.address, "--delete", "--topic", topic,
        ])  # fmt: skip

    def publish(self, topic: str, *, size: int, count: int, publishers: int) -> float:
        """Run one ProducerPerformance per publisher at the same time; return records/s.

        The result is the sum of the reported rates, which do not include the start of the JVM.
        """
        command = [
            *self.kafka.java("org.apache.kafka.tools.ProducerPerformance"), "--topic", topic,
            "--num-records", str(count // publishers), "--record-size", str(size),
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={self.address}",
            *PRODUCER,
        ]  # fmt: skip
        with ThreadPoolExecutor(publishers) as pool:
            printed = list(pool.map(lambda _: run_text(command), range(publishers)))
        rates = [_SENT.findall(text) for text in printed]
        if not all(rates):
            raise BenchError(f"ProducerPerformance printed no rate: {printed[0][-300:]}")
        return sum(float(found[-1][1]) for found in rates)

    def publish_paced(self, topic: str, *, size: int, count: int, records_per_s: int) -> None:
        """Run ProducerPerformance at a steady rate, without waiting to fill batches."""
        run_text([
            *self.kafka.java("org.apache.kafka.tools.ProducerPerformance"), "--topic", topic,
            "--num-records", str(count), "--record-size", str(size), "--throughput",
            str(records_per_s), "--producer-props", f"bootstrap.servers={self.address}", "acks=all",
            "linger.ms=0",
        ])  # fmt: skip

    def consume(self, topic: str, *, count: int) -> float:
        """Run ConsumerPerformance from the start; return records/s, without the group's join."""
        printed = run_text([
            *self.kafka.java("org.apache.kafka.tools.ConsumerPerformance"), "--bootstrap-server",
            self.address, "--topic", topic, "--num-records", str(count), "--timeout", "60000",
        ])  # fmt: skip
        rows = [line for line in printed.splitlines() if re.match(r"\d{4}-", line)]
        if not rows:
            raise BenchError(f"ConsumerPerformance printed no row: {printed[-300:]}")
        return float(rows[-1].split(",")[9])  # fetch.nMsg.sec


def cluster_id() -> str:
    """Return a random cluster id."""
    text = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return f"A{text[1:]}"  # an id must not begin with a dash


def properties(folder: Path, node: Node, nodes: Sequence[Node], *, min_isr: int) -> str:
    """Return the configuration of one of ``nodes``; each is both broker and controller."""
    voters = ",".join(f"{one.number}@127.0.0.1:{one.controller_port}" for one in nodes)
    return f"""\
process.roles=broker,controller
node.id={node.number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{node.port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder / "data"}
num.partitions=1
min.insync.replicas={min_isr}
offsets.topic.replication.factor={len(nodes)}
transaction.state.log.replication.factor={len(nodes)}
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
