"""Spark writes into streams of a real broker: batch and streaming, repeated, refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    SchemaMismatchError,
    UnknownPartitionError,
    UnknownStreamError,
)
from headwater.client import Client
from projectfiles import ROOT
from simkit.brokers.served_broker import served_disk_broker
from spark_jobs.failures import translated, typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(500)]

ROWS = 40_000  # more than two cuts of a task


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for this file; each test has a stream of its own."""
    with served_disk_broker(tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    """A client of that broker."""
    with Client(server) as found:
        yield found


def write(rows: DataFrame, server: str, stream: str, **options: str) -> None:
    """Write a DataFrame; our typed error comes out."""
    with translated():
        (
            rows.write.format("headwater")
            .options(server=server, stream=stream, **options)
            .mode("append")
            .save()
        )


def values(client: Client, stream: str, partition: int = 0) -> list[Any]:
    """Return the values of a partition, in order."""
    with client.fetch(stream, partition, columns=["value"]) as fetch:
        return [value for piece in fetch for value in piece.batch.column(0).to_pylist()]


def test_every_column_arrives(spark: SparkSession, client: Client, server: str) -> None:
    """Keys choose the partition, a chosen partition wins, a null value is a tombstone."""
    client.create_stream("columns", partitions=3, tiering=False)
    when = datetime(2026, 3, 4, 5, 6, 7, 890, tzinfo=UTC)
    rows = spark.createDataFrame(
        [
            ("k", "text", [("a", b"1"), ("a", None)], "columns.2", when, None),
            ("k", None, None, None, None, 2),
        ],
        "key string, value string, headers array<struct<key:string,value:binary>>, "
        "subject string, timestamp timestamp, partition int",
    )
    write(rows.coalesce(1), server, "columns")

    names = ["key", "value", "headers", "subject", "timestamp"]
    found = {}
    for partition in range(3):
        with client.fetch("columns", partition, columns=names) as fetch:
            found[partition] = [row for piece in fetch for row in piece.batch.to_pylist()]
    first = found.pop(zlib.crc32(b"k") % 3)[0]
    assert (first["key"], first["value"], first["subject"]) == (b"k", b"text", "columns.2")
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert first["timestamp"] == when
    assert [row["value"] for row in found[2]] == [None]


def test_a_batch_write_repeated_under_its_key_stores_nothing_twice(
    spark: SparkSession, client: Client, server: str
) -> None:
    """Two tasks of more than one cut; without the key it is another write."""
    client.create_stream("repeated", partitions=2, tiering=False)
    rows = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        write(rows, server, "repeated", idempotenceKey="load of March")
    half = ROWS // 2
    assert values(client, "repeated", 0) == [str(n).encode() for n in range(half)]
    assert values(client, "repeated", 1) == [str(n).encode() for n in range(half, ROWS)]

    write(rows, server, "repeated")
    assert client.describe("repeated").records_count == 2 * ROWS


def test_other_rows_under_a_known_key_are_refused(
    spark: SparkSession, client: Client, server: str
) -> None:
    """A key that is used again by mistake must not swallow records."""
    client.create_stream("mistaken", tiering=False)
    write(spark.sql("SELECT 'one' AS value"), server, "mistaken", idempotenceKey="k")
    with pytest.raises(InvalidRequestError, match="with other rows"):
        write(spark.sql("SELECT 'two' AS value"), server, "mistaken", idempotenceKey="k")
    assert values(client, "mistaken") == [b"one"]


def test_a_re_run_micro_batch_stores_nothing_twice(
    spark: SparkSession, client: Client, server: str, tmp_path: Path
) -> None:
    """Without the newest commit file a checkpoint is that of a driver killed just before it."""
    client.create_stream("streamed", tiering=False)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text(
            "".join(f"{number}-{line:05}\n" for line in range(100))
        )

    def run() -> None:
        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(source))
            .writeStream.format("headwater")
            .options(server=server, stream="streamed", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    once = sorted(values(client, "streamed"))
    assert len(set(once)) == len(once) == 300

    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    assert newest.exists()
    assert sorted(values(client, "streamed")) == once

    (source / "3.txt").write_text("after the restart\n")
    run()
    assert values(client, "streamed")[-1] == b"after the restart"
    assert len(values(client, "streamed")) == 301


def test_a_failed_first_attempt_is_completed_by_the_second(
    client: Client, server: str, tmp_path: Path
) -> None:
    """Spark itself retries the task, whose first attempt died after two of its cuts were stored."""
    client.create_stream("retried", tiering=False)
    program = tmp_path / "retry.py"
    program.write_text(_RETRY_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), server, str(ROWS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"attempts": 2}
    assert values(client, "retried") == [str(number).encode() for number in range(ROWS)]


_RETRY_PROGRAM = '''
"""One task that fails at its end in the first attempt; the master allows three."""
import json
import sys
import tempfile
from pathlib import Path

from spark_jobs.session import build_session

server, rows_count = sys.argv[1], int(sys.argv[2])
marks = tempfile.mkdtemp()


def fail_at_first(batches):
    from pyspark import TaskContext

    attempt = TaskContext.get().attemptNumber()
    (Path(marks) / str(attempt)).touch()
    yield from batches
    if attempt == 0:
        raise RuntimeError("the first attempt ends here")


spark = build_session("retry", "local[1,3]", conf={"spark.driver.memory": "700m"})
rows = spark.range(0, rows_count, 1, 1).selectExpr("CAST(id AS STRING) AS value")
rows = rows.mapInArrow(fail_at_first, rows.schema)
rows.write.format("headwater").options(server=server, stream="retried").mode("append").save()
print(json.dumps({"attempts": len(list(Path(marks).iterdir()))}))
spark.stop()
'''


@pytest.mark.parametrize(
    ("sql", "options", "error", "text"),
    [
        ("SELECT 1 AS value", {}, SchemaMismatchError, "value has type int"),
        ("SELECT 'k' AS key", {}, SchemaMismatchError, "needs the column value"),
        ("SELECT 'v' AS value, 1L AS offset", {}, SchemaMismatchError, "no column 'offset'"),
        ("SELECT 'v' AS value", {"stream": "nobody"}, UnknownStreamError, "nobody"),
        ("SELECT 'v' AS value", {"idempotencyKey": "k"}, InvalidRequestError, "did you mean"),
        ("SELECT 'v' AS value, 9 AS partition", {}, UnknownPartitionError, "partition 9"),
    ],
)
def test_a_wrong_write_is_refused_with_its_typed_error(
    spark: SparkSession,
    client: Client,
    server: str,
    sql: str,
    options: dict[str, str],
    error: type[HeadwaterError],
    text: str,
) -> None:
    """Columns, options and streams at planning, poison rows in their task; nothing is stored."""
    client.create_stream("refusing", tiering=False)
    with pytest.raises(error, match=text):
        write(spark.sql(sql), server, **{"stream": "refusing", **options})
    assert client.describe("refusing").records_count == 0


def test_a_log_is_never_overwritten(spark: SparkSession, client: Client, server: str) -> None:
    """Mode overwrite would delete history, so a stream refuses it."""
    client.create_stream("kept", tiering=False)
    rows = spark.sql("SELECT 'v' AS value")
    save = rows.write.format("headwater").options(server=server, stream="kept").mode("overwrite")
    _refused(save.save)


def test_complete_mode_is_refused(
    spark: SparkSession, client: Client, server: str, tmp_path: Path
) -> None:
    """It would write every group again with each batch."""
    client.create_stream("kept", tiering=False)
    counts = (
        spark.readStream.format("rate")
        .load()
        .groupBy("value")
        .count()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    query = (
        counts.writeStream.format("headwater")
        .outputMode("complete")
        .options(server=server, stream="kept", checkpointLocation=str(tmp_path / "c"))
        .trigger(availableNow=True)
    )
    _refused(lambda: query.start().awaitTermination())


def _refused(action: Callable[[], object]) -> None:
    with pytest.raises(Exception, match="accepts only mode append") as caught:
        action()
    assert isinstance(typed(caught.value), InvalidRequestError)
