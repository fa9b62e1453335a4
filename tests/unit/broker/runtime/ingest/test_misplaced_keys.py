"""Records of NATS publishers whose key belongs to another partition are counted (issue 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from broker.model.ids import StreamUuid
from broker.model.partitioner import partition_of_key
from broker.model.stream import Stream, StreamConfig
from broker.runtime.ingest.nats_partition import PartitionIngest

KEYS = [f"k{number}".encode() for number in range(20)]
STREAM = Stream(
    name="s",
    uuid=StreamUuid("00000000-0000-4000-8000-000000000001"),
    config=StreamConfig(subject="s", partitions=2),
    created_us=1,
    table_name="s",
)


def _misplaced(stream: Stream, number: int, rows: dict[str, Any]) -> int:
    ingest = PartitionIngest(stream, number, cast("Any", None), sid=1)
    ingest.count_misplaced_keys(pa.record_batch(rows))
    return ingest.stats().misplaced_keys_total


def test_keys_of_another_partition_are_counted() -> None:
    """Records with the right key, and records without one, are not."""
    rows = {"key": pa.array([*KEYS, None]), "value": pa.array([b""] * 21)}
    elsewhere = sum(partition_of_key(key, 2) != 1 for key in KEYS)
    assert 0 < elsewhere < len(KEYS)
    assert _misplaced(STREAM, 1, rows) == elsewhere


@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(subject="s"),
        StreamConfig(subject="s", partitions=2, partitioner="each_client"),
    ],
)
def test_nothing_is_counted_where_no_rule_is_broken(config: StreamConfig) -> None:
    """One partition, or producers that choose for themselves."""
    assert _misplaced(replace(STREAM, config=config), 0, {"key": pa.array(KEYS)}) == 0


def test_keys_are_looked_at_from_the_growth_of_the_stream_on() -> None:
    """A stream of one partition has no wrong place; once it has more, there is one."""
    one = replace(STREAM, config=replace(STREAM.config, partitions=1))
    ingest = PartitionIngest(one, 0, cast("Any", None), 1)
    rows = pa.record_batch({"key": pa.array(KEYS)})
    ingest.count_misplaced_keys(rows)
    assert ingest.stats().misplaced_keys_total == 0
    ingest.configure(one.grown(STREAM.config.partitions))
    ingest.count_misplaced_keys(rows)
    assert ingest.stats().misplaced_keys_total > 0
