"""A batch read that is kept while its stream is put back to an older copy, with other records."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import headwater
from broker.errors import ForeignHistoryError
from headwater.client import Client
from headwater.local.embedded import free_port
from headwater.reads.lease_keeper import KEEPER
from simkit.brokers.served_broker import served_disk_broker
from spark_jobs.failures import typed
from spark_jobs.read.scans import log_options, seams
from spark_jobs.source.source import HeadwaterDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

KEPT = [b"kept %d" % number for number in range(40)]
LOST = [b"lost %d" % number for number in range(60)]
NEW = [b"new %d" % number for number in range(100)]


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Hold nothing after a test."""
    yield
    KEEPER.release_all()


def publish(server: str, values: list[bytes]) -> None:
    """Store records with these values."""
    with Client(server) as client, client.producer("s") as producer:
        producer.send(values).result(120)


class Restorable:
    """A broker whose folder can be put back to the copy that was made after ``KEPT``.

    ``before`` is a read that was planned before the copy was made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._older, self._port = folder / "b", folder / "o", free_port()
        with self.served() as server:
            with Client(server) as client:
                client.create_stream("s")
            publish(server, KEPT)
            self.before = Kept(by_load(server))
        shutil.copytree(self._folder, self._older)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the broker while the block runs."""
        with served_disk_broker(self._folder, port=self._port) as server:
            yield server

    def restore(self) -> None:
        """Put the older copy in the place of the folder."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._older, self._folder)


@pytest.fixture
def broker(tmp_path: Path) -> Restorable:
    """A broker with one stream."""
    return Restorable(tmp_path)


class Kept:
    """A planned read, as Spark keeps it for a DataFrame."""

    def __init__(self, options: dict[str, str]) -> None:
        source = HeadwaterDataSource({**options, "columns": "offset,value"})
        schema = source.schema()
        if isinstance(schema, str):
            from pyspark.sql.types import BinaryType, LongType, StructField, StructType

            fields = [StructField("offset", LongType()), StructField("value", BinaryType())]
            schema = StructType(fields)
        self._reader = source.reader(schema)
        self._parts = self._reader.partitions()

    def values(self) -> list[bytes]:
        """Read as one action does."""
        return [value for batch in self.batches() for value in batch]

    def batches(self) -> Iterator[list[bytes]]:
        """Read by batch."""
        for part in self._parts:
            for batch in self._reader.read(part):
                assert isinstance(batch, pa.RecordBatch)
                yield batch.column("value").to_pylist()


def by_load(server: str) -> dict[str, str]:
    """Return the options of a read that is planned at load()."""
    return {"server": server, "stream": "s"}


def by_numbers(server: str) -> dict[str, str]:
    """Return the options of a read whose offsets and incarnation are given."""
    with Client(server) as client:
        uuid = client.stream("s").uuid
    ends = {"startingOffsets": '{"0": 0}', "endingOffsets": '{"0": 100}'}
    return {**by_load(server), "streamUuid": uuid, **ends}


def by_saved_cut(server: str) -> dict[str, str]:
    """Return the options of a read of a saved cut."""
    with Client(server) as client:
        return {"server": server, "cut": client.cut("s").save()}


def by_moment(server: str) -> dict[str, str]:
    """Return the options of a table of the catalog."""
    return {**by_load(server), "asOf": "now"}


def by_unified_read(server: str) -> dict[str, str]:
    """Return the options that ``headwater.read`` gives for the log."""
    with Client(server) as client:
        cut = client.cut("s")
    hot = {part.partition: part.hot for part in seams(cut)}
    return log_options(cut, ["offset", "value"], hot, server=server)


WAYS = [by_load, by_numbers, by_saved_cut, by_moment, by_unified_read]


@pytest.mark.parametrize("way", WAYS)
def test_a_kept_read_of_a_lost_future_fails_by_name(
    broker: Restorable, way: Callable[[str], dict[str, str]]
) -> None:
    """Its offsets have other records; a restart without a restore changes nothing."""
    with broker.served() as server:
        publish(server, LOST)
        kept = Kept(way(server))
        assert kept.values() == KEPT + LOST
    with broker.served():
        assert kept.values() == KEPT + LOST
    broker.restore()
    with broker.served() as server:
        publish(server, NEW)
        with pytest.raises(ForeignHistoryError, match="Read it anew"):
            kept.values()
        with pytest.raises(ForeignHistoryError):
            next(kept.batches())  # as with LIMIT: not one row is given


def test_a_read_from_before_the_copy_goes_on(broker: Restorable) -> None:
    """What it names is still there, below the records that differ."""
    with broker.served() as server:
        publish(server, LOST)
    broker.restore()
    with broker.served() as server:
        publish(server, NEW)
        assert broker.before.values() == KEPT


@pytest.mark.spark
def test_a_kept_dataframe_of_a_lost_future_fails_by_name(
    spark: SparkSession, broker: Restorable
) -> None:
    """Spark's error has ours, with ``headwater.read``, the source and the catalog's source."""
    with broker.served() as server:
        publish(server, LOST)
        source = spark.read.format("headwater").option("server", server).option("stream", "s")
        frames: dict[str, DataFrame] = {
            "headwater.read": headwater.read(spark, "s", server=server),
            "load": source.load(),
            "asOf": source.option("asOf", "now").load(),
        }
        for rows in frames.values():
            assert rows.count() == 100
    broker.restore()
    with broker.served() as server:
        publish(server, NEW)
        for how, rows in frames.items():
            for action in (rows.collect, lambda rows=rows: rows.take(1)):
                with pytest.raises(PySparkException) as caught:
                    action()
                assert isinstance(typed(caught.value), ForeignHistoryError), how
