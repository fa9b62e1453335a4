"""The settings of a stream, as keyword arguments whose names and types a checker knows.

The values and their bounds are those of ``broker/model/stream.py``, where they are explained; a
test compares the two. ``subject`` is not here: ``Client.create_stream`` has it by itself.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class StreamSettings(TypedDict, total=False):
    """What ``Client.create_stream`` takes besides a name and a subject."""

    partitions: int
    queue_group: str | None
    key_header: str
    puback: bool
    dedup_window_ms: int
    dedup_ids_max: int
    record_bytes_max: int
    segment_bytes_max: int
    segment_age_ms_max: int
    index_interval_bytes: int
    flush: Literal["always", "interval"]
    flush_interval_ms: int
    compression: Literal["none", "lz4", "zstd"]
    replication_factor: int
    min_isr: int
    tiering: bool
    local_retention_bytes: int
    local_retention_ms: int | None
    unshipped_bytes_max: int | None
