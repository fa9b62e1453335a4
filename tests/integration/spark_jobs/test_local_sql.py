"""SQL without Spark: each statement that it answers has the rows and columns that Spark gives."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.model.offsets import Offset
from headwater.client import Client
from headwater.local_sql import spark_functions
from headwater.local_sql.expressions import NeedsSparkError
from headwater.local_sql.local import answer
from headwater.local_sql.parsing import parse_statement
from simkit.tier.lake_broker import serving
from spark_jobs.read.sql import register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

_START_US = 1_700_000_000_000_000
_CARRIER = "get_json_object(cast(value as string), '$.carrier')"
_NUMBER = "cast(get_json_object(cast(value as string), '$.n') as bigint)"

# A statement with ORDER BY over all rows is compared in order, every other one as a bag of rows.
STATEMENTS = [
    "select count(*) from orders",
    "SELECT COUNT(*), count(key), count(distinct key) FROM Orders",
    "select min(offset), max(offset), sum(offset), avg(offset) from orders",
    "select * from orders",
    "select * from orders order by partition, offset limit 7",
    "select o.*, r.reply_subject as other from orders o join returns r on o.offset = r.offset",
    (
        "select offset, partition + 1, offset * 2 - 3, -offset, offset / 4, offset % 3 r, "
        "offset div 3 from orders"
    ),
    "select cast(key as string) k, count(*) n from orders group by k order by n desc, k",
    "select cast(key as string), max(offset) from orders group by 1 order by 1",
    "select cast(key as string) k from orders group by key having count(*) > 2 order by k desc",
    "select reply_subject, count(*) c from orders where reply_subject like 's.%' group by reply_subject",  # noqa: E501
    "select reply_subject from orders where reply_subject not like '%2%' order by reply_subject",
    "select count(*) from orders where not reply_subject not like '%2%'",
    "select offset, count(*) from orders group by offset order by offset",
    "select distinct reply_subject from orders order by reply_subject",
    "select distinct partition, reply_subject from orders",
    f"select {_CARRIER} c, sum({_NUMBER}) s, min({_NUMBER}) lo from orders group by 1 order by 1",
    f"select {_CARRIER} c from orders where {_NUMBER} between 3 and 9 order by c",
    (
        "select get_json_object(cast(value as string), '$.flags.late') late, count(*) n "
        "from orders group by late order by late"
    ),
    "select get_json_object(cast(value as string), '$.nothing') x from orders limit 3",
    "select date_trunc('hour', timestamp) h, count(*) n from orders group by h order by h",
    (
        "select hour(timestamp), minute(timestamp), year(timestamp), unix_micros(timestamp) "
        "from orders order by partition, offset"
    ),
    "select count(*) from orders where timestamp >= '2023-11-14T22:13:25Z'",
    "select count(*) from orders where timestamp < timestamp '2023-11-14 22:13:25.5'",
    "select cast(timestamp as date) d, count(*) n from orders group by d",
    "select count(*) n, count_if(key is null) missing, count_if(value is not null) from orders",
    (
        "select case when offset < 5 then 'low' when offset < 9 then 'middle' else 'high' end c, "
        "count(*) n from orders group by c order by c"
    ),
    (
        "select coalesce(reply_subject, 'none') s, if(partition = 0, 1, 2) p, nullif(offset, 3) o "
        "from orders order by partition, offset"
    ),
    (
        "select upper(reply_subject) u, length(value) b, substring(reply_subject, 2, 3) t, "
        "reply_subject || '/' || cast(offset as string) j from orders where offset <> 8"
    ),
    "select length(reply_subject) l, length(key) k from orders",
    "select max_by(offset, timestamp) from orders where partition = 0",
    (
        "with big as (select * from orders where offset > 4), few as (select key, count(*) n "
        "from big group by key) select sum(n), count(*) from few"
    ),
    (
        "select a.offset, b.offset from orders a join orders b on a.offset = b.offset + 1 "
        "and a.partition = b.partition where a.partition = 0 order by a.offset"
    ),
    (
        "select r.offset, o.reply_subject from returns r left join orders o on o.offset = r.offset + 12 "  # noqa: E501
        "and o.partition = 0 order by r.offset, o.reply_subject"
    ),
    "select count(*) from orders cross join returns",
    "select reply_subject from orders where offset in (1, 2, 30) union select reply_subject from returns",  # noqa: E501
    "select reply_subject from orders union all select reply_subject from returns order by reply_subject limit 9",  # noqa: E501
    "select key from orders intersect select key from returns",
    "select reply_subject from orders except select reply_subject from returns",
    "select count(*) from orders where offset in (select offset from returns)",
    "select count(*) from orders where offset > (select avg(offset) from returns)",
    "select count(*) from orders where exists (select 1 as one from returns where offset > 90)",
    "select partition, sum(offset) total from orders group by partition order by 2, 1",
    "select n, count(*) c from (select key, count(*) n from orders group by key) t group by n",
    (
        "select not (offset > 3 or partition = 1) a, offset <> 2, key = key, reply_subject <=> null_one "  # noqa: E501
        "x from (select offset, partition, key, reply_subject, correlation_id null_one from orders) t"  # noqa: E501
    ),
    "select greatest_one, 'it is', 3, true from (select max(offset) greatest_one from orders) t",
    (
        "select abs(offset - 5) d, lower(upper(reply_subject)) from orders where correlation_id is null "  # noqa: E501
        "and offset <> 8"
    ),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """``orders``: two partitions, both tiers, missing keys and values; ``returns``: a few rows."""
    lake: Path = tmp_path_factory.mktemp("local-sql")
    with serving(str(lake / "lake")) as served, Client(served.server) as found:
        found.create_stream("orders", partitions=2)
        found.create_stream("returns")
        for partition in (0, 1):
            with found.producer("orders", partition) as producer:
                producer.send(_records(15, partition))
                producer.send(_records(5, partition + 2))
            served.broker.ship("orders", partition, Offset(15))
        with found.producer("returns") as producer:
            producer.send(_records(4, 5))
        yield found


def _records(count: int, salt: int) -> pa.RecordBatch:
    numbers = range(count)
    bodies = [
        json.dumps({"n": n * salt, "carrier": f"c{n % 3}", "flags": {"late": n % 2 == 0}}).encode()
        for n in numbers
    ]
    return pa.record_batch(
        {
            "timestamp": pa.array([_START_US + 10**6 * n + salt for n in numbers], pa.int64()),
            "key": pa.array([b"k%d" % (n % 4) if n % 5 else None for n in numbers], pa.binary()),
            "value": pa.array(bodies, pa.binary()),
            "reply_subject": pa.array([None if n == 7 else f"s.{n % 3}é" if n == 8 else f"s.{n % 3}"
                                 for n in numbers]),
            "headers": pa.array(
                [[("h", b"\xff%d" % n)] if n % 2 else None for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )  # fmt: skip


@pytest.fixture
def spark_views(spark: SparkSession, client: Client) -> Iterator[SparkSession]:
    """A session with the streams as views of rows read once: only Spark's answers count here."""
    for name, rows in register(spark, ["orders", "returns"], server=client).items():
        spark.createDataFrame(rows.toArrow(), rows.schema).createOrReplaceTempView(name)
    yield spark
    register(spark, [], server=client)  # drops the views


def test_answers_equal_those_of_spark(spark_views: SparkSession, client: Client) -> None:
    """Rows, their order where it is asked for, and the names of columns, in all statements.

    `upper` of a text that is not ASCII is one that Spark has to answer: it is not compared here.
    """
    different = []
    for statement in STATEMENTS:
        ours, theirs = _local(statement, client), _by_spark(spark_views, statement)
        if ours != theirs:
            different.append(f"{statement}\n  here  {ours}\n  Spark {theirs}")

    assert len(STATEMENTS) >= 30
    assert not different, "\n".join(different)


@pytest.mark.parametrize(
    ("text", "value"),
    [("'it''s'", "it's"), ("'a''b' || 'c'", "a'bc"), ("'a' 'b'", "ab"), ('"a""b"', 'a"b')],
)
def test_two_quotes_in_a_text_are_one_for_spark(
    spark_views: SparkSession, client: Client, text: str, value: str
) -> None:
    """The parser gives the same tree for two texts side by side, so all of them go to Spark."""
    statement = f"select {text} x, count(*) n from orders"

    assert _local(statement, client).startswith("needs Spark: "), statement
    assert _by_spark(spark_views, statement) == (["x", "n"], [(value, 40)])


def test_the_names_of_functions_are_those_of_spark(spark: SparkSession) -> None:
    """A name that this release of Spark lacks is refused before Spark starts; no other is."""
    told = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in told if name.isidentifier()} == spark_functions.NAMES


def _local(statement: str, client: Client) -> Any:
    try:
        with answer(parse_statement(statement), client) as found:
            return _comparable(statement, list(found.columns), list(found.rows()))
    except NeedsSparkError as reason:
        return f"needs Spark: {reason}"


def _by_spark(spark: SparkSession, statement: str) -> Any:
    result = spark.sql(statement)
    return _comparable(statement, list(result.columns), [tuple(row) for row in result.collect()])


def _comparable(statement: str, columns: list[str], rows: list[tuple[Any, ...]]) -> Any:
    plain = [tuple(map(_plain, row)) for row in rows]
    if "limit" in statement and "order by" not in statement:
        return columns, len(plain)
    return columns, plain if "order by" in statement else sorted(plain, key=repr)


def _plain(value: Any) -> Any:
    match value:
        case datetime():  # Spark gives local times without a zone
            return (value if value.tzinfo else value.astimezone()).astimezone(UTC)
        case bytearray():
            return bytes(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return tuple(map(_plain, value.values()))
        case tuple():
            return tuple(map(_plain, value))
    return value
