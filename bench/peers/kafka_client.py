"""Our small Java client for Kafka (programs/kafka/ClusterProbe.java), compiled on first use."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.peers.kafka import Kafka
from bench.processes import BenchError, run_json, run_text

_SOURCE: Final = Path(__file__).with_name("programs") / "kafka" / "ClusterProbe.java"


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """The compiled client, and Kafka's jars."""

    libs: Path
    classes: Path

    @classmethod
    def find(cls, kafka: Kafka) -> KafkaClient:
        """Compile the client next to the jars, unless the compiled class is newer than the source.

        Raises:
            BenchError: there is no Java compiler, or it failed.
        """
        classes = kafka.libs.parent / "classes"
        done = classes / f"{_SOURCE.stem}.class"
        if not done.exists() or done.stat().st_mtime < _SOURCE.stat().st_mtime:
            javac = shutil.which("javac")
            if javac is None:
                raise BenchError("Kafka's client needs a Java compiler (javac) on PATH")
            classes.mkdir(parents=True, exist_ok=True)
            run_text([javac, "-cp", f"{kafka.libs}/*", "-d", str(classes), str(_SOURCE)])
        return cls(kafka.libs, classes)

    def command(self, *words: str) -> list[str]:
        """Return the command that runs the client."""
        return ["java", "-Xmx256m", "-cp", f"{self.classes}:{self.libs}/*", _SOURCE.stem, *words]

    def latency(self, servers: str, topic: str, *, size: int, count: int) -> dict[str, Any]:
        """Publish one record at a time; return the percentiles."""
        return run_json(self.command("latency", servers, topic, str(size), str(count)))

    def first_acks_ms(self, servers: str, *, replicas: int, count: int) -> list[float]:
        """Create topics one after another; return the time to the first ack of each topic."""
        words = ("first-ack", servers, "first", str(replicas), str(count))
        return [float(one) for one in run_json(self.command(*words))["first_ack_ms"]]
