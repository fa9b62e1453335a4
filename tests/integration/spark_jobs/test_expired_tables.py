"""Spark over a table whose first files have expired: batch, stream, jobs, and an old cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater
from broker.model.certificate import Hole
from broker.model.offsets import Offset
from crashkit.stage import Stage, staged
from spark_jobs.jobs import compact, verify
from spark_jobs.read.held_reads import release_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

SENT = 200


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A broker with a stream of which most records have expired; a cut from before is held."""
    with staged(tmp_path) as found:
        client = found.client
        client.create_stream("s", segment_bytes_max=4096, dedup_window_ms=0)
        with client.producer("s") as producer:
            for number in range(SENT):
                producer.send([b"%04d" % number * 100]).result(60)
        client.tier_flush("s")
        yield found
        release_all()


def _table_start(url: str) -> int:
    """Return where the table begins. A status tells what is decided, before it has left."""
    _, proof = headwater.read_table("s", columns=["offset"], server=url)
    return int(proof.partitions[0].start)


def test_spark_reads_what_is_left_and_an_old_cut_whole(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    """A batch and a stream begin at the remote start; the certificate says why."""
    client, url = stage.client, stage.broker.url
    before = client.cut("s", ttl_ms=3_600_000).save()
    client.alter_stream("s", remote_retention_records=50)
    deadline_s = time.monotonic() + 120
    while not _table_start(url):
        assert time.monotonic() < deadline_s, "nothing has expired"
        time.sleep(0.05)
    with client.producer("s") as producer:
        producer.send([b"tail"]).result(60)
    start = int(client.describe("s").partitions[0].start)
    assert start > 100
    left = list(range(start, SENT + 1))

    rows = headwater.read(spark, "s", server=url)
    assert sorted(row.offset for row in rows.select("offset").collect()) == left
    [proof] = headwater.certificate(rows).partitions
    assert proof.holes == (Hole(Offset(0), Offset(start), "retention"),)
    old = headwater.read(spark, "s", server=url, as_of=before)
    assert old.count() == SENT

    given = {"subscribe": "s", "server": url, "startingOffsets": "earliest"}
    batch = spark.read.format("headwater").options(**given).load()
    assert sorted(row.offset for row in batch.select("offset").collect()) == left
    found: list[int] = []

    def sink(frame: DataFrame, _: int) -> None:
        found.extend(row.offset for row in frame.select("offset").collect())

    live = spark.readStream.format("headwater").options(**given).load()
    query = (
        live.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(found) == left

    assert compact.main(["--stream", "s", "--server", url, "--vacuum"]) == 0
    assert verify.main(["--stream", "s", "--server", url]) == 0
    assert headwater.read(spark, "s", server=url).count() == len(left)
