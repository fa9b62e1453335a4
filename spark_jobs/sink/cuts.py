"""Divides a task's rows into batches, called *cuts*, the same in every attempt; names the cuts.

The broker identifies a batch by producer id, sequence number and count. So a retried task has to
divide its rows at the same places as the first attempt. Cuts depend only on the rows and their
order, never on the sizes of Spark's batches. The broker recognises the last 64 batches of a
producer. So one producer id is used for 64 cuts, called a *segment*, and then a new id begins.
Then every cut of every attempt is recognised, and the answer has the offset of the stored rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.model.ids import ProducerId, StreamUuid
from spark_jobs.sink.columns import row_sizes

if TYPE_CHECKING:
    import pyarrow as pa

CUTS_PER_PRODUCER: Final = 64
ROWS_MAX: Final = 16_384
BYTES_MAX: Final = 4 * 1024 * 1024  # a larger row is a cut of its own
_NAMESPACE: Final = "headwater-sink-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of rows: one task of one write. Every attempt of the task has the same origin."""

    kind: str  # "query" or "write"
    key: str  # the query's id, or the write's key
    batch: int  # the micro-batch; 0 for a batch write
    task: int  # Spark's partition


def producer_id(
    origin: Origin, stream_uuid: StreamUuid, partition: int, segment: int
) -> ProducerId:
    """Return the producer id of a segment of cuts: 63 bits of a digest of all the arguments."""
    parts = (_NAMESPACE, origin.kind, origin.key, origin.batch, origin.task)
    text = "\0".join(map(str, (*parts, stream_uuid, partition, segment)))
    return ProducerId(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1)


class Cutter:
    """Collects the rows of one target partition and returns them as cuts."""

    def __init__(self, *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows; yield the cuts that are full."""
        ends = row_sizes(records).cumsum()
        start, before = 0, 0
        while start < records.num_rows:
            fit = int(ends.searchsorted(before + self._bytes_max - self._bytes, side="right"))
            end = min(fit, start + self._rows_max - self._rows)
            if end <= start and self._rows:
                yield self._cut()
                continue
            end = max(end, start + 1)
            self._held.append(records.slice(start, end - start))
            self._rows += end - start
            self._bytes += int(ends[end - 1]) - before
            start, before = end, int(ends[end - 1])

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the last cut, if rows are left."""
        if self._rows:
            yield self._cut()

    def _cut(self) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415

        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        return pa.concat_batches(held)
