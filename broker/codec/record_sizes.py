"""The size of each record of a producer's batch, from the offset buffers, without a Python loop.

The size of a record is the bytes of its value, key and headers together. A stream's setting
``record_bytes_max`` limits this size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.errors import RecordTooLargeError

_Sizes = npt.NDArray[np.int64]


def check_record_sizes(batch: pa.RecordBatch, *, record_bytes_max: int) -> None:
    """Raise RecordTooLargeError, with the row, if a record is larger than ``record_bytes_max``."""
    if batch.nbytes <= record_bytes_max:
        return  # all records together are not larger than one may be
    sizes = record_sizes(batch)
    row = int(sizes.argmax())
    if sizes[row] > record_bytes_max:
        raise RecordTooLargeError(
            f"record {row} of the batch has {sizes[row]} bytes; this stream takes at most "
            f"{record_bytes_max} (record_bytes_max)",
            row=row,
            size_bytes=int(sizes[row]),
            limit_bytes=record_bytes_max,
        )


def record_sizes(batch: pa.RecordBatch) -> _Sizes:
    """Return the bytes of value, key and headers of each row; the columns must be validated."""
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for name in ("key", "value"):
        index = batch.schema.get_field_index(name)
        if index >= 0:
            sizes += _lengths(batch.column(index))
    index = batch.schema.get_field_index("headers")
    if index >= 0:
        sizes += _header_sizes(batch.column(index))
    return sizes


def _lengths(column: pa.Array) -> _Sizes:
    """Return the bytes of each binary or text value; a null has none."""
    lengths = np.diff(_offsets(column))
    if column.null_count:
        lengths[np.asarray(column.is_null())] = 0
    return lengths


def _offsets(column: pa.Array) -> _Sizes:
    """Return the ``len + 1`` offsets of a variable-size array, which may be a slice."""
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros(len(column) + 1, dtype=np.int64)
    offsets = np.frombuffer(buffer, dtype=np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _header_sizes(column: pa.ListArray) -> _Sizes:
    offsets = _offsets(column)
    if offsets[-1] == offsets[0]:
        return np.zeros(len(column), dtype=np.int64)
    entries = column.values  # of the whole array, not of the slice: the offsets point into it
    ends = np.zeros(len(entries) + 1, dtype=np.int64)
    np.cumsum(_lengths(entries.field(0)) + _lengths(entries.field(1)), out=ends[1:])
    sizes = ends[offsets[1:]] - ends[offsets[:-1]]
    if column.null_count:
        sizes[np.asarray(column.is_null())] = 0
    return sizes
