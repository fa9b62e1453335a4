"""Full reads out of Arrow tables and Spark frames: the unified read as the checker sees it.

Nothing here imports Spark: a frame is whatever has ``select`` and ``toArrow``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkkit.content import Headers, fingerprint
from checkkit.facts import groups
from checkkit.readings import Ints, PartReading, Reading, Row, RowColumns, Source

_SENT: Final = ("key", "value", "headers", "subject", "reply_subject", "correlation_id")
COLUMNS: Final = ("partition", "offset", "leader_epoch", "timestamp", *_SENT)
_NO_ROWS: Final = RowColumns.of(())


class Ends(NamedTuple):
    """What a read of one partition was to cover: table rows below the cold end, log rows above."""

    start: int
    cold_end: int
    hot_end: int


class CutPart(Protocol):
    """One partition of a cut."""

    @property
    def partition(self) -> Any:
        """Its number."""

    @property
    def start(self) -> Any:
        """Its first offset."""

    @property
    def cold_end(self) -> Any:
        """Where the table ends."""

    @property
    def hot_end(self) -> Any:
        """Where the read ends."""


class Frame(Protocol):
    """What a Spark DataFrame can do that is needed here."""

    def select(self, *columns: str) -> Any:
        """Return these columns."""


def ends_of(parts: Iterable[CutPart]) -> dict[int, Ends]:
    """Return the ends of a cut's partitions."""
    return {
        int(one.partition): Ends(int(one.start), int(one.cold_end), int(one.hot_end))
        for one in parts
    }


def reading_of_frame(
    frame: Frame, ends: Mapping[int, Ends], *, name: str, began_ns: int
) -> Reading:
    """Collect a frame of both tiers; the tiers are told apart by the cut, not by Spark."""
    table = frame.select(*COLUMNS).toArrow()
    return reading_of_table(table, ends, name=name, began_ns=began_ns, sorted_by_offset=False)


def reading_of_table(
    table: pa.Table,
    ends: Mapping[int, Ends],
    *,
    name: str,
    began_ns: int,
    source: Source = Source.UNIFIED,
    sorted_by_offset: bool = True,
) -> Reading:
    """Turn an Arrow table with ``COLUMNS`` into a full read.

    Args:
        table: the rows, in the order in which they were read.
        ends: what each partition was to cover; also a partition without rows is judged.
        name: for messages.
        began_ns: a time before the ends were taken.
        source: whose rows these are.
        sorted_by_offset: the reader promised this order within each partition and tier.
    """
    found = columns_by_partition(table)
    strange = sorted(found.keys() - ends.keys())
    assert not strange, f"{name} has partitions that the cut has not: {strange}"
    parts = []
    for number, (start, cold_end, hot_end) in ends.items():
        rows = found.get(number, _NO_ROWS)
        is_cold = rows.offsets < cold_end
        parts.append(
            PartReading(
                partition=number,
                start=start,
                cold_end=cold_end,
                hot_end=hot_end,
                cold_rows=_take(rows, np.flatnonzero(is_cold).tolist()),
                hot_rows=_take(rows, np.flatnonzero(~is_cold).tolist()),
            )
        )
    return Reading.of(name, began_ns, parts, source, sorted_by_offset=sorted_by_offset)


def columns_by_partition(table: pa.Table) -> dict[int, RowColumns]:
    """Return the rows of each partition, in the order in which they were read."""
    table = table.select(list(COLUMNS))
    offsets, epochs, partitions = (
        table.column(name).to_numpy().astype(np.int64, copy=False)
        for name in ("offset", "leader_epoch", "partition")
    )
    rows = RowColumns(offsets, _fingerprints(table), epochs, _times_us(table))
    return {number: _take(rows, places.tolist()) for number, places in groups(partitions)}


def rows_of(batch: pa.RecordBatch) -> list[tuple[int, Row]]:
    """Return (partition, row) of every row of a batch with these columns."""
    columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "leader_epoch"))
    contents, times_us = _fingerprints(batch), _times_us(batch).tolist()
    return [
        (partition, Row(offset, content, epoch, time_us))
        for partition, offset, epoch, content, time_us in zip(
            *columns, contents, times_us, strict=True
        )
    ]


def by_partition(batches: Iterable[pa.RecordBatch]) -> dict[int, list[Row]]:
    """Collect the rows of batches by partition."""
    rows: dict[int, list[Row]] = {}
    for batch in batches:
        for partition, row in rows_of(batch):
            rows.setdefault(partition, []).append(row)
    return rows


def _take(rows: RowColumns, places: Sequence[int]) -> RowColumns:
    return RowColumns(
        rows.offsets[places],
        [rows.fingerprints[one] for one in places],
        rows.leader_epochs[places],
        rows.timestamps_us[places],
    )


def _times_us(table: pa.Table | pa.RecordBatch) -> Ints:
    """Return the times as integers, whatever unit and zone a reader gives them."""
    stamps = pc.cast(table.column("timestamp"), pa.timestamp("us", tz="UTC"), safe=True)
    times_us: Ints = pc.cast(stamps, pa.int64()).to_numpy(zero_copy_only=False)
    return times_us


def _fingerprints(table: pa.Table | pa.RecordBatch) -> list[bytes]:
    columns = (table.column(name).to_pylist() for name in _SENT)
    return [
        fingerprint(
            key=key,
            value=value,
            headers=_headers(headers),
            subject=subject,
            reply_subject=reply_subject,
            correlation_id=correlation_id,
        )
        for key, value, headers, subject, reply_subject, correlation_id in zip(
            *columns, strict=True
        )
    ]


def _headers(entries: Sequence[Any] | None) -> Headers:
    """Accept Arrow's lists of dicts and Spark's lists of rows."""
    if entries is None:
        return None
    return tuple((entry["key"], entry["value"]) for entry in entries)
