"""A stream grows under a running query, its key snapshot, its latest records and its saved cuts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from broker.model.offsets import Offset
from broker.model.partitioner import partition_of_key
from headwater.client import Client
from simkit.tier.lake_broker import Served
from spark_jobs.jobs import snapshot
from spark_jobs.jobs.job import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

KEYS = [b"key-%d" % number for number in range(12)]
GONE = next(key for key in KEYS if partition_of_key(key, 2) == 1)


def build(spark: SparkSession, served: Served) -> Any:
    """Build or advance the key snapshot, and compare it with the history."""
    args = argparse.Namespace(stream="s", server=served.server, check=True)
    return snapshot.run(spark, args, Report("snapshot", sys.stderr))


def latest(rows: DataFrame) -> dict[bytes, bytes]:
    """Return the newest values; a key that comes twice fails."""
    taken = rows.select("key", "value").collect()
    found = {bytes(row.key): bytes(row.value) for row in taken}
    assert len(found) == len(taken)
    return found


def test_latest_is_one_row_a_key_with_and_without_a_snapshot(
    spark: SparkSession, served: Served
) -> None:
    """Also with a snapshot from before the growth, and of a key that was deleted where it moved."""
    with Client(served.server) as client:
        client.create_stream("s")
        with client.partitioned_producer("s") as producer:
            producer.send([{"key": key, "value": b"old"} for key in KEYS]).result(120)
            before = client.cut("s").save()
            served.broker.ship("s", 0, Offset(12))
            build(spark, served)
            client.alter_stream("s", partitions=2)
            producer.send([{"key": key, "value": b"new"} for key in KEYS[:6]]).result(120)
            producer.send([{"key": GONE, "value": None}]).result(120)
        expected = {key: b"new" if key in KEYS[:6] else b"old" for key in KEYS if key != GONE}
        for _ in range(3):  # a snapshot from before, one behind both partitions, and of everything
            rows = headwater.read(spark, "s", latest=True, server=served.server)
            assert latest(rows) == expected
            rows = headwater.read(spark, "s", latest=True, certificate="full", server=served.server)
            assert latest(rows) == expected
            old = headwater.read(spark, "s", as_of=before, server=served.server)
            assert {bytes(row.value) for row in old.select("value").collect()} == {b"old"}
            assert old.count() == 12
            client.tier_flush("s")
            build(spark, served)


def test_a_running_query_takes_added_partitions_up(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    """From their first record, each record once; its checkpoint from before stays valid."""
    found: list[tuple[int, int]] = []

    def sink(rows: DataFrame, _: int) -> None:
        found.extend((row.partition, row.offset) for row in rows.collect())

    def start() -> Any:
        source = spark.readStream.format("headwater").options(
            server=served.server, subscribe="s", startingOffsets="earliest",
            columns="partition,offset",
        )  # fmt: skip
        out = source.load().writeStream.foreachBatch(sink)
        return out.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with Client(served.server) as client:
        client.create_stream("s")
        with client.producer("s", 0) as producer:
            producer.send([b"1", b"2"]).result(120)
        query = start()
        query.processAllAvailable()
        client.alter_stream("s", partitions=2)
        with client.producer("s", 1) as producer:
            producer.send([b"3"]).result(120)
        query.processAllAvailable()
        query.stop()
        client.alter_stream("s", partitions=4)
        with client.producer("s", 3) as producer:
            producer.send([b"4"]).result(120)
        query = start()
        query.processAllAvailable()
        query.stop()
    assert sorted(found) == [(0, 0), (0, 1), (1, 0), (3, 0)]
