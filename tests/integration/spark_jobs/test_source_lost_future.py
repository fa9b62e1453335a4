"""A streaming query whose stream was put back to an older copy, with other records since."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from broker.errors import ForeignHistoryError
from headwater.client import Client
from headwater.local.embedded import free_port
from simkit.brokers.served_broker import served_disk_broker
from spark_jobs.failures import typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_ERRORS = (StreamingQueryException, PySparkException)
pytestmark = [pytest.mark.spark, pytest.mark.integration]


def publish(server: str, what: str, count: int) -> None:
    """Store so many records, each with its own value."""
    with Client(server) as client, client.producer("s") as producer:
        producer.send([f"{what} {number}".encode() for number in range(count)]).result(120)


class Sink:
    """A sink that keeps the batches' rows, and fails if a test wants it."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.broken = False

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Keep a batch."""
        if self.broken:
            raise OSError(f"no room for batch {number}")
        self.values += [bytes(row.value) for row in rows.orderBy("offset").collect()]


def drain(spark: SparkSession, server: str, sink: Sink, checkpoint: Path) -> None:
    """Run the query to the end of what is committed now."""
    options: dict[str, Any] = {"subscribe": "s", "startingOffsets": "earliest"}
    rows = spark.readStream.format("headwater").options(server=server, **options).load()
    rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()


@pytest.mark.parametrize("repeated", [False, True], ids=["next batch", "repeated batch"])
def test_a_query_of_a_lost_future_fails_by_name(
    spark: SparkSession, tmp_path: Path, repeated: bool
) -> None:
    """It fails at its restart before a row is read, with a new batch or an unfinished one."""
    folder, older, checkpoint, port = tmp_path / "b", tmp_path / "o", tmp_path / "c", free_port()
    sink = Sink()
    with served_disk_broker(folder, port=port) as server:
        with Client(server) as client:
            client.create_stream("s")
        publish(server, "kept", 40)
        drain(spark, server, sink, checkpoint)
        shutil.copytree(checkpoint, tmp_path / "behind")
    shutil.copytree(folder, older)
    with served_disk_broker(folder, port=port) as server:
        publish(server, "lost", 60)
        sink.broken = repeated
        with pytest.raises(SPARK_ERRORS) if repeated else nullcontext():
            drain(spark, server, sink, checkpoint)
        sink.broken = False
    shutil.rmtree(folder)
    older.rename(folder)
    before = list(sink.values)
    with served_disk_broker(folder, port=port) as server:
        publish(server, "new", 100)
        with pytest.raises(SPARK_ERRORS) as caught:
            drain(spark, server, sink, checkpoint)
        error = typed(caught.value)
        assert isinstance(error, ForeignHistoryError)
        assert "another checkpoint" in error.message
        assert sink.values == before
        behind = Sink()
        drain(spark, server, behind, tmp_path / "behind")
        assert behind.values == [b"new %d" % number for number in range(100)]
