"""Columns of one value, made once if they are short, and shared by all batches.

Most replies have a few records. A short column of Arrow is costly to make for what it holds, and
with each Arrow gives Python's lock up, which other threads may take.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA

_SHARED_ROWS: Final = 16
_SHARED_MAX: Final = 512  # columns; with subjects of 255 bytes 2 MiB


def repeated(name: str, value: int | str | None, rows: int) -> pa.Array:
    """Return the column ``name`` of ROW_SCHEMA with the same value in each row.

    Others have the same column: never write to its buffers.
    """
    return (_shared if rows <= _SHARED_ROWS else _made)(name, value, rows)


def _made(name: str, value: int | str | None, rows: int) -> pa.Array:
    kind = ROW_SCHEMA.field(name).type
    if isinstance(value, int):  # Arrow's own repetition takes ten times as long
        filled = pa.py_buffer(np.full(rows, value, dtype=kind.to_pandas_dtype()))
        return pa.Array.from_buffers(kind, rows, [None, filled])
    if value is not None:
        return pa.repeat(pa.scalar(value, kind), rows)
    if not pa.types.is_list(kind):
        return pa.nulls(rows, kind)
    # Arrow's null lists have an item each, which is sent: 16 bytes for each record.
    bits, ends = pa.py_buffer(bytes((rows + 7) // 8)), pa.py_buffer(bytes(4 * (rows + 1)))
    return pa.Array.from_buffers(kind, rows, [bits, ends], children=[pa.nulls(0, kind.value_type)])


_shared = lru_cache(maxsize=_SHARED_MAX)(_made)  # whole: a part of a longer one is sent whole
