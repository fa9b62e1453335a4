"""The settings of a stream as keyword arguments, so that a type checker knows names and types.

``broker/model/stream.py`` explains the values and their bounds; a test compares the two modules.
``subject`` is not here, because ``Client.create_stream`` has a parameter for it.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class StreamSettings(TypedDict, total=False):
    """The settings of ``Client.create_stream`` and ``Client.alter_stream``, but the subject."""

    partitions: int
    partitioner: Literal["crc32", "each_client"]
    queue_group: str | None
    key_header: str
    puback: bool
    puback_overlap: bool
    puback_headers_only: bool
    optimistic_concurrency: bool
    dedup_window_ms: int
    dedup_ids_max: int
    record_bytes_max: int
    segment_bytes_max: int
    segment_age_ms_max: int
    index_interval_bytes: int
    flush: Literal["always", "interval"]
    flush_interval_ms: int
    compression: Literal["none", "lz4", "zstd"]
    encryption: Literal["none", "xaes-256-gcm"]
    table_encryption: Literal["plaintext", "ciphertext"]
    replication_factor: int
    min_isr: int
    compact: bool
    tombstone_delay_ms: int
    compact_dirty_percent: int
    history: Literal["keep", "compact"]
    tiering: bool
    local_retention_bytes: int
    local_retention_ms: int | None
    local_retention_records: int | None
    unshipped_bytes_max: int | None
    remote_retention_ms: int | None
    remote_retention_bytes: int | None
    remote_retention_records: int | None
    remote_delete_grace_ms: int
    protect_groups: bool
    auto_pause_ms: int | None
    auto_pause_unless_subscribed: bool
