"""A cut is taken while records move into the table, by this broker or by another one's leader."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.clock import SystemClock
from broker.model.stream import Stream, StreamConfig
from broker.model.tiering import TableState
from broker.runtime.broker import Broker
from simkit.brokers.brokers import disk_broker
from tiering.read.lake import Lake
from tiering.store.location import StoreConfig
from tiering.tiering import Tiering

pytestmark = pytest.mark.integration


class ShipsMeanwhile(Tiering):
    """A lake whose table gets its next commit right after each look at it."""

    def __init__(self, lake: Lake, broker: Broker) -> None:
        super().__init__(lake, broker.catalog(), SystemClock())
        self._broker = broker

    def table_state(self, stream: Stream) -> TableState:
        """Look, then ship what there is and let the broker record it."""
        found = super().table_state(stream)
        publish(self._broker, b"one more")
        self.flush(stream, timeout_ms=120_000)
        return found


def publish(broker: Broker, value: bytes) -> None:
    """Store one record."""
    outcome: SimpleQueue[Any] = SimpleQueue()
    batch = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary())})
    broker.partitions.handle("s", 0).writes.submit_records(batch, None, outcome.put)
    outcome.get(timeout=120)


def test_what_is_committed_after_the_look_is_no_lost_commit(tmp_path: Path) -> None:
    """The cut has the table's ranges at the look and the log above them: no commit was lost."""
    with disk_broker(tmp_path / "broker") as broker:
        lake = Lake.open(StoreConfig.from_env(str(tmp_path / "lake")), cluster="test")
        tiering = ShipsMeanwhile(lake, broker)
        broker.cold.attach(tiering)
        tiering.start()
        broker.streams.create("s", StreamConfig(subject="s"))
        publish(broker, b"first")
        seen = []
        for _ in range(3):
            (part,) = broker.cuts.take("s", owner="test", ttl_ms=600_000).partitions
            seen.append((part.cold_end, part.hot_end))
        assert seen == [(0, 2), (2, 3), (3, 4)]
        tiering.stop()
