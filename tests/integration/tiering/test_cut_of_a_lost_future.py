"""A saved cut names records of a history; a stream put back to an older copy has another one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.clock import SystemClock
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.errors import ForeignHistoryError, InvalidCutError
from broker.model.stream import StreamConfig
from broker.runtime.broker import Broker
from headwater.client import Client
from headwater.reads.history import History
from simkit.brokers.brokers import disk_broker
from tiering.proof.proofs import CACHE
from tiering.read.lake import Lake
from tiering.store.location import StoreConfig
from tiering.tiering import Tiering

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def a_new_process() -> Iterator[None]:
    """Empty the proofs in memory, as in a new process."""
    CACHE.forget()
    yield
    CACHE.forget()


@contextmanager
def _running(folder: Path) -> Iterator[tuple[Broker, Client]]:
    """Run the broker and the lake that are in ``folder``."""
    with disk_broker(folder / "broker") as broker:
        lake = Lake.open(StoreConfig.from_env(str(folder / "lake")), cluster="test")
        tiering = Tiering(lake, broker.catalog(), SystemClock())
        broker.cold.attach(tiering)
        tiering.start()
        service = FlightService(broker, SystemClock(), FlightServiceConfig(port=0))
        service.start()
        try:
            with Client(f"grpc://127.0.0.1:{service.port}") as client:
                yield broker, client
        finally:
            service.close()
            tiering.stop()


def _publish(broker: Broker, *values: bytes) -> None:
    outcome: SimpleQueue[Any] = SimpleQueue()
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    broker.partitions.handle("s", 0).writes.submit_records(batch, None, outcome.put)
    assert not isinstance(outcome.get(timeout=120), Exception)


def _values(client: Client, cut: Any) -> list[bytes]:
    return [value.as_py() for one in History(client, cut).batches() for value in one["value"]]


@pytest.mark.parametrize("shipped", [False, True], ids=["in the log", "in the table"])
def test_a_cut_of_a_lost_future_is_refused_by_name(tmp_path: Path, shipped: bool) -> None:
    """Everything was put back to a backup, and other records were written at its offsets."""
    with _running(tmp_path / "live") as (broker, client):
        broker.streams.create("s", StreamConfig(subject="s"))
        _publish(broker, b"one", b"two")
        broker.cold.flush("s", timeout_ms=120_000)
    shutil.copytree(tmp_path / "live", tmp_path / "backup")
    with _running(tmp_path / "live") as (broker, client):
        early = client.cut("s")
        _publish(broker, b"a future", b"that is lost")
        if shipped:
            broker.cold.flush("s", timeout_ms=120_000)
        late = client.cut("s")
        assert _values(client, late) == [b"one", b"two", b"a future", b"that is lost"]
        client.check_cut(late)
    shutil.rmtree(tmp_path / "live")
    shutil.copytree(tmp_path / "backup", tmp_path / "live")
    CACHE.forget()  # a restore is followed by new processes
    with _running(tmp_path / "live") as (broker, client):
        _publish(broker, b"another", b"present")
        if shipped:
            broker.cold.flush("s", timeout_ms=120_000)
        with pytest.raises(ForeignHistoryError, match="restored from an older copy"):
            client.check_cut(late)
        if shipped:
            with pytest.raises(ForeignHistoryError, match="replaced by an older copy"):
                History(client, late)
        with pytest.raises(ForeignHistoryError):  # the cut is of the lost leadership
            client.check_cut(early)
        now = client.cut("s")
        client.check_cut(now)
        assert _values(client, now) == [b"one", b"two", b"another", b"present"]


def test_a_cut_survives_restarts_and_shipping(tmp_path: Path) -> None:
    """The leaderships before this one are in the lineage: the same rows as when it was taken."""
    with _running(tmp_path) as (broker, client):
        broker.streams.create("s", StreamConfig(subject="s"))
        _publish(broker, b"one")
        cut = client.cut("s")
    for number in range(3):
        with _running(tmp_path) as (broker, client):
            _publish(broker, b"later")
            if number:
                broker.cold.flush("s", timeout_ms=120_000)
            client.check_cut(cut)
            assert _values(client, cut) == [b"one"]


def test_a_forged_cut_is_refused(tmp_path: Path) -> None:
    """A partition is left out, or a lineage id is invented."""
    with _running(tmp_path) as (broker, client):
        broker.streams.create("s", StreamConfig(subject="s", partitions=2))
        _publish(broker, b"one")
        broker.cold.flush("s", timeout_ms=120_000)
        cut = client.cut("s")
        short = dataclasses.replace(cut, partitions=cut.partitions[:1])
        with pytest.raises(InvalidCutError, match="names 1 partitions"):
            client.check_cut(short)
        with pytest.raises(InvalidCutError, match="names 1 partitions"):
            History(client, short)
        drawn = dataclasses.replace(cut.partitions[0], lineage_id="f" * 32)
        with pytest.raises(ForeignHistoryError):
            client.check_cut(dataclasses.replace(cut, partitions=(drawn, cut.partitions[1])))
