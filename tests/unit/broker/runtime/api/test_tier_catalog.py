"""What tiering learns of all partitions of a stream, whoever leads them."""

from __future__ import annotations

from pathlib import Path

from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from simkit.brokers.brokers import disk_broker

GONE = StreamUuid("00000000-0000-4000-8000-000000000000")


def test_the_recorded_cold_end_of_every_partition_is_told(tmp_path: Path) -> None:
    """Of a stream that is gone there are none."""
    with disk_broker(tmp_path) as broker:
        stream = broker.streams.create("s", StreamConfig(subject="s", partitions=3))
        sources = broker.catalog().sources(stream)
        sources[2].record_cold_end(Offset(7))
        assert broker.catalog().cold_ends(stream.uuid) == {0: 0, 1: 0, 2: 7}
        assert broker.catalog().cold_ends(GONE) == {}
