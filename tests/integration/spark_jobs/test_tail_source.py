"""The data source `headwater` in a real Spark: exact rows, exact ranges, typed errors."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

from broker.codec.schema import HEADERS_TYPE
from broker.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    StreamRecreatedError,
    UnknownStreamError,
)
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served
from spark_jobs.failures import translated, typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def publish(served: Served, stream: str, batch: pa.RecordBatch, partition: int = 0) -> None:
    """Store a batch in the broker in memory."""
    with Client(served.server) as client, client.producer(stream, partition) as producer:
        producer.send(batch)


def tail(spark: SparkSession, served: Served, stream: str, **options: Any) -> DataFrame:
    """Open the source."""
    reader = spark.read.format("headwater").option("server", served.server).option("stream", stream)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_every_kind_of_value_comes_back_bit_for_bit(spark: SparkSession, served: Served) -> None:
    """Nulls, empty values, repeated headers, big values and odd bytes survive the way to Spark."""
    Client(served.server).create_stream("odd", subject="odd.>")
    big = bytes(range(256)) * 4096
    headers = [
        None,
        [],
        [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}, {"key": "b", "value": None}],
        [{"key": "ü", "value": b"\x00\xff"}],
    ]
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None, b"", b"k\x00", b"x"], pa.binary()),
            "value": pa.array([None, b"", big, b"\xff\xfe"], pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array([0, 1, 1_700_000_000_123_456, 253_402_300_799_999_999]),
            "subject": pa.array(["odd.b", "odd.a", None, "odd.ü"]),
            "correlation_id": pa.array([None, "c", None, None], pa.string()),
        }
    )
    publish(served, "odd", batch)

    rows = tail(spark, served, "odd").orderBy("offset").collect()

    assert [row.offset for row in rows] == [0, 1, 2, 3]
    assert [row.key for row in rows] == [None, b"", b"k\x00", b"x"]
    assert [row.value for row in rows] == [None, b"", big, b"\xff\xfe"]
    found = [None if row.headers is None else [h.asDict() for h in row.headers] for row in rows]
    assert found == headers
    assert [row.subject for row in rows] == ["odd.b", "odd.a", "odd.>", "odd.ü"]
    assert [row.correlation_id for row in rows] == [None, "c", None, None]
    assert rows[2].timestamp.astimezone(dt.UTC) == dt.datetime(
        2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC
    )
    micros = tail(spark, served, "odd").orderBy("offset").select(F.unix_micros("timestamp"))
    assert [row[0] for row in micros.collect()] == batch.column("timestamp").to_pylist()


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ("earliest", "latest", range(100)),
        ('{"0": 7}', "latest", range(7, 100)),
        ('{"0": -2}', '{"0": 13}', range(13)),
        ('{"0": 40}', '{"0": 41}', range(40, 41)),
        ('{"0": 40}', '{"0": 40}', range(0)),
        ("latest", "latest", range(0)),
    ],
)
def test_a_range_is_half_open_and_exact(
    spark: SparkSession, served: Served, starting: str, ending: str, expected: range
) -> None:
    """Bounds in numbers and in words give exactly the offsets that they name."""
    Client(served.server).create_stream("s")
    for start in range(0, 100, 10):
        publish(served, "s", numbered(start, 10))

    rows = tail(spark, served, "s", startingOffsets=starting, endingOffsets=ending).collect()

    assert sorted(row.offset for row in rows) == list(expected)
    assert all(int(row.value) == row.offset for row in rows)


def test_large_ranges_are_split_and_partitions_kept_apart(
    spark: SparkSession, served: Served
) -> None:
    """Slices of two partitions are read by tasks of their own, and nothing is lost at a border."""
    Client(served.server).create_stream("s", subject="s", partitions=2)
    publish(served, "s", numbered(0, 1000), 0)
    publish(served, "s", numbered(0, 301), 1)

    rows = tail(spark, served, "s", maxRecordsPerPartition=100)

    assert rows.rdd.getNumPartitions() == 10 + 4
    counts = rows.groupBy("partition").agg(
        F.count("*"), F.min("offset"), F.max("offset"), F.countDistinct("offset")
    )
    assert sorted(tuple(row) for row in counts.collect()) == [
        (0, 1000, 0, 999, 1000),
        (1, 301, 0, 300, 301),
    ]


def test_columns_and_a_schema_are_projections(spark: SparkSession, served: Served) -> None:
    """Option `columns` and a schema of the user give these columns in this order."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 3))

    by_option = tail(spark, served, "s", columns="value, offset")
    reader = spark.read.format("headwater").schema("`offset` bigint, `partition` int")
    by_schema = reader.options(server=served.server, stream="s").load()

    assert by_option.columns == ["value", "offset"]
    assert [row.offset for row in by_option.collect()] == [0, 1, 2]
    assert [tuple(row) for row in by_schema.collect()] == [(0, 0), (1, 0), (2, 0)]


def test_a_dataframe_is_pinned(spark: SparkSession, served: Served) -> None:
    """Records that arrive after the first look do not change the DataFrame."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 10))
    rows = tail(spark, served, "s")
    assert rows.count() == 10

    publish(served, "s", numbered(10, 10))

    assert rows.count() == 10
    assert rows.where("offset >= 5").count() == 5
    assert rows.count() == 10
    assert tail(spark, served, "s").count() == 20


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"stream": "none"}, UnknownStreamError, "none"),
        ({"startingOffsets": '{"0": 11}'}, InvalidRequestError, "endingOffsets"),
        (
            {"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 99}'},
            OffsetOutOfRangeError,
            "99",
        ),
        ({"startingOffsets": '{"1": 5}'}, InvalidRequestError, "name each"),
        ({"startingOffset": "earliest"}, InvalidRequestError, "'startingOffsets'"),
        (
            {"streamUuid": "00000000-0000-0000-0000-000000000000"},
            StreamRecreatedError,
            "00000000",
        ),
    ],
)
def test_what_cannot_be_read_fails_by_name(
    spark: SparkSession,
    served: Served,
    options: dict[str, str],
    kind: type[Exception],
    says: str,
) -> None:
    """The broker's and our own errors come through Spark with their class, message and facts."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 10))

    with pytest.raises(PySparkException) as caught:
        tail(spark, served, **{"stream": "s", **options}).collect()

    error = typed(caught.value)
    assert type(error) is kind or isinstance(error, kind)
    assert says in str(error)


def test_a_limit_leaves_the_rest_unread(spark: SparkSession, served: Served) -> None:
    """A task that Spark ends early closes its read without an error."""
    Client(served.server).create_stream("s")
    for start in range(0, 20_000, 1000):
        publish(served, "s", numbered(start, 1000))

    with translated():
        assert len(tail(spark, served, "s").limit(5).collect()) == 5
        assert tail(spark, served, "s").count() == 20_000
