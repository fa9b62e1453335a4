"""Streams as tables of a catalog, in plain ``spark.sql``: fresh at each statement, and exact.

The JVM reads the files of the table, or Python does: what depends on that is tested with both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

import headwater
from broker.errors import InvalidCutError, ObjectMissingError
from broker.model.offsets import Offset
from headwater import cut
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served
from spark_jobs import jvm
from spark_jobs.failures import translated, typed
from spark_jobs.source.columns import ROW_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
RENEWAL = "io.headwater.spark.leaseRenewalMs"
by_both = pytest.mark.parametrize("catalog", ["jvm", "python"], indirect=True)


@pytest.fixture
def catalog(
    served: Served, catalog_of: Callable[[str], str], request: pytest.FixtureRequest
) -> str:
    """A catalog whose stream ``s`` has two partitions: 30 and 20 records cold, 12 and 5 hot."""
    with Client(served.server) as client:
        client.create_stream("s", partitions=2)
    publish(served, 0, 42)
    publish(served, 1, 25)
    served.broker.ship("s", 0, Offset(30), files=2)
    served.broker.ship("s", 1, Offset(20))
    return catalog_of(getattr(request, "param", "jvm"))


def publish(served: Served, partition: int, many: int, start: int = 0) -> None:
    """Store records whose values are their numbers."""
    with Client(served.server) as client, client.producer("s", partition) as producer:
        producer.send(numbered(start, many))


def counts(spark: SparkSession, statement: str) -> list[int]:
    """Return the one row of numbers that a statement has."""
    return list(spark.sql(statement).collect()[0])


def test_each_statement_reads_what_is_committed_now(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """Both tiers, each record once; the next statement sees more; a DataFrame stays as it was."""
    rows = spark.sql(f"SELECT * FROM {catalog}.s")
    assert rows.columns == list(ROW_COLUMNS)
    assert sorted((row.partition, row.offset, int(row.value)) for row in rows.collect()) == [
        *((0, number, number) for number in range(42)),
        *((1, number, number) for number in range(25)),
    ]
    publish(served, 1, 3, start=25)
    assert rows.count() == 67
    assert counts(spark, f"SELECT count(*), max(offset) FROM {catalog}.s") == [70, 41]


@by_both
def test_a_statement_gets_the_rows_and_the_columns_that_it_asks_for(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """Filters and columns spare work and change no row; a moment may lie within a file."""
    table = spark.table(f"{catalog}.s")
    every = headwater.read(spark, "s", server=served.server).collect()
    late = every[29].timestamp
    asked: tuple[tuple[str, list[str], Callable[[Row], bool]], ...] = (
        (
            "partition = 0 AND offset >= 14 AND offset < 35",
            ["value"],
            lambda row: row.partition == 0 and 14 <= row.offset < 35,
        ),
        (
            "partition IN (1, 7) AND offset > 18",
            ["headers", "partition", "subject", "offset"],
            lambda row: row.partition == 1 and row.offset > 18,
        ),
        (
            f"timestamp > '{late}' OR offset = 41",
            ["timestamp"],
            lambda row: row.timestamp > late or row.offset == 41,
        ),
    )
    for where, columns, holds in asked:
        found = table.where(where).select(columns).collect()
        expected = [tuple(row[name] for name in columns) for row in every if holds(row)]
        assert sorted(map(tuple, found)) == sorted(expected), where
    assert table.count() == len(every) == 67, "no scan before has left its filters"
    within = f'SELECT value FROM {catalog}.s VERSION AS OF \'{{"0": 17, "1": 3}}\''
    assert sorted(int(row.value) for row in spark.sql(within).collect()) == sorted(
        [*range(17), *range(3)]
    )


@by_both
def test_a_filter_on_times_loses_no_row_after_an_optimize(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """Spark's statistics are whole milliseconds, rounded down; times of records are not."""
    second_us = 1_700_000_000_000_000
    with Client(served.server) as client:
        client.create_stream("t")
        with client.producer("t") as producer:
            for micros in (1, 123_399, 123_400, 123_456):
                producer.send([{"value": b"v", "timestamp": second_us + micros}])
    served.broker.ship("t", 0, Offset(2))
    served.broker.ship("t", 0, Offset(4))
    spark.sql(f"OPTIMIZE delta.`{served.broker.table('t').store.config.root}`")
    table = f"{catalog}.t WHERE timestamp"
    second = "timestamp_seconds(1700000000)"
    for compared, expected in (
        (f">= {second} + INTERVAL '0.1234' SECOND", [2, 3]),
        (f"> {second} + INTERVAL '0.1234' SECOND", [3]),
        (f"= {second} + INTERVAL '0.123456' SECOND", [3]),
        (f"<= {second} + INTERVAL '0.000001' SECOND", [0]),
        (f"> {second} + INTERVAL '0.123456' SECOND", []),
    ):
        found = spark.sql(f"SELECT offset FROM {table} {compared}").collect()
        assert sorted(row.offset for row in found) == expected, compared


def test_the_plan_says_who_reads_what(spark: SparkSession, catalog: str) -> None:
    """EXPLAIN has the files that are left after the filters, and the columns that are fetched."""

    def scan(of: DataFrame) -> str:
        plan = of._jdf.queryExecution().executedPlan().toString()
        return next(line for line in str(plan).splitlines() if "BatchScan" in line)

    table = spark.table(f"{catalog}.s")
    assert "[offset, value, partition] 1 of 3 files by the JVM, log by Python" in scan(
        table.where("partition = 0 AND offset < 9").select("value")
    )
    assert "0 of 3 files" in scan(table.where("offset >= 30"))


def test_tasks_renew_the_lease_whatever_the_session_says(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """Python renews it for the JVM; a session without vectorized reads gets the same rows."""
    java: Any = spark._jvm
    table = spark.table(f"{catalog}.s")
    (lease_id,) = served.broker.leases
    taken = served.broker.leases[lease_id][1]
    cold = table.where("partition = 1 AND offset < 20")
    assert len(cold.collect()) == 20
    assert served.broker.leases[lease_id][1] == taken, "it is not due"
    java.java.lang.System.setProperty(RENEWAL, "0")
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        assert len(cold.collect()) == 20
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
        java.java.lang.System.clearProperty(RENEWAL)
    assert served.broker.leases[lease_id][1] > taken


def test_a_statement_has_one_moment(spark: SparkSession, catalog: str) -> None:
    """A name that stands twice in a statement is the same rows twice."""
    joined = f"SELECT count(*), count(b.offset) FROM {catalog}.s a FULL JOIN {catalog}.s b"
    assert counts(spark, joined + " USING (partition, offset)") == [67, 67]


def test_the_catalog_lists_its_streams(spark: SparkSession, served: Served, catalog: str) -> None:
    """SHOW TABLES has each stream; a name that is none is Spark's usual error."""
    with Client(served.server) as client:
        client.create_stream("a-b")
    listed = spark.sql(f"SHOW TABLES IN {catalog}").collect()
    assert sorted(row.tableName for row in listed) == ["a-b", "s"]
    assert counts(spark, f"SELECT count(*) FROM {catalog}.`a-b`") == [0]
    with pytest.raises(AnalysisException) as unknown:
        spark.sql(f"SELECT 1 FROM {catalog}.t")
    assert unknown.value.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"


def test_versions_and_times_are_those_of_as_of(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """VERSION AS OF takes a saved cut or offsets, TIMESTAMP AS OF a time; both are exact."""
    saved = cut("s", server=served.server).save()
    middle = datetime.fromtimestamp(time.time(), UTC).isoformat()
    publish(served, 0, 8, start=42)

    def at(moment: str) -> list[int]:
        return counts(spark, f"SELECT count(*) FROM {catalog}.s {moment}")

    assert at(f"VERSION AS OF '{saved}'") == [67]
    assert at('VERSION AS OF \'{"0": 31, "1": 20}\'') == [51]
    assert at(f"TIMESTAMP AS OF '{middle}'") == [67]
    assert at("") == [75]
    assert spark.read.option("versionAsOf", saved).table(f"{catalog}.s").count() == 67
    with pytest.raises(PySparkException) as damaged:
        at(f"VERSION AS OF '{saved[:-3]}'")
    assert isinstance(typed(damaged.value), InvalidCutError)


def test_a_stream_follows_a_table_from_where_it_is_told(
    spark: SparkSession, catalog: str, tmp_path: Path
) -> None:
    """Options of readStream reach the source: all records arrive, each once."""
    reader = spark.readStream.option("startingOffsets", "earliest")
    query = (
        reader.table(f"{catalog}.s")
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("parquet")
        .start(str(tmp_path / "copy"))
    )
    query.awaitTermination()
    copied = spark.read.parquet(str(tmp_path / "copy"))
    assert (copied.count(), copied.select("partition", "offset").distinct().count()) == (67, 67)


def test_the_log_as_columns_is_the_log_as_rows(
    spark: SparkSession, served: Served, catalog: str, tmp_path: Path
) -> None:
    """The JVM takes Python's batches as they come: every type, null and length."""
    headers = [None, [], [{"key": "h", "value": b""}, {"key": "", "value": None}]]
    records = [
        {
            "key": None if number % 3 else b"k%d" % number,
            "value": (None, b"", b"v" * (number % 700))[number % 7 % 3],
            "headers": headers[number % 5 % 3],
            "correlation_id": None if number % 2 else f"c\u00e4{number}",
        }
        for number in range(6_000)
    ]
    with Client(served.server) as client:
        client.create_stream("t", tiering=False)
        with client.producer("t") as producer:
            for start in range(0, len(records), 500):
                producer.send(records[start : start + 500])
    given = {"server": served.server, "stream": "t"}
    rows = spark.read.format("headwater").options(**given).load().orderBy("offset").collect()
    columns = spark.table(f"{catalog}.t")
    assert "ColumnarToRow" in columns._jdf.queryExecution().executedPlan().toString()
    assert columns.orderBy("offset").collect() == rows
    assert [row.value for row in rows] == [one["value"] for one in records]
    assert len(columns.limit(700).collect()) == 700
    held = columns.cache()
    assert held.count() == held.join(held, "offset").count() == 6_000
    held.unpersist()
    chosen = {"columns": "value,headers,offset,topic", "startingOffsets": "earliest"}
    query = (
        spark.readStream.format(jvm.SOURCE_CLASS)
        .options(**given, **chosen)
        .load()
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("parquet")
        .start(str(tmp_path / "copy"))
    )
    query.awaitTermination()
    copied = spark.read.parquet(str(tmp_path / "copy")).orderBy("offset").collect()
    assert [tuple(row) for row in copied] == [
        (row.value, row.headers, row.offset, "t") for row in rows
    ]


def test_what_a_table_cannot_do_is_refused(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """Nothing is written, dropped or read beyond its table by way of the catalog."""
    for statement in (
        f"INSERT INTO {catalog}.s SELECT * FROM {catalog}.s",
        f"DROP TABLE {catalog}.s",
        f"ALTER TABLE {catalog}.s ADD COLUMN x INT",
        f"SELECT * FROM {catalog}.s WITH (columns = 'offset')",
    ):
        with pytest.raises(PySparkException):
            spark.sql(statement).collect()
    assert counts(spark, f"SELECT count(*) FROM {catalog}.s") == [67]


@by_both
def test_a_table_that_lost_a_file_is_not_read(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """The table is proved for each statement, as headwater.read does, before a row is shown."""
    planned = spark.table(f"{catalog}.s").select("value")
    table = Path(str(served.broker.table("s").store.config.root))
    min(table.glob("partition=0/*.parquet")).unlink()
    with pytest.raises(PySparkException) as missing:
        spark.sql(f"SELECT count(*) FROM {catalog}.s").collect()
    assert isinstance(typed(missing.value), ObjectMissingError)
    with pytest.raises(ObjectMissingError), translated():
        planned.collect()
