"""Changes by Spark or delta-rs to our tables: every read refuses them with a typed error.

Counts, bounds and statistics are right; the refusal is because the commits are foreign.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import headwater
from broker.errors import ObjectCorruptError, TableMismatchError
from broker.model.offsets import Offset
from headwater.client import Client
from simkit.tier.lake_broker import Served
from spark_jobs.jobs import compact, snapshot
from spark_jobs.jobs.job import Report
from spark_jobs.source.partitions import table_path
from tiering.keys.snapshot import latest_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

BASE_US = 1_700_000_000_000_000
COUNT = 60


@pytest.fixture
def stream(served: Served) -> Served:
    """Stream ``s``: 60 records of seven keys, all of them in the table, in three files."""
    with Client(served.server) as client:
        client.create_stream("s")
        with client.producer("s") as producer:
            producer.send(
                [
                    {"key": b"k%d" % (n % 7), "value": b"%d" % n, "timestamp": BASE_US + n}
                    for n in range(COUNT)
                ]
            )
    served.broker.ship("s", 0, Offset(COUNT), files=3)
    return served


def read(spark: SparkSession, served: Served, **how: Any) -> int:
    """Read the stream and count."""
    return headwater.read(spark, "s", server=served.server, **how).count()


def test_an_update_by_spark_is_named(spark: SparkSession, stream: Served) -> None:
    """SQL on the path: a batch read, a look-up of a time, latest and a job are refused by name."""
    path = f"delta.`{table_path(stream.broker.table('s').uri)}`"
    assert read(spark, stream) == COUNT
    spark.sql(f"UPDATE {path} SET value = X'00' WHERE offset = 5")
    for how in ({}, {"as_of": BASE_US + 30}, {"latest": True}):
        with pytest.raises(TableMismatchError, match="UPDATE") as caught:
            read(spark, stream, **how)
        assert "Delta-Lake" in str(caught.value.author)
    args = argparse.Namespace(
        server=stream.server, stream="s", table=None, target_mib=1, vacuum=False,
        retain_hours=None, dry_run=False,
    )  # fmt: skip
    with pytest.raises(TableMismatchError, match="UPDATE"):
        compact.run(spark, args, Report("test", sys.stderr))


def test_deletion_vectors_may_be_allowed_and_may_not_be_used(
    spark: SparkSession, stream: Served
) -> None:
    """A DELETE that hides rows is refused; RESTORE, as the error says, brings the table back."""
    uri = stream.broker.table("s").uri
    path = f"delta.`{table_path(uri)}`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    assert read(spark, stream) == COUNT
    with Client(stream.server) as client, client.producer("s") as producer:
        producer.send([{"key": b"k", "value": b"more"}]).result(120)
    stream.broker.ship("s", 0, Offset(COUNT + 1))
    before = DeltaTable(uri).version()
    assert read(spark, stream) == COUNT + 1
    spark.sql(f"DELETE FROM {path} WHERE offset = 7")
    with pytest.raises(TableMismatchError, match="deletionVectors"):
        read(spark, stream)
    spark.sql(f"RESTORE {path} TO VERSION AS OF {before}")
    assert read(spark, stream) == COUNT + 1


def test_an_object_of_equal_size_with_other_bytes_is_named(
    spark: SparkSession, stream: Served
) -> None:
    """The error comes before Spark opens the object."""
    table = stream.broker.table("s")
    path = table.store.config.root / table.snapshot().files[1].path
    body = bytearray(path.read_bytes())
    body[len(body) // 3] ^= 4
    path.write_bytes(bytes(body))
    with pytest.raises(ObjectCorruptError, match="crc32c"):
        read(spark, stream)


def test_a_changed_key_snapshot_is_neither_read_nor_built_on(
    spark: SparkSession, stream: Served
) -> None:
    """A read with the full certificate is refused, too, although it reads only the history."""
    args = argparse.Namespace(server=stream.server, stream="s", check=False)
    report = Report("test", sys.stderr)
    snapshot.run(spark, args, report)
    latest = latest_table(stream.broker.lake, stream.broker.streams.get("s"))
    DeltaTable(latest.uri).delete("offset = 58")
    for how in ({}, {"certificate": "full"}):
        with pytest.raises(TableMismatchError, match="headwater job snapshot"):
            read(spark, stream, latest=True, **how)
    with pytest.raises(TableMismatchError, match="DELETE"):
        snapshot.run(spark, args, report)
    assert read(spark, stream) == COUNT
    root = latest.store.config.root
    root.rename(root.with_name("moved-away"))
    snapshot.run(spark, args, report)
    assert read(spark, stream, latest=True) == 7
