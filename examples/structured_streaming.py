"""Keep a Delta table up to date with a stream, by Structured Streaming.

The query starts at the first record, reads history from the table's files and then the live log, in
one sequence of offsets, each record once. It is stopped and started again here; its checkpoint has
the offset at which it continues. ``headwater job ingest`` does the same with decoding and without
a checkpoint.

Needs ``headwater up`` in another terminal, the extra ``spark`` and Java 17.

Prints::

    first run: 300 rows
    second run: 500 rows, offsets 0 to 499, each once
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import headwater

STREAM = "example_clicks"


def copy_new_records(spark: SparkSession, folder: Path) -> None:
    """Run the query until it has copied what is committed now."""
    clicks = (
        spark.readStream.format("headwater")
        .option("subscribe", STREAM)
        .option("startingOffsets", "earliest")  # used by the first run only
        .load()
    )
    query = (
        clicks.selectExpr("offset", "CAST(value AS STRING) AS page")
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)  # without it the query follows the stream until it is stopped
        .start(str(folder / "table"))
    )
    query.awaitTermination()


def main() -> None:
    """Publish, copy, publish more, copy again."""
    spark = headwater.session("example")
    with headwater.Client() as client, tempfile.TemporaryDirectory() as name:
        if STREAM in [stream.name for stream in client.streams()]:
            client.delete_stream(STREAM)  # left by an earlier run
        client.create_stream(STREAM)
        table = str(Path(name) / "table")

        with client.producer(STREAM) as producer:
            producer.send([f"/page/{number}" for number in range(200)]).result()
            client.tier_flush(STREAM)  # 200 in the table, then 100 in the log: the query reads both
            producer.send([f"/page/{number}" for number in range(200, 300)]).result()
        copy_new_records(spark, Path(name))
        print(f"first run: {spark.read.format('delta').load(table).count()} rows")

        with client.producer(STREAM) as producer:
            producer.send([f"/page/{number}" for number in range(300, 500)]).result()
        copy_new_records(spark, Path(name))
        rows = spark.read.format("delta").load(table)
        low, high, distinct = rows.selectExpr(
            "min(offset)", "max(offset)", "count(DISTINCT offset)"
        ).collect()[0]
        once = "each once" if distinct == rows.count() else "not each once"
        print(f"second run: {rows.count()} rows, offsets {low} to {high}, {once}")
    spark.stop()


if __name__ == "__main__":
    main()
