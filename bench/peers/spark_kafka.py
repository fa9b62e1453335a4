"""Spark's own Kafka source as a peer: its jars, and stand-ins for a library that is not available.

The connector links to four classes of Spark's Kafka token provider. They are used only with
authentication, and no registry that is reached from here has them. ``programs/spark_kafka/shim``
has empty classes instead, which are compiled against PySpark's jars when they are first needed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from bench.processes import BenchError, run_text

_PEER: Final = Path(__file__).with_name("programs") / "spark_kafka"


@dataclass(frozen=True, slots=True)
class SparkKafka:
    """The jars and classes that a session needs for ``format("kafka")``."""

    jars: tuple[Path, ...]
    classes: Path

    @classmethod
    def find(cls, folder: Path) -> SparkKafka:
        """Copy the jars and compile the stand-ins into ``folder``, unless the folder has them.

        Raises:
            BenchError: Maven or the Java compiler is missing, or one of them failed.
        """
        libs, classes, done = folder / "libs", folder / "classes", folder / "complete"
        if not done.exists():
            maven, javac = shutil.which("mvn"), shutil.which("javac")
            if maven is None or javac is None:
                raise BenchError(
                    "Spark's Kafka source needs Maven and a Java compiler (mvn, javac) on PATH"
                )
            classes.mkdir(parents=True, exist_ok=True)
            run_text([
                maven, "-q", "-B", "-f", str(_PEER / "pom.xml"),
                f"-Dmaven.repo.local={folder / 'm2'}", "dependency:copy-dependencies",
                f"-DoutputDirectory={libs}",
            ])  # fmt: skip
            shipped = Path(pyspark.__file__).parent / "jars" / "*"
            sources = [str(path) for path in sorted((_PEER / "shim").rglob("*.java"))]
            run_text([javac, "-nowarn", "-cp", str(shipped), "-d", str(classes), *sources])
            done.touch()
        return cls(tuple(sorted(libs.glob("*.jar"))), classes)

    def settings(self) -> dict[str, str]:
        """Return the settings that add the Kafka source to a session of ours."""
        return {
            "spark.jars": ",".join(map(str, self.jars)),
            "spark.driver.extraClassPath": str(self.classes),
        }
