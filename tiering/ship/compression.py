"""Which codec a column of payloads gets: zstd, or none where zstd would only burn time.

Images, ciphertext and what was compressed before do not shrink: packing such values took half of
the CPU of writing them, and unpacking a part of every read. A sample of the first rows decides for
a file; a wrong guess costs space or time, nothing else.
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
_SAMPLE_BYTES_MIN: Final = 8 * 1024  # so few bytes cost nothing, and tell nothing
_WORTH: Final = 0.92  # at most so much must be left


def codecs(
    schema: pa.Schema, payloads: Sequence[str], rows: Sequence[pa.RecordBatch]
) -> dict[str, Any]:
    """Return pyarrow's writer options for the codecs of a file.

    Args:
        schema: the file's.
        payloads: top-level binary columns that may hold what does not shrink.
        rows: the file's first rows, of that schema.
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
    """Tell whether values like these get smaller; yes when there are too few to tell."""
    codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
    size = packed = 0
    for sample in _samples(columns):  # one by one: what repeats far away shrinks no page
        size += len(sample)
        packed += codec.compress(sample).size if sample else 0
    return size < _SAMPLE_BYTES_MIN or packed <= _WORTH * size


def _samples(columns: Sequence[pa.Array]) -> Iterator[bytes]:
    """Yield bytes from some places of binary columns, in order; the same for the same values."""
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
