"""The server of docs/spark.md refuses a batch that could move, as Spark's own servers do."""

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

CLIENT = """
import sys
from pyspark.errors import PySparkException
import headwater
address, server = sys.argv[1:]
spark = headwater.session(remote=address)
print("read", headwater.read(spark, "s", server=server).count())
given = {"server": server, "subscribe": "s"}
try:
    print("open", spark.read.format("headwater").options(**given).load().count())
except PySparkException as error:
    print("refused", 'headwater.cut("s").save()' in str(error))
cut = headwater.cut("s", server=server).save()
fixed = spark.read.format("headwater").option("server", server).option("cut", cut).load()
print("fixed", fixed.count())
"""


def test_a_batch_that_could_move_is_refused(served: Served, tmp_path: Path) -> None:
    """PySpark switches off what tells a planner of a Connect session; the server switches it on.

    The batch was read, so that a self-join could have read two moments.
    """
    with Client(served.server) as client:
        client.create_stream("s")
        with client.producer("s") as producer:
            producer.send(numbered(0, 100))
    served.broker.ship("s", 0, Offset(60))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    server = subprocess.Popen(
        [sys.executable, "-m", "spark_jobs.connect_server", "--port", "0", "--master", "local[2]",
         "--conf", "spark.ui.enabled=false"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, address, served.server],
            capture_output=True, text=True, timeout=400, check=False, env=environment, cwd=tmp_path,
        )  # fmt: skip
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["read 100", "refused True", "fixed 100"]
