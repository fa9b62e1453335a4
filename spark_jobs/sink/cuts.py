"""Cutting a task's rows into batches that every attempt cuts in the same way, with their names.

A batch is known to the broker by a producer id, a sequence number and a count, so a retried task
has to cut where the first attempt did. Cuts depend on the rows alone, in their order, never on how
Spark happened to chunk them. The broker recognises the last 64 batches of a producer, so an id
serves that many cuts and then the next begins: every cut of every attempt is recognised, and its
answer says where the stored rows stand.
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
BYTES_MAX: Final = 4 * 1024 * 1024  # a larger row travels alone
_NAMESPACE: Final = "headwater-sink-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where rows come from: one task of one write. Every attempt of it has the same."""

    kind: str  # "query" or "write"
    key: str  # the query's id, or the write's key
    batch: int  # the micro-batch; 0 for a batch write
    task: int  # Spark's partition


def producer_id(
    origin: Origin, stream_uuid: StreamUuid, partition: int, segment: int
) -> ProducerId:
    """Return the producer id of a segment of cuts: 63 bits of a digest of all that names it."""
    parts = (_NAMESPACE, origin.kind, origin.key, origin.batch, origin.task)
    text = "\0".join(map(str, (*parts, stream_uuid, partition, segment)))
    return ProducerId(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1)


class Cutter:
    """Collects the rows of one target partition and gives them back in cuts."""

    def __init__(self, *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the cuts that are full."""
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
        """Yield the last cut, if there are rows left."""
        if self._rows:
            yield self._cut()

    def _cut(self) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415

        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        return pa.concat_batches(held)
