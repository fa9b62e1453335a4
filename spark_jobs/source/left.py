"""The records that key compaction has left in a range: counted first, then read exactly.

This is for streams without a table. Replicas compact by themselves, so
two brokers may have different superseded records of one range.
Nevertheless a read has the same rows in every task and every action. When the read is planned, the
records of each slice are counted, with a checksum of their offsets. A task returns exactly these
records, or fails with a typed error. The lease of the read keeps each replica as it is; so only a
change of leaders during the read can make the difference.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.codec.checksum import crc32c
from broker.errors import (
    CompactedRangeError,
    FencedError,
    InvalidRequestError,
    OverlapError,
    UnavailableError,
)
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from broker.model.stream import Stream
from spark_jobs.source.lookup import PATIENCE_S, Backoff
from spark_jobs.source.partitions import LeftRecords, OffsetSlice

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import Client, Fetched

_SLICES_MAX: Final = 100_000  # of one option


@dataclass(frozen=True, slots=True)
class Counted:
    """A slice, the records that it still has, and the range of the batches that lack records."""

    piece: OffsetSlice
    left: LeftRecords
    thinned: OffsetRange | None  # None: every record is there

    @property
    def missing_count(self) -> int:
        """Number of records that are gone."""
        return self.piece.records_count - self.left.rows


def may_lack_records(stream: Stream) -> bool:
    """Tell whether key compaction may have removed records that no table has."""
    return stream.config.compact and not stream.config.tiering


def count_left(
    client: Client, stream: str, uuid: str, piece: OffsetSlice, *, patience_s: float = PATIENCE_S
) -> Counted:
    """Count the records of a slice; reads their offsets, and blocks.

    Raises:
        HeadwaterError: as for a read of the slice.
    """
    sum_up = _Sum()
    start: Offset | None = None
    end = piece.start
    for part in parts_of(client, stream, uuid, piece, ("offset",), patience_s=patience_s):
        sum_up.add(part.batch.column("offset"))
        if part.removed_count:
            start = part.base_offset if start is None else start
            end = part.end_offset
    return Counted(piece, sum_up.left, None if start is None else OffsetRange(start, end))


def read_left(
    client: Client,
    piece: OffsetSlice,
    left: LeftRecords,
    *,
    stream: str,
    stream_uuid: str,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Yield the records that were counted, in offset order; blocks.

    Raises:
        CompactedRangeError: the broker that answers has other records of the slice.
        HeadwaterError: as for any read.
    """
    sum_up = _Sum()
    asked = columns if "offset" in columns else ("offset", *columns)
    for part in parts_of(client, stream, stream_uuid, piece, asked):
        sum_up.add(part.batch.column("offset"))
        if sum_up.left.rows > left.rows:
            break
        if part.batch.num_rows:
            yield part.batch.select(list(columns))
    if sum_up.left != left:
        raise CompactedRangeError(
            f"{stream}/{piece.partition}: when this read was planned, {left.rows:,} records were "
            f"left of [{piece.start}, {piece.end}); the broker that leads now has others, because "
            "each replica compacts its own log. Begin the read anew",
            partition=piece.partition,
            start=piece.start,
            end=piece.end,
        )


def to_text(counted: Iterable[Counted]) -> str:
    """Return the option ``compactedRows``: [[partition, start, end, rows, checksum], …]."""
    rows = [
        [one.piece.partition, one.piece.start, one.piece.end, one.left.rows, one.left.checksum]
        for one in counted
    ]
    return json.dumps(rows, separators=(",", ":"))


def from_text(text: str) -> tuple[tuple[OffsetSlice, LeftRecords], ...]:
    """Parse the option; the slices are in order and do not overlap.

    Raises:
        InvalidRequestError: it is anything else.
    """
    try:
        rows = json.loads(text)
    except ValueError as cause:
        raise _malformed() from cause
    if not isinstance(rows, list) or len(rows) > _SLICES_MAX:
        raise _malformed()
    found = [_slice_of(row) for row in rows]
    ends = [(piece.partition, piece.start) for piece, _ in found]
    overlap = any(
        one.partition == other.partition and other.start < one.end
        for (one, _), (other, _) in itertools.pairwise(found)
    )
    if ends != sorted(ends) or overlap:
        raise _malformed()
    return tuple(found)


def _slice_of(row: object) -> tuple[OffsetSlice, LeftRecords]:
    if not isinstance(row, list) or len(row) != 5:
        raise _malformed()
    if not all(type(one) is int and 0 <= one <= OFFSET_MAX for one in row):
        raise _malformed()
    partition, start, end, rows, checksum = row
    if start >= end or rows > end - start or checksum >= 1 << 32:
        raise _malformed()
    return OffsetSlice(partition, Offset(start), Offset(end)), LeftRecords(rows, checksum)


def _malformed() -> InvalidRequestError:
    return InvalidRequestError(
        "compactedRows is set by headwater.read and headwater.sql; leave it out"
    )


def parts_of(
    client: Client,
    stream: str,
    uuid: str,
    piece: OffsetSlice,
    columns: Sequence[str],
    *,
    patience_s: float = PATIENCE_S,
) -> Iterator[Fetched]:
    """Yield a slice's batches, which follow one another; waits for a broker that restarts."""
    position = piece.start
    backoff = Backoff(patience_s)
    while position < piece.end:
        fetched = client.fetch(
            stream, piece.partition, position, piece.end, columns=list(columns), stream_uuid=uuid
        )
        try:
            for part in fetched:
                if part.base_offset != position or part.end_offset > piece.end:
                    raise OverlapError(
                        f"partition {piece.partition}: got [{part.base_offset}, "
                        f"{part.end_offset}), expected offset {position}",
                        partition=piece.partition,
                        start=part.base_offset,
                        end=part.end_offset,
                    )
                position = part.end_offset
                backoff.progressed()
                yield part
        except (UnavailableError, FencedError) as error:
            backoff.wait(error)
        finally:
            fetched.close()


class _Sum:
    """The number of records so far, and the CRC-32C of their offsets (int64, little-endian)."""

    def __init__(self) -> None:
        self.left = LeftRecords(0, 0)

    def add(self, offsets: Any) -> None:
        """Add a column of offsets."""
        data = offsets.to_numpy(zero_copy_only=False).astype("<i8").tobytes()
        self.left = LeftRecords(self.left.rows + len(offsets), crc32c(data, self.left.checksum))
