"""Chooses the codec of a column of payloads: zstd, or none if zstd would not shrink the values.

Images, ciphertext and values that are compressed already do not shrink. Compressing such values
took half of the CPU time of writing them, and decompressing took a part of every read. A sample of
a file's first rows decides for the file. A wrong decision costs space or time, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

ZSTD_LEVEL: Final = 1
_SPOTS: Final = 4
_SPOT_BYTES: Final = 32 * 1024
_SAMPLE_BYTES_MIN: Final = 8 * 1024  # a smaller sample tells nothing, so the column is compressed
_RATIO_MAX: Final = 0.92  # compressed size over plain size; above this, no compression


def codecs(
    schema: pa.Schema, payloads: Sequence[str], rows: Sequence[pa.RecordBatch]
) -> dict[str, Any]:
    """Return pyarrow's writer options for the codecs of a file.

    Args:
        schema: the schema of the file.
        payloads: top-level binary columns whose values may not shrink.
        rows: the first rows of the file, in that schema.
    """
    plain = {name for name in payloads if not worth_packing([one.column(name) for one in rows])}
    packed = [leaf for field in schema if field.name not in plain for leaf in _leaves(field)]
    if not plain:
        return {"compression": "zstd", "compression_level": ZSTD_LEVEL}
    return {
        "compression": {**dict.fromkeys(packed, "zstd"), **dict.fromkeys(plain, "none")},
        "compression_level": dict.fromkeys(packed, ZSTD_LEVEL),
    }


def worth_packing(columns: Sequence[pa.Array]) -> bool:
    """Tell whether values like these get smaller; True if there are too few to tell."""
    codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
    size = packed = 0
    for sample in _samples(columns):  # one by one: repeats far apart do not shrink a page
        size += len(sample)
        packed += codec.compress(sample).size if sample else 0
    return size < _SAMPLE_BYTES_MIN or packed <= _RATIO_MAX * size


def _samples(columns: Sequence[pa.Array]) -> Iterator[bytes]:
    """Yield bytes from a few places of binary columns, in order; equal values give equal bytes."""
    filled = [column for column in columns if len(column)]
    step = -(-len(filled) // _SPOTS)
    for column in filled[:: max(1, step)]:
        yield _middle(column)


def _middle(column: pa.Array) -> bytes:
    """Return bytes of the values in the middle of a binary column."""
    assert pt.is_binary(column.type), "payloads are binary"
    data: pa.Buffer | None = column.buffers()[2]
    if data is None:
        return b""
    last = column.offset + len(column)
    ends = np.frombuffer(column.buffers()[1], dtype=np.int32, count=last + 1)
    low, high = int(ends[column.offset]), int(ends[last])
    start = max(low, (low + high - _SPOT_BYTES) // 2)
    return bytes(data[start : min(high, start + _SPOT_BYTES)])


def _leaves(field: pa.Field, above: str = "") -> Iterator[str]:
    """Yield the paths of a column's leaves as Parquet spells them."""
    path, kind = f"{above}{field.name}", field.type
    if pt.is_struct(kind):
        for child in kind:
            yield from _leaves(child, f"{path}.")
    elif pt.is_map(kind):
        yield from _leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from _leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        yield from _leaves(kind.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path
