"""What a broker tells of a stream's table, and of the leases that keep its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.model.ids import LeaseId
from broker.model.offsets import Offset, OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A stream's table at one version."""

    table_uri: str
    version: int | None  # None: no table yet
    ranges: Mapping[int, OffsetRange]  # partition -> [remote start, cold end)
    files_count: int
    files_bytes: int
    digest: str | None = None  # hex SHA-256 of the commit that made the version


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """How far one partition is shipped to the table."""

    partition: int
    cold: OffsetRange
    local_start: Offset
    high_watermark: Offset
    unshipped_bytes: int
    last_error: str | None
    last_shipped_us: int | None
    # Of the partition's part of the table. None: this broker has not read the table yet.
    table_bytes: int | None = None  # of its data files
    gone_count: int | None = None  # records below ``cold.end`` that key compaction has removed


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that has not ended."""

    lease_id: LeaseId
    owner: str
    taken_us: int  # objects that were in the table at this time or came later are not deleted
    expires_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRemains:
    """What one broker knows of a stream that may have been deleted."""

    present: bool  # its metadata has the stream
    deleted: bool  # its metadata has the stream's deletion
    shipping: bool  # it may be writing to the stream's table
