"""A stream's settings: bounds, types, and what streams of an older build lack."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import InvalidStreamError
from broker.model.stream import MIB, StreamConfig


@pytest.mark.parametrize(
    "values",
    [
        {"partitions": 1024},
        {"key_header": "k", "queue_group": None},
        {"dedup_window_ms": 0},
        {"record_bytes_max": 64 * MIB},
        {"segment_bytes_max": 4096},
        {"replication_factor": 7, "min_isr": 7},
        {"replication_factor": -1, "min_isr": 7},
        {"tombstone_delay_ms": 0, "compact_dirty_percent": 100},
        {"tombstone_delay_ms": 366 * 86_400_000, "compact_dirty_percent": 1},
        {"history": "compact", "compact": True},
        {"segment_bytes_max": MIB, "unshipped_bytes_max": 2 * MIB},
    ],
)
def test_a_setting_may_be_at_its_bound(values: dict[str, Any]) -> None:
    """The bounds themselves are allowed, and come back from their JSON form."""
    config = StreamConfig(subject="s", **values)
    assert StreamConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", 0),
        ("partitions", 1025),
        ("key_header", "two words"),
        ("queue_group", ""),
        ("dedup_window_ms", -1),
        ("record_bytes_max", 64 * MIB + 1),
        ("segment_bytes_max", 4095),
        ("flush", "never"),
        ("compression", "gzip"),
        ("encryption", "aes-128-cbc"),
        ("encryption", True),
        ("table_encryption", "secret"),
        ("replication_factor", 8),
        ("replication_factor", -2),
        ("min_isr", 8),
        ("unshipped_bytes_max", 1),
        ("auto_pause_ms", 99),
        ("auto_pause_ms", 30 * 86_400_000 + 1),
        ("compact", 1),
        ("tombstone_delay_ms", -1),
        ("tombstone_delay_ms", 366 * 86_400_000 + 1),
        ("compact_dirty_percent", 0),
        ("compact_dirty_percent", 101),
        ("history", "drop"),
        ("history", True),
        ("partitions", True),
        ("partitions", "1"),
        ("puback", 1),
        ("key_header", None),
    ],
)
def test_a_setting_out_of_bounds_or_of_another_type_is_refused_by_name(
    name: str, value: object
) -> None:
    """The error names the wrong setting."""
    with pytest.raises(InvalidStreamError, match=name):
        StreamConfig.from_dict({"subject": "s", name: value})


def test_a_setting_that_nobody_knows_is_refused_with_the_known_ones() -> None:
    """A misspelt setting is never ignored."""
    with pytest.raises(InvalidStreamError, match=r"'partition'; known: subject, partitions"):
        StreamConfig.from_dict({"subject": "s", "partition": 2})


def test_a_stream_of_an_older_build_has_the_defaults_of_later_settings() -> None:
    """A setting that its creator could not choose yet has its default."""
    assert StreamConfig.from_dict({"subject": "s"}) == StreamConfig(subject="s")
