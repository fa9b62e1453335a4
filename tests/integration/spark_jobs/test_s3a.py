"""The lean jar set against an S3 endpoint: Spark reads over s3a what tiering wrote with boto3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.errors import ObjectMissingError
from broker.model.offsets import Offset
from headwater import certificate, read, release
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import serving
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_history_in_s3_and_a_live_tail_are_one_dataframe(
    spark: SparkSession, moto_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write by boto3 and delta-rs, read by S3A and Flight, miss an object by its name."""
    for name, value in moto_env.items():
        monkeypatch.setenv(name, value)
    lake = StoreConfig.from_env("s3://headwater-tests/lake")
    with serving(lake) as served:
        client = Client(served.server)
        client.create_stream("s")
        with client.producer("s") as producer:
            for first in range(0, 1000, 100):
                producer.send(numbered(first, 100))
        served.broker.ship("s", 0, Offset(900), files=2)

        rows = read(spark, "s", server=client)

        assert sorted(int(row.value) for row in rows.select("value").collect()) == list(range(1000))
        proof = certificate(rows).partitions[0]
        assert (proof.cold_count, proof.hot_count) == (900, 100)
        plan = rows._jdf.queryExecution().toString()
        assert "s3a://headwater-tests/lake" in plan
        release(rows)

        _delete_first_object(served.broker.table("s").store.config, moto_env)
        with pytest.raises(ObjectMissingError):
            read(spark, "s", server=client)


def test_spark_writes_and_reads_delta_over_s3a(
    spark: SparkSession, moto_env: dict[str, str]
) -> None:
    """The upload half of the SDK modules works too: jobs will need it."""
    path = "s3a://headwater-tests/scratch/numbers"
    spark.range(1000).repartition(2).write.format("delta").save(path)

    assert spark.read.format("delta").load(path).where("id >= 990").count() == 10


def test_no_secret_is_in_the_sessions_settings(
    spark: SparkSession, moto_env: dict[str, str]
) -> None:
    """Neither the UI nor the process list shows a key."""
    secret = moto_env["AWS_SECRET_ACCESS_KEY"]
    assert all(secret not in value for _, value in spark.sparkContext.getConf().getAll())


def _delete_first_object(table: StoreConfig, env: dict[str, str]) -> None:
    import boto3

    s3 = boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL"], region_name=env["AWS_REGION"])
    listed = s3.list_objects_v2(Bucket=table.bucket, Prefix=f"{table.prefix}/partition=0/")
    s3.delete_object(Bucket=table.bucket, Key=listed["Contents"][0]["Key"])
