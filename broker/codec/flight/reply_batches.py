"""Turn stored batches into reply batches: exact offsets, the wanted columns, no tiny pieces.

A large stored batch is not copied. Small neighbouring batches are joined first (a stream with
little traffic stores one record per batch), so that the cost of a read depends on its bytes and
not on the number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from broker.codec.record_batch import BatchHeader, decode_body, to_rows
from broker.errors import GapError
from broker.model.offsets import Offset

_ALONE_BYTES: Final = 256 * 1024  # from this size on, copying costs more than one more reply batch
_JOINED_BYTES_MAX: Final = 4 * 1024 * 1024
_JOINED_ROWS_MAX: Final = 64 * 1024
_JOINED_BATCHES_MAX: Final = 256  # a decoded batch of one record takes kilobytes of memory


@dataclass(frozen=True, slots=True)
class Reply:
    """The rows of ``[base_offset, end_offset)``: in order, each offset at most once."""

    rows: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of one stored batch that the reader asked for, decoded."""

    header: BatchHeader  # of the part if the batch is dense, of the whole batch if it is sparse
    body: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset


def replies(
    stored: Sequence[tuple[BatchHeader, object]],
    *,
    start: Offset,
    end: Offset,
    partition: int,
    subject: str,
    schema: pa.Schema,
) -> Iterator[Reply]:
    """Yield the rows of ``[start, end)`` from the batches ``stored``, in order.

    The first batch must hold ``start``. If ``stored`` ends before ``end``, the rows end there.

    Raises:
        GapError: a batch does not begin where the one before it ended.
        BatchCorruptError: a body does not decode.
    """
    group: list[_Piece] = []
    group_bytes = group_rows = 0
    position = start
    for header, body in stored:
        if position >= end:
            break
        if header.base_offset > position or header.end_offset <= position:
            raise GapError(
                f"partition {partition}: offset {position} is missing, the next batch holds "
                f"[{header.base_offset}, {header.end_offset})",
                partition=partition,
                start=position,
                end=header.base_offset,
            )
        piece = _clip(header, decode_body(header, body), position, end)
        position = piece.end_offset
        alone = header.body_size >= _ALONE_BYTES
        full = group_bytes >= _JOINED_BYTES_MAX or group_rows >= _JOINED_ROWS_MAX
        if group and (alone or full or len(group) >= _JOINED_BATCHES_MAX):
            yield _join(group, partition, subject, schema)
            group, group_bytes, group_rows = [], 0, 0
        group.append(piece)
        group_bytes += header.body_size
        group_rows += piece.body.num_rows
        if alone:
            yield _join(group, partition, subject, schema)
            group, group_bytes, group_rows = [], 0, 0
    if group:
        yield _join(group, partition, subject, schema)


def _clip(header: BatchHeader, body: pa.RecordBatch, start: Offset, end: Offset) -> _Piece:
    """Cut a batch to the offsets of ``[start, end)``; zero-copy."""
    low = max(header.base_offset, start)
    high = min(header.end_offset, end)
    if low == header.base_offset and high == header.end_offset:
        return _Piece(header, body, low, high)
    if header.sparse:
        deltas = np.asarray(body.column("offset_delta")).astype(np.int64)
        first, last = np.searchsorted(deltas, [low - header.base_offset, high - header.base_offset])
        return _Piece(header, body.slice(int(first), int(last - first)), low, high)
    part = replace(header, base_offset=low, records_count=high - low, offset_span=high - low)
    return _Piece(part, body.slice(low - header.base_offset, high - low), low, high)


def _join(pieces: Sequence[_Piece], partition: int, subject: str, schema: pa.Schema) -> Reply:
    """Make one reply; neighbours of the same shape are joined before their columns are made."""
    parts: list[pa.RecordBatch] = []
    run: list[_Piece] = []
    for piece in pieces:
        if run and not _same_shape(run[-1].header, piece.header):
            parts.append(_rows(run, partition, subject, schema))
            run = []
        run.append(piece)
    parts.append(_rows(run, partition, subject, schema))
    rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    return Reply(rows, pieces[0].base_offset, pieces[-1].end_offset)


def _same_shape(one: BatchHeader, other: BatchHeader) -> bool:
    return (
        not one.sparse
        and not other.sparse
        and one.columns == other.columns
        and one.leader_epoch == other.leader_epoch
    )


def _rows(run: Sequence[_Piece], partition: int, subject: str, schema: pa.Schema) -> pa.RecordBatch:
    body = run[0].body if len(run) == 1 else pa.concat_batches([piece.body for piece in run])
    return to_rows(run[0].header, body, partition=partition, subject=subject, schema=schema)
