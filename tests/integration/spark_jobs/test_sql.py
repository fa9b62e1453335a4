"""SQL over streams: the names that become views, and the moment that a view shows."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

import headwater
from broker.errors import UnknownStreamError
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.reads.lease_keeper import KEEPER
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served
from spark_jobs.read import unified
from spark_jobs.read.held_reads import release
from spark_jobs.read.sql import register, sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def client(served: Served) -> Client:
    """A client; streams ``orders`` with 30 records in both tiers, ``old-ones`` with 5."""
    client = Client(served.server)
    client.create_stream("orders")
    client.create_stream("old-ones")
    for name, first, count in (("orders", 0, 20), ("orders", 20, 10), ("old-ones", 0, 5)):
        with client.producer(name) as producer:
            producer.send(numbered(first, count))
    served.broker.ship("orders", 0, Offset(20))
    return client


def test_streams_are_views_of_one_moment(spark: SparkSession, client: Client) -> None:
    """Streams in joins, subqueries and expressions resolve; one lease per stream is held."""
    KEEPER.release_all()
    rows = sql(
        spark,
        """
        WITH newest AS (SELECT max(offset) AS last FROM Orders)
        SELECT count(*), (SELECT count(*) FROM `old-ones`), max(last), 'FROM nowhere'
        FROM orders JOIN newest
        """,
        server=client,
    )

    assert [tuple(row) for row in rows.collect()] == [(30, 5, 29, "FROM nowhere")]
    assert len(KEEPER.held()) == 2


def test_each_statement_sees_its_own_moment(spark: SparkSession, client: Client) -> None:
    """A later statement sees later records; an earlier result does not change."""
    before = sql(spark, "SELECT count(*) AS n FROM orders", server=client)
    with client.producer("orders") as producer:
        producer.send(numbered(30, 3))

    after = sql(spark, "SELECT count(*) AS n FROM orders", server=client)

    assert (before.first().n, after.first().n) == (30, 33)  # type: ignore[union-attr]


def test_a_result_holds_its_leases_and_no_longer(
    spark: SparkSession, client: Client, served: Served
) -> None:
    """Release ends them at once; a result that nobody has any more lets them run out."""
    KEEPER.release_all()
    result = sql(spark, "SELECT count(*) FROM orders", server=client)
    assert len(KEEPER.held()) == len(served.broker.leases) == 1
    assert "from 1 files" in headwater.explain(result)
    assert release(result)
    assert served.broker.leases == {}

    result = sql(spark, "SELECT count(*) FROM orders", server=client)
    del result
    gc.collect()
    KEEPER.tick()
    assert KEEPER.held() == []
    assert len(served.broker.leases) == 1, "it is left to run out, for what was derived from it"


def test_a_command_runs_once_with_all_streams(spark: SparkSession, client: Client) -> None:
    """A created table has the streams' rows, and does not depend on temporary views."""
    sql(spark, "CREATE OR REPLACE TEMP VIEW made AS SELECT 1 AS one", server=client)
    result = sql(spark, "SELECT * FROM made, orders, `old-ones`", server=client)
    assert result.count() == 30 * 5
    spark.catalog.dropTempView("made")


def test_registered_views_stand_still_until_they_are_moved(
    spark: SparkSession, client: Client
) -> None:
    """Plain Spark SQL sees one instant; registering again, or a query of ours, moves it up."""
    KEEPER.release_all()
    assert set(register(spark, server=client)) == {"orders", "old-ones"}
    try:
        counted = spark.sql("SELECT count(*) AS n FROM orders JOIN `old-ones` USING (offset)")
        assert counted.first().n == 5  # type: ignore[union-attr]
        with client.producer("orders") as producer:
            producer.send(numbered(30, 2))
        assert spark.table("orders").count() == 30
        assert sql(spark, "SELECT count(*) AS n FROM orders", server=client).first().n == 32  # type: ignore[union-attr]
        assert spark.table("orders").count() == 32
        client.delete_stream("old-ones")
        register(spark, server=client)
        assert not spark.catalog.tableExists("`old-ones`")
    finally:
        register(spark, [], server=client)
    KEEPER.tick()
    assert not spark.catalog.tableExists("orders")


def test_registered_views_and_other_streams_have_one_instant(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was published after another one is not in the result without that one."""
    calls = []

    def read_many(*arguments: Any, **options: Any) -> dict[str, DataFrame]:
        calls.append(arguments)
        if len(calls) == 2:  # the view has been moved up, and now a name was not resolved
            for stream, first in (("orders", 30), ("old-ones", 5)):
                with client.producer(stream) as producer:
                    producer.send(numbered(first, 1))
        return unified_read_many(*arguments, **options)

    register(spark, ["orders"], server=client)
    unified_read_many = unified.read_many
    monkeypatch.setattr(unified, "read_many", read_many)
    statement = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM `old-ones`)"
    try:
        rows = sql(spark, statement, server=client)
        assert [tuple(row) for row in rows.collect()] == [(31, 6)]
        assert spark.table("orders").count() == 31
    finally:
        register(spark, [], server=client)
    assert len(calls) == 2


def test_a_table_of_the_session_wins(spark: SparkSession, client: Client) -> None:
    """A view that the user made is used, and is still there afterwards."""
    spark.range(7).createOrReplaceTempView("orders")
    try:
        for _ in range(2):
            assert sql(spark, "SELECT count(*) AS n FROM orders", server=client).first().n == 7  # type: ignore[union-attr]
    finally:
        spark.catalog.dropTempView("orders")


def test_an_unknown_name_is_refused_with_the_nearest(spark: SparkSession, client: Client) -> None:
    """The error names the stream with the most similar name."""
    with pytest.raises(UnknownStreamError, match="did you mean 'orders'"):
        sql(spark, "SELECT * FROM ordres", server=client)


@pytest.mark.parametrize(
    "statement", ["SELECT nothing FROM orders", "SELEC 1", "SELECT * FROM a.b"]
)
def test_other_mistakes_are_sparks_to_explain(
    spark: SparkSession, client: Client, statement: str
) -> None:
    """Errors that do not concern streams are Spark's own."""
    with pytest.raises(AnalysisException):
        sql(spark, statement, server=client)
