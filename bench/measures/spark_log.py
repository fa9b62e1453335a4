"""Our Spark source and appender, compared with Spark's Kafka source and delta-spark's writer.

Both sides have the same number of records of 100 random bytes. Of ours 99 % are in the table and
1 % in the log, as is usual for a stream's history; Kafka's are in a topic of two partitions.

- ``batch`` counts and sums all records.
- ``stream`` reads partition, offset and value with AvailableNow and discards the rows (our source
  gets these columns by its option ``columns``).
- ``ingest`` reads with AvailableNow and writes into a new Delta table.
- ``append`` writes the stream to a Delta table, with our appender and with delta-spark's writer.
- Freshness is the time from the acknowledgement until a unified query in a warm session returns the
  record; and, at 1,000 records/s with a trigger of 1 s, until the table's commit with the record.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.measures.publish import ROWS, WINDOW
from bench.peers.kafka import KafkaServer
from bench.peers.spark_kafka import SparkKafka
from bench.processes import BenchError, Load, run_loads
from bench.servers import headwater
from bench.session import Session

_RECORDS: Final = 4_000_000
_SIZE: Final = 100
_HOUR_MS: Final = 3_600_000
_QUERIES: Final = 50
_PACED_S: Final = 40
_PACED_PER_S: Final = 1_000
_TIMEOUT_S: Final = 3_600


def run(session: Session) -> None:
    """Fill both sides, then let one JVM measure them in turns."""
    rows = session.count(_RECORDS, multiple=100 * ROWS)
    lake = str(session.work / "lake")
    with contextlib.ExitStack() as stack:
        kafka: KafkaServer | None = None
        conf: dict[str, str] = {}
        if session.kafka is not None:
            cache = session.work.parent / "spark_kafka"
            conf = SparkKafka.find(cache).settings()
            kafka = stack.enter_context(session.kafka.server(session.work / "kafka"))
            kafka.create("bench", partitions=2)
            kafka.create("fresh")
            kafka.publish("bench", size=_SIZE, count=rows, publishers=1)
        broker = stack.enter_context(headwater(session.work / "ours", lake_uri=lake, nats=False))
        with broker.client() as client:
            client.create_stream("hist", segment_age_ms_max=_HOUR_MS)
            hot = rows // 100
            for count in (rows - hot, hot):
                run_loads([
                    Load(
                        "flight_publish", url=broker.url, stream="hist", size=_SIZE, rows=ROWS,
                        batches=count // ROWS, window=WINDOW,
                    )
                ])  # fmt: skip
                if count != hot:
                    client.tier_flush("hist", timeout_ms=1_800_000)
        wanted = {
            "work": str(session.work / "spark"),
            "server": broker.url,
            "stream": "hist",
            "rows": rows,
            "repeat": session.repeat,
            "kafka": None if kafka is None else kafka.address,
            "pids": {
                "ours": broker.process.process.pid,
                "kafka": 0 if kafka is None else kafka.child.process.pid,
            },
            "conf": conf,
            "queries": max(10, int(_QUERIES * min(1.0, session.scale))),
            "paced_s": _PACED_S,
            "paced_per_s": _PACED_PER_S,
        }
        log = session.work / "spark_log.log"
        found, code = _work(wanted, kafka, log)
        _record(session, found, rows)
        if code != 0:
            raise BenchError(f"the worker ended with {code}: {log.read_text()[-1500:]}")


def _work(
    wanted: dict[str, Any], kafka: KafkaServer | None, log: Path
) -> tuple[dict[str, Any], int]:
    """Run the worker; publish to Kafka when it asks for that; return its results and status."""
    command = [sys.executable, "-m", "bench.workers.spark_log", json.dumps(wanted)]
    found: dict[str, Any] = {}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)  # for an interrupted run; otherwise the worker has ended
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            found = json.loads(line)
            if "ready" in found:
                assert kafka is not None, "the worker asks only if Kafka runs"
                kafka.publish_paced(
                    "fresh", size=_SIZE, count=_PACED_S * _PACED_PER_S, records_per_s=_PACED_PER_S
                )
                process.stdin.write("published\n")
                process.stdin.flush()
        code = process.wait(_TIMEOUT_S)
    if "turns" not in found:
        raise BenchError(f"the worker ended with {code}: {log.read_text()[-1500:]}")
    return found, code


def _record(session: Session, found: dict[str, Any], rows: int) -> None:
    add = session.recorder.add
    for way, turns in found["turns"].items():
        for one in turns:
            add(f"spark_log/{way}", rows / one["seconds"], "rows/s", rows=rows, **one)
            add(f"spark_log/{way}_cpu", one["cpu_s"] / rows * 1e6, "s")
            if way.startswith("stream"):
                mib = rows * _SIZE / 2**20
                add(f"spark_log/{way}_mib", mib / one["seconds"], "MiB/s")
    for side, ages_s in found["ages_s"].items():
        for percent in (50, 99):
            value = float(np.percentile(ages_s, percent))
            add(f"spark_log/fresh_{side}_p{percent}", value, "s", samples=len(ages_s))
