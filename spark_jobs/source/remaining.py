"""The records that a slice still has: each of them, or all that key compaction has left.

For tasks whose result is committed as a whole, with the number of its rows. Two attempts of such a
task may find different superseded records, because key compaction went on in between; only one of
them counts. A read whose parts may be repeated one by one needs the same records each time: it has
reader.py, which refuses, or left.py, which counts first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.errors import CompactedRangeError, HeadwaterError
from broker.model.offsets import Offset
from spark_jobs.failures import annotate
from spark_jobs.source.left import parts_of
from spark_jobs.source.partitions import OffsetSlice
from spark_jobs.source.reader import conform, read_slice
from spark_jobs.source.shapes import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import Client


class RemainingRecords:
    """An iterator over the records of one slice, in offset order. One thread; iterate once."""

    def __init__(
        self,
        client: Client,
        piece: OffsetSlice,
        *,
        stream: str,
        stream_uuid: str,
        columns: tuple[str, ...],
    ) -> None:
        """Read nothing yet; ``columns`` has ``offset``."""
        assert "offset" in columns, "the rows tell where the read is"
        self.gone_count = 0  # records that key compaction has removed, up to where the read is
        self._client = client
        self._piece = piece
        self._stream = stream
        self._stream_uuid = stream_uuid
        self._columns = columns

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; blocks.

        Raises:
            HeadwaterError: as :func:`spark_jobs.source.reader.read_slice`, but for a compacted
                range.
        """
        position = self._piece.start
        while position < self._piece.end:
            rest = OffsetSlice(self._piece.partition, position, self._piece.end)
            try:
                for batch in self._whole(rest):
                    position = Offset(batch.column("offset")[-1].as_py() + 1)
                    yield batch
            except CompactedRangeError as error:
                end = min(rest.end, Offset(int(error.facts["end"])))
            else:
                return
            yield from self._left(OffsetSlice(rest.partition, position, end))
            position = end

    def _whole(self, rest: OffsetSlice) -> Iterator[pa.RecordBatch]:
        return read_slice(
            self._client,
            rest,
            stream=self._stream,
            stream_uuid=self._stream_uuid,
            columns=self._columns,
        )

    def _left(self, piece: OffsetSlice) -> Iterator[pa.RecordBatch]:
        """Yield what the broker has of a range, also out of the table."""
        schema = arrow_schema(self._columns)
        try:
            for part in parts_of(
                self._client, self._stream, self._stream_uuid, piece, self._columns
            ):
                self.gone_count += part.removed_count
                if part.batch.num_rows:
                    yield conform(part.batch, schema)
        except HeadwaterError as error:
            raise annotate(error) from None
