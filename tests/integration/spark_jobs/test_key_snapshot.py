"""The key snapshot over a real table: exact, incremental, one of two runs wins."""

from __future__ import annotations

import argparse
import random
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.model.offsets import Offset
from headwater.client import Client
from simkit.lake_broker import Served
from spark_jobs.jobs import snapshot
from spark_jobs.jobs.job import Report
from spark_jobs.scans import table_at
from tiering import key_snapshot_plan
from tiering.key_snapshot import open_latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

Records = list[tuple[bytes | None, bytes | None]]


class Truth:
    """What the stream holds, by partition, and what its latest view must be."""

    def __init__(self) -> None:
        self.logs: dict[int, Records] = {0: [], 1: []}

    def latest(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        """Return (partition, key) -> (offset, value) of the newest records that live."""
        newest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
        for partition, log in self.logs.items():
            for offset, (key, value) in enumerate(log):
                if key is not None:
                    newest[partition, key] = (offset, value)
        return {place: (o, v) for place, (o, v) in newest.items() if v is not None}


@pytest.fixture
def truth() -> Truth:
    """Nothing yet."""
    return Truth()


def publish(served: Served, truth: Truth, records: Records, partition: int = 0) -> None:
    """Store and ship some records."""
    batch = pa.record_batch(
        {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
        }
    )
    with Client(served.server) as client, client.producer("s", partition) as producer:
        producer.send(batch)
    truth.logs[partition] += records
    served.broker.ship("s", partition, Offset(len(truth.logs[partition])))


def run(spark: SparkSession, served: Served, **wanted: Any) -> dict[str, Any]:
    """Run the job."""
    args = argparse.Namespace(server=served.server, stream="s", check=True, **wanted)
    return dict(snapshot.run(spark, args, Report("snapshot", sys.stderr)))


def rows(spark: SparkSession, served: Served) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Return what the table holds, through plain Delta."""
    found = open_latest(served.broker.lake, "s", stream_uuid=served.broker.stream("s").uuid)
    assert found is not None
    table = table_at(spark, found.uri, found.version).collect()
    as_dict = {(row.partition, bytes(row.key)): (row.offset, bytes(row.value)) for row in table}
    assert len(as_dict) == len(table), "one row per partition and key"
    return as_dict


def changes(seed: int, count: int, keys: int) -> Records:
    """Return random records: some without key, some tombstones."""
    rng = random.Random(seed)
    return [
        (
            None if rng.random() < 0.05 else b"k%d" % rng.randrange(keys),
            None if rng.random() < 0.2 else b"v%d-%d" % (seed, number),
        )
        for number in range(count)
    ]


def test_it_is_exact_at_every_cut(
    spark: SparkSession, served: Served, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built, advanced over partitions and buckets, and run for nothing: always the newest rows."""
    monkeypatch.setattr(key_snapshot_plan, "BUCKET_BYTES", 2_000)
    Client(served.server).create_stream("s", partitions=2)
    assert run(spark, served)["version"] is None
    publish(served, truth, changes(1, 800, 300))

    first = run(spark, served)
    assert rows(spark, served) == truth.latest()
    assert first["ends"] == {"0": 800, "1": 0}
    assert first["files_added"] > 3
    again = run(spark, served)
    assert (again["version"], again["records_read"]) == (first["version"], 0)

    publish(served, truth, [(b"k1", b"new"), (b"k2", None), (b"other", b"x"), (None, b"y")])
    publish(served, truth, [(b"k1", b"of partition 1"), (b"", b"an empty key")], partition=1)
    second = run(spark, served)
    assert rows(spark, served) == truth.latest()
    assert second["ends"] == {"0": 804, "1": 2}
    assert second["files_kept"] > 0, "untouched buckets are not rewritten"
    publish(served, truth, [(None, b"no key")])
    third = run(spark, served)
    assert (third["files_added"], third["ends"]["0"]) == (0, 805)
    assert rows(spark, served) == truth.latest()
