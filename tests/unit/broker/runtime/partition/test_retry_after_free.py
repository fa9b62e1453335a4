"""Local retention and the dedup window: a record leaves the disk once no retry can come for it."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from broker.codec.schema import HEADERS_TYPE
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import StreamConfig
from broker.runtime.partition.driver import PartitionDriver
from simkit.brokers.brokers import disk_broker


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000

    def now_us(self) -> int:
        """Return the time."""
        return self.us

    def monotonic_ms(self) -> int:
        """Return the same in milliseconds."""
        return self.us // 1000


def publish(partition: PartitionDriver, message_id: str) -> tuple[int, bool]:
    """Publish one record; return its offset and whether it was recognised as a retry."""
    outcome: SimpleQueue[Any] = SimpleQueue()
    header = [{"key": "Nats-Msg-Id", "value": message_id.encode()}]
    columns = {"value": pa.array([b"v"], pa.binary()), "headers": pa.array([header], HEADERS_TYPE)}
    partition.writes.submit_records(pa.RecordBatch.from_pydict(columns), [message_id], outcome.put)
    answer = outcome.get(timeout=30)
    return int(answer.offsets[0]), bool(answer.duplicates)


def no_lease() -> Offset:
    """Return the floor of no lease."""
    return Offset(OFFSET_MAX)


def test_a_retry_is_recognised_after_its_record_was_shipped_and_the_broker_restarted(
    tmp_path: Path,
) -> None:
    """A segment stays on disk while an id in it is in the window, whatever retention says.

    Found by the crash campaign (seed 8): shipped, freed, restarted, and the retry stored again.
    """
    clock = HandClock()
    config = StreamConfig(subject="s", local_retention_bytes=0, dedup_window_ms=60_000)
    with disk_broker(tmp_path, clock=clock) as broker:
        broker.streams.create("s", config)
        partition = broker.partitions.handle("s", 0)
        assert publish(partition, "first") == (0, False)
        partition.tier.seal_active()
        assert publish(partition, "second") == (1, False)
        partition.tier.record_cold_end(Offset(1))
        assert partition.frees.now(no_lease) == 0

    with disk_broker(tmp_path, clock=clock) as broker:
        partition = broker.partitions.handle("s", 0)
        assert publish(partition, "first") == (0, True)
        clock.us += 60_000_001
        partition.frees.now(no_lease)  # unless the broker's own ticker has done it by now
        assert partition.reads.log_start == 1
