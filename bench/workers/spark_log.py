"""Spark's side of the measure ``spark_log``, one JVM: ``python -m bench.workers.spark_log JSON``.

Each *way* reads, streams or appends the same records, with our source or with Spark's Kafka source.
The ways take turns, after one round that is not counted. The worker prints the seconds of each way,
and the CPU seconds of all its processes: driver, JVM, Python workers and the broker that it reads
from.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import headwater as hw
from bench.cpu import cpu_s
from bench.payloads import batch_of
from headwater.client import Client
from spark_jobs.jobs import backfill, ingest
from spark_jobs.jobs.job import Report, Stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WARM_UPS: Final = 1
_SUM: Final = ("count(*)", "min(offset)", "max(offset)", "sum(length(value))")
_PACED_ROWS: Final = 20  # records of a batch of the paced producer
_SIZE: Final = 100
_SKIPPED_S: Final = 8  # the first batches of a query compile its code
_SKIPPED_QUERIES: Final = 10  # after these the JVM has compiled the code of such a query
_NARROW: Final = "partition,offset,value"

Way = Callable[[Path], int]  # works in an empty folder and returns the number of its records


class Worker:
    """One Spark session and its measurements."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self._work = Path(wanted["work"])
        self._stream = str(wanted["stream"])
        self._server = str(wanted["server"])
        self._kafka: str | None = wanted["kafka"]
        self._spark: SparkSession = hw.session("bench", "local[2]", conf=wanted["conf"])
        self._client = Client(self._server)
        self.turns: dict[str, list[dict[str, float]]] = {}  # seconds and CPU seconds by way
        self.ages_s: dict[str, list[float]] = {}  # ages of records, by freshness test

    def run(self) -> None:
        """Measure; results before an error are kept."""
        ways = self._ways()
        for turn in range(_WARM_UPS + int(self._wanted["repeat"])):
            for name, way in ways.items():
                folder = self._work / name
                shutil.rmtree(folder, ignore_errors=True)
                pids = (os.getpid(), self._wanted["pids"]["kafka" if "kafka" in name else "ours"])
                began, began_cpu_s = time.perf_counter(), cpu_s(pids)
                done = way(folder)
                took_s, took_cpu_s = time.perf_counter() - began, cpu_s(pids) - began_cpu_s
                assert done == self._wanted["rows"], f"{name}: {done} rows"
                hw.release_all()
                if turn >= _WARM_UPS:
                    one = {"seconds": took_s, "cpu_s": took_cpu_s}
                    self.turns.setdefault(name, []).append(one)
        self.ages_s["query"] = self._fresh_query()
        self.ages_s["curated"] = self._fresh_curated()
        if self._kafka is not None:
            self.ages_s["kafka"] = self._fresh_kafka()

    def close(self) -> None:
        """End the session."""
        self._spark.stop()

    def _ways(self) -> dict[str, Way]:
        ways: dict[str, Way] = {
            "batch/ours": lambda _: _count(hw.read(self._spark, self._stream, server=self._client)),
            "stream/ours": partial(self._stream_to_noop, self._ours_streaming),
            "ingest/ours": self._ingest,
            "append/ours": self._backfill,
            "append/delta_spark": self._delta_spark,
        }
        if self._kafka is not None:
            ways["batch/kafka"] = lambda _: _count(self._from_kafka(self._spark.read))
            ways["stream/kafka"] = partial(
                self._stream_to_noop, lambda: self._from_kafka(self._spark.readStream)
            )
            ways["ingest/kafka"] = self._kafka_to_delta
        return ways

    # ------------------------------------------------------------------ sources

    def _ours(self, reader: Any) -> Any:
        return (
            reader.format("headwater")
            .option("server", self._server)
            .option("subscribe", self._stream)
            .option("startingOffsets", "earliest")
        )

    def _ours_streaming(self) -> DataFrame:
        rows: DataFrame = self._ours(self._spark.readStream).option("columns", _NARROW).load()
        return rows

    def _from_kafka(self, reader: Any, topic: str = "bench") -> Any:
        return (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", self._kafka)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    # ------------------------------------------------------------------ ways

    def _stream_to_noop(self, source: Callable[[], DataFrame], folder: Path) -> int:
        query = (
            source()
            .select("partition", "offset", "value")
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(int(batch["numInputRows"]) for batch in query.recentProgress)

    def _ingest(self, folder: Path) -> int:
        facts = self._job(ingest, "--table", str(folder / "table"), "--format", "raw")
        return int(facts["records"])

    def _backfill(self, folder: Path) -> int:
        return int(self._job(backfill, "--table", str(folder / "table"))["records"])

    def _job(self, job: Any, *words: str, stop: Stop | None = None) -> Any:
        args = job.PARSER.parse_args(["--stream", self._stream, "--server", self._server, *words])
        return job.run(self._spark, args, Report("bench", sys.stderr, stop or Stop()))

    def _delta_spark(self, folder: Path) -> int:
        """Write the same rows from the same source with delta-spark."""
        self._ours(self._spark.read).load().write.format("delta").save(str(folder / "table"))
        return self._rows_in(folder)

    def _kafka_to_delta(self, folder: Path) -> int:
        query = (
            self._from_kafka(self._spark.readStream)
            .select("topic", "partition", "offset", "timestamp", "key", "value")
            .writeStream.format("delta")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "table"))
        )
        query.awaitTermination()
        return self._rows_in(folder)

    def _rows_in(self, folder: Path) -> int:
        import deltalake  # noqa: PLC0415  (only statistics are read)

        added = pa.table(deltalake.DeltaTable(str(folder / "table")).get_add_actions(flatten=True))
        return sum(added.column("num_records").to_pylist())

    # ------------------------------------------------------------------ freshness

    def _fresh_query(self) -> list[float]:
        """Return the seconds from an acknowledgement until a unified query returned the record."""
        ages = []
        with self._client.producer(self._stream) as producer:
            for turn in range(_SKIPPED_QUERIES + int(self._wanted["queries"])):
                result = producer.send(batch_of(_SIZE, 1)).result(timeout=60)
                acked = time.perf_counter()
                rows = hw.read(self._spark, self._stream, server=self._client)
                newest = rows.selectExpr("max(offset)").collect()[0][0]
                age_s = time.perf_counter() - acked
                assert newest == result.base_offset, f"{newest} is not {result.base_offset}"
                hw.release_all()
                if turn >= _SKIPPED_QUERIES:
                    ages.append(age_s)
        return ages

    def _fresh_curated(self) -> list[float]:
        """Return the ages of records at their commit into the curated table."""
        name, seconds = "fresh", int(self._wanted["paced_s"])
        self._client.create_stream(name, tiering=False)
        table = self._work / "fresh" / "table"
        stop = Stop()
        self._stream, before = name, self._stream
        words = ["--table", str(table), "--format", "raw", "--trigger", "1s"]
        job = threading.Thread(target=partial(self._job, ingest, *words, stop=stop))
        with self._client.producer(name) as producer:
            producer.send(batch_of(_SIZE, 1)).result(timeout=60)
            job.start()
            began = time.monotonic()
            sent = 0
            while (passed_s := time.monotonic() - began) < seconds:
                due = int(passed_s * self._wanted["paced_per_s"])
                while sent < due:
                    producer.send(batch_of(_SIZE, _PACED_ROWS))
                    sent += _PACED_ROWS
                threading.Event().wait(0.005)
        threading.Event().wait(5)
        stop.event.set()
        job.join()
        self._stream = before
        return _ages(table)

    def _fresh_kafka(self) -> list[float]:
        """Return these ages for Kafka and delta-spark; trigger 1 s; the parent publishes."""
        table = self._work / "fresh-kafka" / "table"
        query = (
            self._from_kafka(self._spark.readStream, "fresh")
            .select("partition", "offset", "timestamp", "value")
            .writeStream.format("delta")
            .option("checkpointLocation", str(table.parent / "checkpoint"))
            .trigger(processingTime="1 second")
            .start(str(table))
        )
        print(json.dumps({"ready": "kafka"}), flush=True)
        sys.stdin.readline()  # waits until the parent has published all records
        threading.Event().wait(5)
        query.stop()
        return _ages(table)


def _count(rows: DataFrame) -> int:
    return int(rows.selectExpr(*_SUM).collect()[0][0])


def _ages(table: Path) -> list[float]:
    """Return commit time minus timestamp of every row, without the first seconds of the query."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    ages: list[float] = []
    commits = sorted((table / "_delta_log").glob("*.json"))
    first_s: float | None = None
    for commit in commits:
        at_s = commit.stat().st_mtime
        for line in commit.read_text().splitlines():
            added = json.loads(line).get("add")
            if added is None:
                continue
            column = pq.read_table(table / added["path"], columns=["timestamp"]).column(0)
            made = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            first_s = first_s or min(made) / 1e6
            ages += [at_s - one / 1e6 for one in made if one / 1e6 > first_s + _SKIPPED_S]
    assert ages, f"no records arrived in {table} after the first {_SKIPPED_S} seconds"
    return ages


def main(arguments: Sequence[str]) -> int:
    """Run all measurements and print one line of JSON, even after a failure."""
    worker = Worker(json.loads(arguments[0]))
    try:
        worker.run()
    finally:
        print(json.dumps({"turns": worker.turns, "ages_s": worker.ages_s}), flush=True)
    worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
