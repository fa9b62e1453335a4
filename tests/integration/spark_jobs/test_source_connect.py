"""Spark Connect in its own process finds the format without registration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.model.offsets import Offset
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

SCRIPT = """
import os, sys
server, checkpoint, cut = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
spark = SparkSession.builder.remote("local").config("spark.ui.enabled", "false").getOrCreate()
given = {"server": server, "subscribe": "s", "startingOffsets": "earliest"}
live = spark.readStream.format("headwater").options(**given).load()
query = live.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
query.option("checkpointLocation", checkpoint).start().awaitTermination()
seen = spark.sql("select count(*), count(distinct offset), sum(offset) from seen").collect()[0]
print("stream", *seen, flush=True)
try:
    spark.read.format("headwater").options(**given).load().count()
except PySparkException as error:
    print("refused", 'headwater.cut("s").save()' in str(error), flush=True)
rows = spark.read.format("headwater").option("server", server).option("cut", cut).load()
print("batch", rows.count(), flush=True)
with Client(server) as client, client.producer("s") as producer:
    producer.send(numbered(100, 50))
for number in range(40):  # more plans than the server remembers
    spark.range(number).schema
print("union", rows.union(rows).count(), rows.count(), flush=True)
spark.sql("create table streams using headwater")
spark.sql(f"create view s as select * from streams with (cut = '{cut}', server = '{server}')")
twice = "select max(a.offset), count(*) from s a join s b on a.offset = b.offset"
print("sql", *spark.sql(twice).collect()[0], flush=True)
spark.stop()
"""


def test_connect_reads_streams_without_registration(served: Served, tmp_path: Path) -> None:
    """Stream, batch and a SQL view over both tiers, by the module that Spark finds itself.

    A batch stands still although the server plans it again; one that could move is refused.
    """
    client = Client(served.server)
    client.create_stream("s")
    with client.producer("s") as producer:
        producer.send(numbered(0, 100))
    served.broker.ship("s", 0, Offset(60))
    cut = client.cut("s", ttl_ms=600_000).save()

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, served.server, str(tmp_path / "checkpoint"), cut],
        capture_output=True,
        text=True,
        timeout=560,
        cwd=tmp_path,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "stream 100 100 4950",
        "refused True",
        "batch 100",
        "union 200 100",
        "sql 99 100",
    ]
