"""Sparse batches: the record batches that key compaction writes. Pure.

A sparse batch covers the offsets ``[base, base + span)`` and has a record at some of them, perhaps
at none. So the batches of a compacted log still follow one another without a gap, and every offset
and leader epoch has its place. The records keep their offsets, in the column ``offset_delta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.codec.checksum import crc32c
from broker.codec.record_batch import BatchHeader, decode_body, encode_body, offsets_of
from broker.codec.schema import OFFSET_DELTA_FIELD, OPTIONAL_COLUMNS, TIMESTAMP_FIELD, body_schema
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE
from broker.model.offsets import Offset

SPAN_MAX: Final = (1 << 32) - 1  # the header's field of four bytes

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Survivors:
    """Records that stay, of one or more neighbouring batches: their offsets and their columns."""

    offsets: Offsets
    columns: pa.RecordBatch  # `timestamp` and optional columns, perhaps `offset_delta`


def dense_batches(header: BatchHeader, bodies: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return neighbouring bodies of one shape as one, without their offsets."""
    whole = bodies[0] if len(bodies) == 1 else pa.concat_batches(bodies)
    if header.sparse:
        return whole.drop_columns([OFFSET_DELTA_FIELD.name])
    return whole


def encode_sparse(
    like: BatchHeader, end: Offset, survivors: Sequence[Survivors], *, keep_producer: bool = False
) -> tuple[BatchHeader, Any]:
    """Return header and body of a sparse batch for ``[like.base_offset, end)``.

    ``like`` is the first of the batches that it replaces, which have one leader epoch. The producer
    of ``like`` stays only with ``keep_producer``: then no other batch is replaced.
    """
    base = like.base_offset
    assert 0 < end - base <= SPAN_MAX, f"a batch cannot have the offsets [{base}, {end})"
    filled = [one for one in survivors if len(one.offsets)]
    names = {name for one in filled for name in one.columns.schema.names}
    wanted = [(bit, field) for bit, field in OPTIONAL_COLUMNS if field.name in names]
    mask, arrays = 0, [_joined(filled, TIMESTAMP_FIELD)]
    for bit, field in wanted:
        column = _joined(filled, field)
        if column.null_count < len(column):
            mask |= bit
            arrays.append(column)
    offsets = np.concatenate([np.empty(0, np.int64), *(one.offsets for one in filled)])
    arrays.append(pa.array((offsets - base).astype(np.uint32)))
    batch = pa.RecordBatch.from_arrays(arrays, schema=body_schema(mask, sparse=True))
    body = encode_body(batch, like.codec)
    stamps = np.asarray(arrays[0])
    header = replace(
        like,
        first_timestamp_us=int(stamps[0]) if len(stamps) else 0,
        max_timestamp_us=int(stamps.max()) if len(stamps) else 0,
        producer_id=like.producer_id if keep_producer else NO_PRODUCER,
        base_sequence=like.base_sequence if keep_producer else NO_SEQUENCE,
        records_count=len(offsets),
        offset_span=end - base,
        body_size=len(body),
        body_crc=crc32c(body),
        columns=mask,
        sparse=True,
    )
    return header, body


def from_offset(header: BatchHeader, body: Any, start: Offset) -> tuple[BatchHeader, Any]:
    """Return the part of a sparse batch from ``start`` on, as a batch of its own.

    A follower may end at an offset at which a batch began before the leader compacted its log.
    """
    assert header.sparse, "a dense batch is never cut"
    assert header.base_offset < start < header.end_offset, f"{start} is not within the batch"
    decoded = decode_body(header, body)
    offsets = offsets_of(header, decoded)
    first = int(np.searchsorted(offsets, start))
    columns = decoded.drop_columns([OFFSET_DELTA_FIELD.name]).slice(first)
    part = replace(header, base_offset=start)
    return encode_sparse(part, header.end_offset, [Survivors(offsets[first:], columns)])


def _joined(survivors: Sequence[Survivors], field: pa.Field) -> pa.Array:
    """Return one column of all survivors; null where a batch does not have it."""
    parts = []
    for one in survivors:
        index = one.columns.schema.get_field_index(field.name)
        parts.append(
            pa.nulls(one.columns.num_rows, field.type) if index < 0 else one.columns.column(index)
        )
    if not parts:
        return pa.array([], field.type)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
