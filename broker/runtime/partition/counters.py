"""The counters of a partition, and the callback for its commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OnCommit = Callable[[float, int], None]  # seconds and records of one group commit; quick


def ignore_commit(seconds: float, records_count: int) -> None:
    """Do nothing: the default. The daemon passes a callback that counts."""


@dataclass(slots=True)
class PartitionCounters:
    """Counts since the partition was opened; plain numbers, read without a lock."""

    appended_records: int = 0
    appended_bytes: int = 0
    duplicate_records: int = 0
    refused_writes: int = 0
    syncs: int = 0
    freed_segments: int = 0
    received_first_us: int = 0  # when a publisher's records were first stored here; 0: never
    received_latest_us: int = 0
    followers: int = 0  # reads without an end that are open now
    compacted_segments: int = 0  # written anew by key compaction
    compacted_records: int = 0  # removed by key compaction
    dropped_messages: int = 0  # messages of other replicas, which are sent again
