"""The appender on Spark's executors, and tables that Spark made, changes and reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value

from broker.errors import (
    GapError,
    HeadwaterError,
    SchemaMismatchError,
    TableMismatchError,
)
from simkit.tier.append_rig import AppendRig, append_rig, data_files, ranges, referenced
from spark_jobs.tables import Appender, Target
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

# Workers cannot import a test; a real transform is in a package and travels by its name.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Parsed:
    """Numbers, their text, and a group to partition by."""

    output_schema = pa.schema(
        [("number", pa.int32()), ("text", pa.large_string()), ("grp", pa.string())]
    )
    columns = ("value",)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See the class."""
        numbers = [int(value) for value in rows.column("value").to_pylist()]
        return pa.RecordBatch.from_pydict(
            {
                "number": numbers,
                "text": [f"n{number}" for number in numbers],
                "grp": [None if number % 3 == 0 else f"g={number % 3}/ü" for number in numbers],
            },
            schema=self.output_schema,
        )


class Failing(Parsed):
    """Cannot be run."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See the class."""
        raise GapError("seen on an executor", partition=7)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AppendRig]:
    """A stream of one partition with 12,000 records."""
    with append_rig(str(tmp_path / "lake")) as found:
        for _ in range(12):
            found.fill(1000)
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A table that does not exist yet."""
    return Target.at(str(tmp_path / "tables" / "out"))


def read(spark: SparkSession, target: Target) -> DataFrame:
    """Return the table as Spark reads it."""
    return spark.read.format("delta").load(str(target.store.root))


def test_executors_write_what_spark_reads_skips_and_optimizes(
    spark: SparkSession, rig: AppendRig, target: Target
) -> None:
    """Through OPTIMIZE the watermark stays good; a RESTORE by Spark is found."""
    place = f"delta.`{target.store.root}`"
    appender = Appender(spark, target, rig.source, Parsed())

    done = appender.append(ranges((0, 11000)), batch_id="a")
    assert appender.append(ranges((0, 12000)), batch_id="b").rows_count == 1000
    spark.sql(f"OPTIMIZE {place}").collect()
    assert appender.append(ranges((0, 12000)), batch_id="b").ranges == {}

    rows = read(spark, target)
    assert done.rows_count == 11000
    right = "count_if(number = offset AND text = concat('n', offset))"
    assert tuple(rows.selectExpr("count(*)", right).collect()[0]) == (12000, 12000)
    assert [row.number for row in rows.where("offset = 11500").collect()] == [11500]
    spark.sql(f"RESTORE {place} TO VERSION AS OF 1").collect()
    with pytest.raises(TableMismatchError):
        appender.watermarks()


def test_executors_find_credentials_where_they_run(
    spark: SparkSession, rig: AppendRig, moto_env: dict[str, str]
) -> None:
    """The table is in S3; the tasks got everything but the keys."""
    store = StoreConfig.from_env("s3://headwater-tests/appended-to", moto_env)
    target = Target(store=store, partition_by=("partition",))

    done = Appender(spark, target, rig.source).append(ranges((0, 12000)), batch_id="a")

    assert done.rows_count == 12000
    rows = spark.read.format("delta").load("s3a://headwater-tests/appended-to")
    assert rows.where("cast(cast(value AS string) AS bigint) = offset").count() == 12000
    assert data_files(target) == referenced(target)


def test_an_executors_error_arrives_typed_and_its_files_are_gone(
    spark: SparkSession, rig: AppendRig, target: Target
) -> None:
    """A task fails, nothing is committed, the append can be made again."""
    with pytest.raises(GapError) as failed:
        Appender(spark, target, rig.source, Failing()).append(ranges((0, 12000)), batch_id="a")

    assert failed.value.partition == 7
    assert data_files(target) == set()
    done = Appender(spark, target, rig.source, Parsed()).append(ranges((0, 12000)), batch_id="a")
    assert done.rows_count == 12000
    assert data_files(target) == referenced(target)


def test_a_users_partitioned_table_with_more_and_wider_columns(
    spark: SparkSession, rig: AppendRig, target: Target
) -> None:
    """Columns go by name and without case, narrow values widen, what we lack is null."""
    spark.sql(
        "CREATE TABLE delta.`" + str(target.store.root) + "` "
        "(Number BIGINT, note STRING, grp STRING, text STRING) USING delta PARTITIONED BY (grp) "
        "TBLPROPERTIES (delta.appendOnly = true, delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"INSERT INTO delta.`{target.store.root}` VALUES (-1, 'theirs', 'x', 'y')").collect()
    appender = Appender(spark, target, rig.source, Parsed())

    appender.append(ranges((0, 12000)), batch_id="a")

    rows = read(spark, target)
    assert rows.columns == ["Number", "note", "grp", "text"]
    found = {row[0]: row[1] for row in rows.groupBy("grp").count().collect()}
    assert found == {None: 4000, "g=1/ü": 4000, "g=2/ü": 4000, "x": 1}
    assert rows.where("note IS NULL AND concat('n', Number) = text").count() == 12000
    assert rows.where("grp = 'g=2/ü' AND Number = 5").count() == 1
    changed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 2)
        .load(str(target.store.root))
    )
    assert changed.where("_change_type = 'insert'").count() == 12000


def test_columns_are_added_when_asked_for(
    spark: SparkSession, rig: AppendRig, target: Target
) -> None:
    """The position columns too: then the table can be counted. Without asking, nothing is added."""
    spark.sql(f"CREATE TABLE delta.`{target.store.root}` (number BIGINT) USING delta")
    spark.sql(f"INSERT INTO delta.`{target.store.root}` VALUES (-1)").collect()
    with pytest.raises(SchemaMismatchError) as refused:
        Appender(spark, target, rig.source, Parsed()).append(ranges((0, 10)), batch_id="a")
    assert refused.value.column == "text"

    growing = Target(store=target.store, evolve="add")
    for end in (5, 10):
        appender = Appender(spark, growing, rig.source, Parsed())
        appender.append(ranges((0, end)), batch_id="a")

    rows = read(spark, target)
    assert rows.where("offset IS NULL").collect()[0][0] == -1
    assert sorted(rows.columns) == ["grp", "number", "offset", "partition", "text"]
    assert rows.where("number = offset").count() == 10


@pytest.mark.parametrize(
    ("columns", "more", "error", "what"),
    [
        ("number SMALLINT, text STRING, grp STRING", "", SchemaMismatchError, "number"),
        ("number INT, text BINARY, grp STRING", "", SchemaMismatchError, "text"),
        (
            "number INT, text STRING, grp STRING, must INT NOT NULL",
            "",
            SchemaMismatchError,
            "must",
        ),
        ("number INT, text STRING, grp STRING NOT NULL", "", SchemaMismatchError, "grp"),
        (
            "number INT, text STRING, grp STRING, twice INT GENERATED ALWAYS AS (number * 2)",
            "",
            TableMismatchError,
            "twice",
        ),
        (
            "number INT, text STRING, grp STRING",
            "TBLPROPERTIES (delta.columnMapping.mode = 'name')",
            TableMismatchError,
            "column mapping",
        ),
        (
            "number INT, text STRING, grp STRING",
            "TBLPROPERTIES (delta.enableDeletionVectors = true)",
            TableMismatchError,
            "deletionVectors",
        ),
        (
            "number INT, text STRING, grp STRING, CONSTRAINT small CHECK (number < 5)",
            "",
            HeadwaterError,
            "small",
        ),
    ],
)
def test_a_table_that_we_cannot_append_to_exactly_is_refused(
    spark: SparkSession,
    rig: AppendRig,
    target: Target,
    columns: str,
    more: str,
    error: type[HeadwaterError],
    what: str,
) -> None:
    """The error names the column or the feature, and nothing was committed."""
    constraint = ""
    if "CONSTRAINT" in columns:
        columns, _, constraint = columns.partition(", CONSTRAINT small ")
    place = f"delta.`{target.store.root}`"
    spark.sql(f"CREATE TABLE {place} ({columns}) USING delta {more}")
    if constraint:
        spark.sql(f"ALTER TABLE {place} ADD CONSTRAINT small {constraint}")
    before = spark.sql(f"DESCRIBE HISTORY {place}").count()

    with pytest.raises(error, match=what):
        Appender(spark, target, rig.source, Parsed()).append(ranges((0, 10)), batch_id="a")

    assert spark.sql(f"DESCRIBE HISTORY {place}").count() == before
