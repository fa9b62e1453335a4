"""SQL over streams: which names become views, and when they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from broker.errors import UnknownStreamError
from broker.model.offsets import Offset
from headwater.client import Client
from simkit.lake_broker import Served
from simkit.memory_broker import numbered
from spark_jobs.leases import KEEPER
from spark_jobs.sql import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    rows = query(
        spark,
        """
        WITH newest AS (SELECT max(offset) AS last FROM Orders)
        SELECT count(*), (SELECT count(*) FROM `old-ones`), max(last), 'FROM nowhere'
        FROM orders JOIN newest
        """,
        client,
    )

    assert [tuple(row) for row in rows.collect()] == [(30, 5, 29, "FROM nowhere")]
    assert len(KEEPER.held()) == 2


def test_each_statement_sees_its_own_moment(spark: SparkSession, client: Client) -> None:
    """A later statement sees later records, an earlier result stays what it was."""
    before = query(spark, "SELECT count(*) AS n FROM orders", client)
    with client.producer("orders") as producer:
        producer.send(numbered(30, 3))

    after = query(spark, "SELECT count(*) AS n FROM orders", client)

    assert (before.first().n, after.first().n) == (30, 33)  # type: ignore[union-attr]


def test_a_table_of_the_session_wins(spark: SparkSession, client: Client) -> None:
    """A view that the user made is used, and is still there afterwards."""
    spark.range(7).createOrReplaceTempView("orders")
    try:
        for _ in range(2):
            assert query(spark, "SELECT count(*) AS n FROM orders", client).first().n == 7  # type: ignore[union-attr]
    finally:
        spark.catalog.dropTempView("orders")


def test_an_unknown_name_is_refused_with_the_nearest(spark: SparkSession, client: Client) -> None:
    """A typing error names the stream that was probably meant."""
    with pytest.raises(UnknownStreamError, match="did you mean 'orders'"):
        query(spark, "SELECT * FROM ordres", client)


@pytest.mark.parametrize(
    "statement", ["SELECT nothing FROM orders", "SELEC 1", "SELECT * FROM a.b"]
)
def test_other_mistakes_are_sparks_to_explain(
    spark: SparkSession, client: Client, statement: str
) -> None:
    """What is not about streams comes through as Spark says it."""
    with pytest.raises(AnalysisException):
        query(spark, statement, client)
