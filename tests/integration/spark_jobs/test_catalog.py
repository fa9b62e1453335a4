"""Streams as tables of a catalog, in plain ``spark.sql``: fresh at each statement, and exact.

Each test has a catalog of its own name, because Spark keeps a catalog with the settings that it had
at its first use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException

from broker.errors import InvalidCutError, ObjectMissingError
from broker.model.offsets import Offset
from headwater import cut
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served
from spark_jobs import jvm
from spark_jobs.failures import typed
from spark_jobs.source.columns import ROW_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
_NUMBERS = count()


@pytest.fixture
def catalog(spark: SparkSession, served: Served) -> Iterator[str]:
    """A catalog whose stream ``s`` has two partitions: 30 and 20 records cold, 12 and 5 hot."""
    with Client(served.server) as client:
        client.create_stream("s", partitions=2)
    publish(served, 0, 42)
    publish(served, 1, 25)
    served.broker.ship("s", 0, Offset(30), files=2)
    served.broker.ship("s", 1, Offset(20))
    name = f"streams{next(_NUMBERS)}"
    settings = {
        f"spark.sql.catalog.{name}": jvm.CATALOG_CLASS,
        f"spark.sql.catalog.{name}.server": served.server,
    }
    for setting, value in settings.items():
        spark.conf.set(setting, value)
    yield name
    for setting in settings:
        spark.conf.unset(setting)


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


def test_a_table_that_lost_a_file_is_not_read(
    spark: SparkSession, served: Served, catalog: str
) -> None:
    """The table is proved for each statement, as headwater.read does, before a row is shown."""
    table = Path(str(served.broker.table("s").store.config.root))
    min(table.glob("partition=0/*.parquet")).unlink()
    with pytest.raises(PySparkException) as missing:
        spark.sql(f"SELECT count(*) FROM {catalog}.s").collect()
    assert isinstance(typed(missing.value), ObjectMissingError)
