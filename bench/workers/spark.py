"""Spark's side of the ``spark`` measure, one JVM: ``python -m bench.workers.spark JSON``.

Every read does the same work on its rows: count, lowest and highest offset, newest timestamp, bytes
of the values. So no rows are skipped, and no rows are collected. All ways of reading take turns,
after two rounds that are not counted, because the JVM compiles while it runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import headwater as hw
from headwater.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NARROW: Final = ("offset", "timestamp", "value")
_WARM_UPS: Final = 2


def main(arguments: list[str]) -> int:
    """Run every way of reading and print its seconds."""
    wanted = json.loads(arguments[0])
    spark = hw.session("bench", master=wanted["master"])
    client = Client(wanted["server"])
    ways = _ways(spark, client, wanted)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_WARM_UPS + wanted["repeat"]):
        for name, (read, expected) in ways.items():
            start = time.perf_counter()
            rows = _work(read())
            took_s = time.perf_counter() - start
            assert rows == expected, f"{name}: {rows} rows, not {expected}"
            hw.release_all()
            if turn >= _WARM_UPS:
                found[name].append(took_s)
    print(json.dumps({"seconds": found, "spark": spark.version}), flush=True)
    spark.stop()
    return 0


def _ways(
    spark: SparkSession, client: Client, wanted: dict[str, Any]
) -> dict[str, tuple[Callable[[], DataFrame], int]]:
    tail_rows, full_rows = int(wanted["tail_rows"]), int(wanted["full_rows"])
    ways: dict[str, tuple[Callable[[], DataFrame], int]] = {
        "tail": (lambda: _tail(spark, wanted["server"], NARROW), tail_rows),
        "tail_all": (lambda: _tail(spark, wanted["server"], ()), tail_rows),
        "tail_table": (partial(spark.table, "headwater.tail"), tail_rows),
        "native": (lambda: spark.read.format("delta").load(wanted["native_uri"]), full_rows),
    }
    spark.conf.set("spark.sql.catalog.headwater.server", wanted["server"])
    for name, stream in wanted["full"].items():
        ways[name] = (partial(hw.read, spark, stream, server=client), full_rows)
        table = f"headwater.`{stream}`"
        ways[name.replace("full", "catalog")] = (partial(spark.table, table), full_rows)
    return ways


def _tail(spark: SparkSession, server: str, columns: tuple[str, ...]) -> DataFrame:
    reader = spark.read.format("headwater").option("server", server).option("stream", "tail")
    if columns:
        reader = reader.option("columns", ",".join(columns))
    return reader.load()


def _work(rows: DataFrame) -> int:
    found = rows.selectExpr(
        "count(*)", "min(offset)", "max(offset)", "max(timestamp)", "sum(length(value))"
    ).collect()[0]
    return int(found[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
