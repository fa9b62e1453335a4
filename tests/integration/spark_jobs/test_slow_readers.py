"""Readers that retention overtakes, and tables with foreign changes: exact rows or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import headwater
from broker.errors import (
    GapError,
    OffsetOutOfRangeError,
    OverlapError,
    StreamRecreatedError,
    TableMismatchError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.reads.lease_keeper import KEEPER
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served
from spark_jobs.failures import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def publish(served: Served, start: int, count: int) -> None:
    """Store records whose values are their numbers, ten to a batch."""
    with Client(served.server) as client, client.producer("s") as producer:
        for first in range(start, start + count, 10):
            producer.send(numbered(first, 10))


@pytest.fixture
def rows(spark: SparkSession, served: Served) -> DataFrame:
    """A read of 300 records, of which 100 are in the table, before anything happens to them."""
    Client(served.server).create_stream("s")
    publish(served, 0, 300)
    served.broker.ship("s", 0, Offset(100))
    return headwater.read(spark, "s", server=served.server)


def lose_the_lease(served: Served, rows: DataFrame) -> None:
    """Let the broker forget the lease and its reader notice, as after a long suspension."""
    lease_id = headwater.cut_of(rows).lease.lease_id
    Client(served.server).drop_lease(lease_id)
    held = KEEPER._held[lease_id]
    held.renew_at_s = 0.0
    KEEPER.tick()


def test_a_reader_slower_than_local_retention_is_exact(rows: DataFrame, served: Served) -> None:
    """Its lease ended, its tail was tiered and freed ten times: the same rows, from the table."""
    (before,) = rows.selectExpr("count(*)", "sum(offset)").collect()
    served.broker.ship("s", 0, Offset(200))
    assert served.broker.partitions.handle("s", 0).log_start == 100, (
        "a lease holds what a reader needs"
    )
    lose_the_lease(served, rows)
    for turn in range(10):
        publish(served, 300 + turn * 30, 30)
        served.broker.ship("s", 0, Offset(300 + turn * 20))
    assert served.broker.partitions.handle("s", 0).log_start > 300

    (after,) = rows.selectExpr("count(*)", "sum(offset)").collect()

    assert tuple(after) == tuple(before) == (300, sum(range(300)))


def test_a_reader_whose_lease_is_gone_is_told_or_exact(
    spark: SparkSession, rows: DataFrame, served: Served
) -> None:
    """While every record is there the rows are right, and the lost lease is reported."""
    lose_the_lease(served, rows)

    assert isinstance(KEEPER.lost(headwater.cut_of(rows).lease.lease_id), UnknownLeaseError)
    assert "lost" in headwater.explain(rows)
    assert rows.count() == 300


def test_a_reader_whose_tail_was_deleted_gets_an_error_and_no_rows(
    rows: DataFrame, served: Served
) -> None:
    """The stream was deleted, and made again with other records: neither is passed off as it."""
    lose_the_lease(served, rows)
    client = Client(served.server)
    client.delete_stream("s")
    with pytest.raises(UnknownStreamError), translated():
        rows.selectExpr("sum(offset)").collect()
    client.create_stream("s")
    publish(served, 0, 300)
    with pytest.raises((StreamRecreatedError, OffsetOutOfRangeError)), translated():
        rows.selectExpr("sum(offset)").collect()


def test_vacuum_after_the_lease_is_gone_fails_the_reader(
    spark: SparkSession, rows: DataFrame, served: Served
) -> None:
    """OPTIMIZE and VACUUM took the files of its version: Spark refuses, nobody gets fewer rows."""
    lose_the_lease(served, rows)
    served.broker.ship("s", 0, Offset(200))
    path = served.broker.table("s").store.config.root
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")

    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist|FileNotFound"):
        rows.selectExpr("sum(offset)").collect()
    again = headwater.read(spark, "s", server=served.server)
    assert again.count() == 300


@pytest.mark.parametrize("latest", [False, True])
def test_restore_and_a_foreign_append_are_refused_by_every_form(
    spark: SparkSession, rows: DataFrame, served: Served, latest: bool
) -> None:
    """RESTORE leaves a gap, a foreign append an overlap; reads of earlier moments notice too."""
    path = served.broker.table("s").store.config.root
    served.broker.ship("s", 0, Offset(200))

    def read(**how: object) -> DataFrame:
        return headwater.read(spark, "s", server=served.server, latest=latest, **how)  # type: ignore[arg-type]

    assert read().count() in (0, 300)
    table = spark.read.format("delta").load(str(path))
    foreign = table.where("offset < 5").selectExpr("* except (offset)", "offset + 150 AS offset")
    foreign.select(*table.columns).write.format("delta").mode("append").save(str(path))
    for how in ({}, {"as_of": {0: 120}}, {"certificate": "full"}):
        with pytest.raises((OverlapError, TableMismatchError)):
            read(**how)

    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
    for how in ({}, {"as_of": {0: 120}}, {"certificate": "full"}):
        with pytest.raises(GapError):  # its transactions stay, its files go
            read(**how)
    assert len(served.broker.leases) <= 2, "a refused read leaves no lease"
