"""A streaming query as its own process: a stream copied by one of Spark's own sinks, for ever.

Run as ``stream_driver.py JSON``; a line of JSON on standard input says which query, and may come
much later, to a driver that was started before it was needed. A query that fails (the broker is
gone, its planner was killed) is started again from its checkpoint in the same JVM; SIGTERM ends it
cleanly. Two sinks: Spark's files, in a session that starts as quickly as one can, or a Delta table,
in a session of ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

COLUMNS = (
    "partition,offset,timestamp,key,value,headers,subject,leader_epoch,reply_subject,correlation_id"
)
MASTER = "local[2,4]"  # four attempts a task: a worker that is killed is Spark's to replace
_AGAIN_S = (0.3, 15.0)  # until a failed query starts again: at first, at most
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing"


def jvm_options(archive: str, *, make: bool) -> str:
    """Return what makes a JVM start with little CPU: one compiler, and classes loaded before."""
    use = "ArchiveClassesAtExit" if make else "SharedArchiveFile"
    return (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable -XX:{use}={archive}"
    )


def lean_settings(java_options: str) -> dict[str, str]:
    """Return the settings of a session whose driver is killed every few seconds."""
    from spark_jobs.session import LOG4J

    log4j = f"-Dlog4j2.configurationFile={LOG4J.as_uri()}"
    return {
        "spark.driver.extraJavaOptions": f"{java_options} {log4j}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Interpreting a projection costs less than compiling it for a handful of batches.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # The default one starts a process for each file that it looks at.
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"{_MANAGER}.FileSystemBasedCheckpointFileManager"
        ),
    }


def main(arguments: list[str]) -> int:
    """Run until SIGTERM. One line of JSON on stdout for each event."""
    from pyspark.errors import PySparkException

    wanted: dict[str, Any] = json.loads(arguments[0])
    ending = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ending.set()

    signal.signal(signal.SIGTERM, end)
    spark = _session(wanted)
    _stream(spark, wanted, records_per_trigger=1).load()  # finds the source, which takes a while
    _say(event="ready", pid=os.getpid())
    line = sys.stdin.readline()
    if not line.strip():
        return 0
    wanted |= json.loads(line)
    rows = _stream(spark, wanted, wanted["records_per_trigger"]).load()
    writer = (
        rows.writeStream.format("delta" if wanted["sink"] == "delta" else "parquet")
        .option("checkpointLocation", wanted["checkpoint"])
        .option("path", wanted["copy"])
        .trigger(processingTime="100 milliseconds")
    )
    pause_s = _AGAIN_S[0]
    while not ending.is_set():
        _say(event="starting")
        try:
            query = writer.start()
            while not ending.is_set() and not query.awaitTermination(1):
                if query.lastProgress is not None:
                    pause_s = _AGAIN_S[0]
            if ending.is_set():
                query.stop()
        except PySparkException as error:
            _say(event="failed", error=str(error)[:4000])
            # Spark gives a new planner ten seconds; on a busy machine hurry makes that too few.
            ending.wait(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_S[1])
    spark.stop()
    return 0


def _stream(
    spark: SparkSession, wanted: dict[str, Any], records_per_trigger: int
) -> DataStreamReader:
    return (
        spark.readStream.format("headwater")
        .option("server", wanted["server"])
        .option("subscribe", wanted["stream"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(records_per_trigger))
        .option("columns", COLUMNS)
    )


def _session(wanted: dict[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    java_options = jvm_options(wanted["archive"], make=wanted["make_archive"])
    if wanted["sink"] == "delta":
        from spark_jobs.session import build_session

        return build_session("crash stream", MASTER, conf=lean_settings(java_options))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = sys.executable
    builder = SparkSession.builder.appName("crash stream").master(MASTER)
    for name, value in lean_settings(java_options).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
