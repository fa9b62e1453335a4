"""Settings of a user's session may change SQL's syntax, but never the rows of a stream."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import headwater
from broker.model.offsets import Offset
from headwater.client import Client
from simkit.servers.spark_session import activate
from simkit.tier.lake_broker import Served
from spark_jobs.jobs import snapshot
from spark_jobs.jobs.job import Report
from spark_jobs.read.held_reads import release_all
from spark_jobs.read.table_scan import files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

BASE_US = 1_700_000_000_000_000
COLD, COUNT = 40, 60
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "timestamps without a zone": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "reserved keywords": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
    },
}


@pytest.fixture(params=SETTINGS, ids=lambda name: name.replace(" ", "-"))
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of its own, set as its user likes."""
    found = spark.newSession()
    for name, value in SETTINGS[request.param].items():
        found.conf.set(name, value)
    yield found
    release_all()
    activate(spark)


@pytest.fixture
def stream(served: Served) -> Served:
    """Stream ``s``: 60 records of seven keys, 40 of them in the table, in three files."""
    with Client(served.server) as client:
        client.create_stream("s")
        with client.producer("s") as producer:
            producer.send(
                [
                    {"key": b"k%d" % (n % 7), "value": b"%d" % n, "timestamp": BASE_US + n}
                    for n in range(COUNT)
                ]
            )
    served.broker.ship("s", 0, Offset(COLD), files=3)
    return served


def test_every_way_to_read_gives_every_row(session: SparkSession, stream: Served) -> None:
    """Both tiers, pinned and by the source; a time, a statement, the newest of each key."""
    server = stream.server

    def read(**how: Any) -> int:
        return headwater.read(session, "s", server=server, **how).count()

    rows = headwater.read(session, "s", server=server)
    assert rows.schema["timestamp"].dataType.simpleString() == "timestamp"
    assert rows.where("`offset` >= 35 AND `offset` < 45").count() == 10
    found = sorted(row.us for row in rows.selectExpr("unix_micros(timestamp) AS us").collect())
    assert found == [BASE_US + n for n in range(COUNT)]
    plan = rows._jdf.queryExecution().executedPlan().toString()
    reserved = session.conf.get("spark.sql.ansi.enforceReservedKeywords") == "true"
    assert ("PreparedDeltaFileIndex" in plan) != reserved, plan
    assert read() == COUNT
    assert read(as_of=BASE_US + 50) == 50
    assert read(latest=True) == 7
    assert headwater.sql(session, "SELECT * FROM s", server=server).count() == COUNT
    source = session.read.format("headwater").options(server=server, subscribe="s")
    assert source.load().count() == COUNT
    assert source.option("columns", "kafka").load().count() == COUNT


def test_the_files_of_a_table_by_name(session: SparkSession, stream: Served) -> None:
    """The scan by file names that Spark Connect uses, also without a file."""
    table = stream.broker.table("s")
    found = table.snapshot()
    assert files_of(session, found.uri, [file.path for file in found.files]).count() == COLD
    assert files_of(session, found.uri, []).count() == 0


def test_a_query_reads_both_tiers(session: SparkSession, stream: Served, tmp_path: Path) -> None:
    """A streaming query reads both tiers, too."""
    rows = session.readStream.format("headwater").options(
        server=stream.server, subscribe="s", startingOffsets="earliest"
    )
    target = tmp_path / "t"
    rows.load().writeStream.format("delta").option(
        "checkpointLocation", str(tmp_path / "c")
    ).trigger(availableNow=True).start(str(target)).awaitTermination()
    table = DeltaTable(str(target))
    assert table.to_pyarrow_table(columns=["partition"]).num_rows == COUNT
    kinds = {
        field.name: str(field.type.type)
        for field in table.schema().fields
        if field.name == "timestamp"
    }
    assert kinds == {"timestamp": "timestamp"}


def test_a_key_snapshot_is_built_and_read(session: SparkSession, stream: Served) -> None:
    """The job writes a table of ours."""
    args = argparse.Namespace(server=stream.server, stream="s", check=True)
    snapshot.run(session, args, Report("test", sys.stderr))
    assert headwater.read(session, "s", server=stream.server, latest=True).count() == 7
