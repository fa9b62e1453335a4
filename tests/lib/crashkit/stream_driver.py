"""A streaming query as its own process: a stream into a Delta table by Spark's own sink, for ever.

Run as ``python -m crashkit.stream_driver JSON``. A query that fails (the broker is gone, the store
does not answer) is started again from its checkpoint in the same JVM; SIGTERM ends it cleanly.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from types import FrameType
from typing import Any

COLUMNS = "partition,offset,timestamp,key,value,headers,subject,leader_epoch"
_AGAIN_S = 0.3


def main(arguments: list[str]) -> int:
    """Run until SIGTERM. One line of JSON on stdout for each batch and each failure."""
    from pyspark.errors import PySparkException

    from spark_jobs.session import build_session

    wanted: dict[str, Any] = json.loads(arguments[0])
    ending = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ending.set()

    signal.signal(signal.SIGTERM, end)
    # Four attempts a task: a worker that is killed is Spark's to replace.
    spark = build_session("crash stream", "local[2,4]", conf={"spark.sql.shuffle.partitions": "2"})
    rows = (
        spark.readStream.format("headwater")
        .option("server", wanted["server"])
        .option("subscribe", wanted["stream"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(wanted["records_per_trigger"]))
        .option("columns", COLUMNS)
        .load()
    )
    writer = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", wanted["checkpoint"])
        .option("path", wanted["table"])
        .trigger(processingTime="100 milliseconds")
    )
    while not ending.is_set():
        _say(event="starting")
        try:
            query = writer.start()
            while not ending.is_set() and not query.awaitTermination(1):
                pass
            if ending.is_set():
                query.stop()
        except PySparkException as error:
            _say(event="failed", error=str(error)[:2000])
            ending.wait(_AGAIN_S)
    spark.stop()
    return 0


def _say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
