"""`readStream.format("headwater")` in a real Spark: restart, seam, ceilings, limits, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from broker.errors import StreamRecreatedError
from broker.model.offsets import Offset
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served
from spark_jobs.failures import typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def publish(served: Served, stream: str, batch: pa.RecordBatch, partition: int = 0) -> None:
    """Store a batch in the broker in memory."""
    with Client(served.server) as client, client.producer(stream, partition) as producer:
        producer.send(batch)


class Sink:
    """The rows that `foreachBatch` got, by the number of the batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Keep one batch; a repeated one replaces itself."""
        self.batches[number] = sorted(tuple(row) for row in rows.collect())

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """All rows, as an idempotent sink would have them."""
        return sorted(row for rows in self.batches.values() for row in rows)


def source(spark: SparkSession, served: Served, **options: Any) -> DataFrame:
    """Open the streaming source on stream `s`, from its beginning."""
    given = {"subscribe": "s", "startingOffsets": "earliest", "columns": "partition,offset"}
    return (
        spark.readStream.format("headwater")
        .options(server=served.server, **{**given, **options})
        .load()
    )


@contextmanager
def running(rows: DataFrame, sink: Sink, checkpoint: Path) -> Iterator[StreamingQuery]:
    """Run a query while the block lasts."""
    query = (
        rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        yield query
    finally:
        query.stop()


def drain(rows: DataFrame, sink: Sink, checkpoint: Path) -> StreamingQuery:
    """Run a query to the end of what is committed now."""
    query: StreamingQuery = (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_history_then_tail_across_restarts(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    """Cold rows, then hot ones, in one sequence; what arrives between runs is not lost."""
    client = Client(served.server)
    client.create_stream("s", partitions=2)
    publish(served, "s", numbered(0, 100))
    publish(served, "s", numbered(0, 30), 1)
    served.broker.ship("s", 0, Offset(60), files=2)
    sink = Sink()

    drain(source(spark, served, maxOffsetsPerTrigger=50), sink, tmp_path / "c")
    assert sink.rows == [(0, n) for n in range(100)] + [(1, n) for n in range(30)]
    assert all(len(rows) <= 50 for rows in sink.batches.values())

    publish(served, "s", numbered(100, 20))
    served.broker.ship("s", 0, Offset(110))
    with running(source(spark, served), sink, tmp_path / "c") as query:
        query.processAllAvailable()
        publish(served, "s", numbered(120, 5))
        query.processAllAvailable()
        progress = query.lastProgress

    assert sink.rows == [(0, n) for n in range(125)] + [(1, n) for n in range(30)]
    assert progress is not None
    assert '"0": 125' in str(progress["sources"][0]["latestOffset"]).replace("'", '"')


def test_a_created_again_stream_is_refused(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    """A checkpoint of one stream never continues with another of the same name."""
    client = Client(served.server)
    client.create_stream("s")
    publish(served, "s", numbered(0, 10))
    sink = Sink()
    drain(source(spark, served), sink, tmp_path / "c")
    client.delete_stream("s")
    client.create_stream("s")
    publish(served, "s", numbered(0, 20))

    with pytest.raises((StreamingQueryException, PySparkException)) as caught:
        drain(source(spark, served), sink, tmp_path / "c")

    assert isinstance(typed(caught.value), StreamRecreatedError)
    assert sink.rows == [(0, n) for n in range(10)]


def test_ranges_instead_of_records(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    """`emit=ranges` gives one row per slice, and no record passes through Spark."""
    uuid = Client(served.server).create_stream("s").uuid
    publish(served, "s", numbered(0, 100))
    sink = Sink()
    options: dict[str, Any] = {"emit": "ranges", "maxRecordsPerPartition": 40}
    options["server"] = served.server

    rows = spark.readStream.format("headwater").options(
        subscribe="s", startingOffsets="earliest", **options
    )
    drain(rows.load(), sink, tmp_path / "c")
    batch = spark.read.format("headwater").options(subscribe="s", **options).load()

    expected = [("s", uuid, 0, 0, 33), ("s", uuid, 0, 33, 66), ("s", uuid, 0, 66, 100)]
    assert sink.rows == expected
    assert sorted(tuple(row) for row in batch.collect()) == expected


def test_kafkas_columns_and_several_streams(spark: SparkSession, served: Served) -> None:
    """On request the columns are those of Spark's Kafka source; ours include the stream's name."""
    client = Client(served.server)
    for name in ("s", "t"):
        client.create_stream(name)
    publish(served, "s", numbered(0, 3))
    publish(served, "t", numbered(0, 2))
    reader = spark.read.format("headwater").option("server", served.server)

    kafka = reader.options(subscribe="s,t", columns="kafka", includeHeaders="true").load()
    ours = spark.read.format("headwater").options(server=served.server, subscribe="s,t").load()

    assert kafka.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = sorted((row.topic, row.offset, row.timestampType) for row in kafka.collect())
    assert rows == [("s", 0, 0), ("s", 1, 0), ("s", 2, 0), ("t", 0, 0), ("t", 1, 0)]
    assert sorted(row.stream for row in ours.select("stream").collect()) == list("ssstt")


def test_a_cut_is_read_exactly(spark: SparkSession, served: Served) -> None:
    """Later records, and tiering since, make no difference."""
    client = Client(served.server)
    client.create_stream("s")
    publish(served, "s", numbered(0, 50))
    text = client.cut("s").save()
    publish(served, "s", numbered(50, 50))
    served.broker.ship("s", 0, Offset(100))

    rows = spark.read.format("headwater").options(server=served.server, cut=text).load()

    assert sorted(row.offset for row in rows.collect()) == list(range(50))
