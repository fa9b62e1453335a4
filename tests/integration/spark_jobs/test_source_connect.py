"""A Spark that was told nothing finds the format: Spark Connect, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.model.offsets import Offset
from headwater.client import Client
from simkit.lake_broker import Served
from simkit.memory_broker import numbered

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

SCRIPT = """
import os, sys
server, checkpoint = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local").config("spark.ui.enabled", "false").getOrCreate()
given = {"server": server, "subscribe": "s", "startingOffsets": "earliest"}
rows = spark.read.format("headwater").options(**given).load()
print("batch", rows.count(), flush=True)
live = spark.readStream.format("headwater").options(**given).load()
query = live.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
query.option("checkpointLocation", checkpoint).start().awaitTermination()
seen = spark.sql("select count(*), count(distinct offset), sum(offset) from seen").collect()[0]
print("stream", *seen, flush=True)
spark.sql("create table streams using headwater")
spark.sql(f"create view s as select * from streams with (stream = 's', server = '{server}')")
print("sql", spark.sql("select max(offset) from s").collect()[0][0], flush=True)
spark.stop()
"""


def test_connect_reads_streams_without_registration(served: Served, tmp_path: Path) -> None:
    """Batch, stream and a SQL view over both tiers, by the module that Spark finds itself."""
    client = Client(served.server)
    client.create_stream("s")
    with client.producer("s") as producer:
        producer.send(numbered(0, 100))
    served.broker.ship("s", 0, Offset(60))

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, served.server, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["batch 100", "stream 100 100 4950", "sql 99"]
