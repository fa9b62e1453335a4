"""Every stream of the broker is a dataset of this pipeline, up to date in each run."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import headwater


def _reader(name: str) -> Callable[[], DataFrame]:
    def rows() -> DataFrame:
        return headwater.read(SparkSession.active(), name, certificate="none")

    return rows


with headwater.Client() as client:
    for stream in client.streams():
        dp.temporary_view(name=stream.name)(_reader(stream.name))


@dp.table(name="flights_log")
def flights_log() -> DataFrame:
    """Return the stream as a streaming table: each run continues where the one before ended."""
    source = SparkSession.active().readStream.format("headwater")
    return source.option("subscribe", "flights").option("startingOffsets", "earliest").load()
