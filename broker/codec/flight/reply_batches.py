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

from broker.codec.record_batch import BatchHeader, decode_body, offsets_of, to_rows
from broker.codec.schema import body_schema
from broker.errors import GapError
from broker.model.offsets import Offset

_ALONE_BYTES: Final = 256 * 1024  # from this size on, copying costs more than one more reply batch
_JOINED_BYTES_MAX: Final = 4 * 1024 * 1024
_JOINED_ROWS_MAX: Final = 64 * 1024
_JOINED_BATCHES_MAX: Final = 256  # a decoded batch of one record takes kilobytes of memory
_SMALL_BYTES: Final = 16 * 1024  # a copy of such a body takes less time than a call for it
_ONE_THREAD: Final = pa.ipc.IpcReadOptions(use_threads=False)  # small bodies are no work to share


@dataclass(frozen=True, slots=True)
class Reply:
    """The rows of ``[base_offset, end_offset)``: in order, each offset at most once."""

    rows: pa.RecordBatch
    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class _Piece:
    """One stored batch, and the part ``[base_offset, end_offset)`` of it that is wanted."""

    header: BatchHeader
    body: object
    base_offset: Offset
    end_offset: Offset

    @property
    def records_max(self) -> int:
        """How many records the part has at most."""
        return min(self.header.records_count, self.end_offset - self.base_offset)


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
        piece = _Piece(header, body, position, min(header.end_offset, end))
        position = piece.end_offset
        alone = header.body_size >= _ALONE_BYTES
        full = group_bytes >= _JOINED_BYTES_MAX or group_rows >= _JOINED_ROWS_MAX
        if group and (alone or full or len(group) >= _JOINED_BATCHES_MAX):
            yield _join(group, partition, subject, schema)
            group, group_bytes, group_rows = [], 0, 0
        group.append(piece)
        group_bytes += header.body_size
        group_rows += piece.records_max
        if alone:
            yield _join(group, partition, subject, schema)
            group, group_bytes, group_rows = [], 0, 0
    if group:
        yield _join(group, partition, subject, schema)


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
    """Decode batches of the same shape, without the records that nobody wants."""
    header = run[0].header
    body = _decoded(run)
    low, high = run[0].base_offset, run[-1].end_offset
    if header.sparse:
        first, last = np.searchsorted(offsets_of(header, body), [low, high])
        body = body.slice(int(first), int(last - first))
    elif low > header.base_offset or high - low < body.num_rows:
        body = body.slice(low - header.base_offset, high - low)
        header = replace(header, base_offset=low, records_count=high - low, offset_span=high - low)
    return to_rows(header, body, partition=partition, subject=subject, schema=schema)


def _decoded(run: Sequence[_Piece]) -> pa.RecordBatch:
    """Decode whole batches of the same shape, many small ones in one step.

    A body is a message of Arrow IPC. With their schema before them, bodies are a stream, which
    Arrow reads without Python's lock. One by one it gives the lock up and takes it again for each.
    """
    size = sum(piece.header.body_size for piece in run)
    if len(run) > 1 and size <= len(run) * _SMALL_BYTES and (whole := _as_stream(run)) is not None:
        return whole
    bodies = [decode_body(piece.header, piece.body) for piece in run]
    return bodies[0] if len(bodies) == 1 else pa.concat_batches(bodies)


def _as_stream(run: Sequence[_Piece]) -> pa.RecordBatch | None:
    """Return None if a body is not what its header says; one by one they tell which it is."""
    header = run[0].header
    if any(piece.header.encrypted for piece in run):
        return None
    schema = body_schema(header.columns, sparse=False).serialize()
    bodies = pa.py_buffer(b"".join([schema, *(piece.body for piece in run)]))  # type: ignore[list-item]
    try:
        table = pa.ipc.open_stream(bodies, options=_ONE_THREAD).read_all()
        table.validate()
        batches = table.to_batches()
    except (pa.ArrowException, OSError, EOFError, MemoryError):
        return None
    if [one.num_rows for one in batches] != [piece.header.records_count for piece in run]:
        return None
    return pa.concat_batches(batches)
