"""Issue 11, item 13: a batch read of a server that is not there fails within ten seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from broker.errors import NoAnswerError
from crashkit.silent_server import silent_server
from headwater.client.brokers import Brokers
from headwater.client.flight_connection import CALL_TIMEOUT_MS
from headwater.local.embedded import free_port
from spark_jobs.failures import typed
from spark_jobs.source.batch_reader import HeadwaterReader
from spark_jobs.source.options import parse_batch
from spark_jobs.source.source import HeadwaterDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT_S = 10.0
KINDS = ("nobody listens", "says nothing", "greets and answers nothing")


@contextmanager
def _dead(kind: str) -> Iterator[str]:
    with silent_server(greets=kind.startswith("greets")) as server:
        yield f"grpc://127.0.0.1:{free_port()}" if kind == "nobody listens" else server


@pytest.mark.parametrize("kind", KINDS)
def test_planning_a_batch_read_gives_up_soon(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `load()` and the first action ask the broker, without Spark's own work around it.

    A machine that stands still adds to the time that passes, and not to the time that is asked for.
    """
    asked_ms: list[int] = []
    ask = Brokers.action

    def noted(
        brokers: Brokers, name: str, values: Mapping[str, Any], *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Any:
        asked_ms.append(timeout_ms)
        return ask(brokers, name, values, timeout_ms=timeout_ms)

    monkeypatch.setattr(Brokers, "action", noted)
    with _dead(kind) as address:
        began_s = time.monotonic()
        source = HeadwaterDataSource({"subscribe": "s", "server": address})
        source.schema()  # schema() plans, and its error is raised by the reader
        reader = HeadwaterReader(parse_batch(source.options), ("offset",), source._plans)
        with pytest.raises(NoAnswerError, match="no answer from the broker"):
            reader.partitions()
        passed_s = time.monotonic() - began_s
    took_s = min(passed_s, sum(asked_ms) / 1000)
    assert 0 < took_s <= LIMIT_S, f"{took_s:.1f} s"
    assert passed_s <= 2 * LIMIT_S, f"{passed_s:.1f} s, of which {took_s:.1f} s were asked for"


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_server_fails_a_batch_read(spark: SparkSession, kind: str) -> None:
    """The error names the address, also for a port that accepts connections and never answers."""
    with _dead(kind) as address:
        rows = spark.read.format("headwater").option("subscribe", "s").option("server", address)
        with pytest.raises(PySparkException, match="no answer from the broker") as caught:
            rows.load().collect()
    assert isinstance(typed(caught.value), NoAnswerError)
    assert address in str(caught.value)
