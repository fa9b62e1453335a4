"""The values that a group member returns: rows, and records as Python values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from broker.model.groups import NO_LEADER_EPOCH, ToldClaim
from broker.model.offsets import Offset
from headwater.client.fetch import Fetched


class AssignedPartition(NamedTuple):
    """One partition of a stream."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Rows of ``[base_offset, end_offset)`` of one partition, as :class:`Fetched` has them."""

    stream: str
    partition: int
    rows: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset
    high_watermark: Offset  # as the broker saw it when it sent these rows


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One record; fields of columns that were not asked for are None."""

    stream: str
    partition: int
    offset: Offset
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_us: int | None
    subject: str | None


def records_of(claim: ToldClaim, fetched: Fetched) -> list[tuple[GroupRecord, int]]:
    """Return the records of a batch, each with its leader epoch if that column is there.

    The batch has the column ``offset``: key compaction may have removed records between its rows.
    """
    rows, count = fetched.batch, fetched.batch.num_rows

    def column(name: str) -> list[Any]:
        if name not in rows.schema.names:
            return [None] * count
        values = rows.column(name)
        found = values.cast(pa.int64()) if name == "timestamp" else values
        return list(found.to_pylist())

    columns = zip(
        rows.column("offset").to_pylist(),
        column("key"),
        column("value"),
        column("headers"),
        column("timestamp"),
        column("subject"),
        column("leader_epoch"),
        strict=True,
    )
    return [
        (
            GroupRecord(
                claim.stream,
                claim.partition,
                Offset(offset),
                key,
                value,
                tuple((header["key"], header["value"]) for header in headers or ()),
                stamp,
                subject,
            ),
            NO_LEADER_EPOCH if epoch is None else epoch,
        )
        for offset, key, value, headers, stamp, subject, epoch in columns
    ]
