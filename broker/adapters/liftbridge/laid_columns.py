"""Serializes many messages of one partition at once, by columns, while other threads run Python.

Written one after another, messages keep Python's lock for 1 to 3 µs each. So a subscription that
reads as fast as it can had the lock for most of the time, and acknowledgements waited for it.
Arrow and numpy give the lock away while they work, and take a quarter of the time. The bytes are
those of :func:`~broker.adapters.liftbridge.laid_messages.lay_out`, which takes less time for few
messages.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.adapters.liftbridge.http2 import Messages
from broker.adapters.liftbridge.laid_messages import (
    KEY_TAG,
    OFFSET_TAG,
    STAMP_TAG,
    VALUE_TAG,
    VARINT_BITS,
    field_begin,
)

_Numbers = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]  # a row for each message, each of the same length

_WIDER: Final = 1 << VARINT_BITS * np.arange(1, 9, dtype=np.int64)  # first numbers of 2 to 9 bytes
_LOW_BITS: Final = (1 << VARINT_BITS) - 1
_GOES_ON: Final = 1 << VARINT_BITS
_NOTHING: Final = pa.scalar(b"", pa.binary())


def lay_out_columns(
    common: bytes, offsets: _Numbers, stamps_ns: _Numbers, keys: pa.Array | None, values: pa.Array
) -> Messages:
    """Return the messages, each with its prefix, joined.

    ``common`` has the other fields of all of them. No number is negative; ``keys`` and ``values``
    are of type binary. No keys: no message has one.
    """
    offset_widths, stamp_widths = _widths(offsets), _widths(stamps_ns)
    wider = np.diff(offset_widths) | np.diff(stamp_widths)
    bounds = [0, *(np.flatnonzero(wider) + 1).tolist(), len(offsets)]
    found: list[memoryview] = []
    for start, end in pairwise(bounds):
        rows = slice(start, end)
        numbers = [
            *_tagged(OFFSET_TAG, offsets[rows], offset_widths[start]),
            *_tagged(STAMP_TAG, stamps_ns[rows], stamp_widths[start]),
        ]
        some = values.slice(start, end - start)
        named = None if keys is None else keys.slice(start, end - start)
        found.append(_joined(common, numbers, named, some))
    return found[0] if len(found) == 1 else b"".join(found)


def _joined(
    common: bytes, numbers: list[_Bytes], keys: pa.Array | None, values: pa.Array
) -> memoryview:
    """Return messages whose numbers have the same lengths."""
    count = len(values)
    pieces, sizes = _data_field(VALUE_TAG, values)
    sizes += sum(len(one[0]) for one in numbers) + len(common)
    if keys is not None:
        more, key_sizes = _data_field(KEY_TAG, keys)
        pieces += more
        sizes += key_sizes
    not_compressed = np.zeros((count, 1), np.uint8)
    length = sizes.astype(">u4").view(np.uint8).reshape(count, 4)
    head = np.hstack([not_compressed, length, *numbers])
    tail = pa.scalar(common, pa.binary())
    joined = pc.binary_join_element_wise(_column(head), *pieces, tail, _NOTHING)
    ends = np.frombuffer(joined.buffers()[1], np.int32)
    return memoryview(joined.buffers()[2])[ends[0] : ends[count]]


def _data_field(tag: bytes, data: pa.Array) -> tuple[list[pa.Array | pa.Scalar], _Numbers]:
    """Return a field of bytes in two pieces, its begin and its data, and how long each field is.

    Data that is null counts as empty. An empty key is no key, so its field is left out.
    """
    data = pc.fill_null(data, _NOTHING)
    lengths = pc.binary_length(data).to_numpy().astype(np.int64)
    different, which = np.unique(lengths, return_inverse=True)
    begins = [
        b"" if tag == KEY_TAG and not one else field_begin(tag, one) for one in different.tolist()
    ]
    sizes = lengths + np.array([len(one) for one in begins], np.int64)[which]
    if len(begins) == 1:
        return [pa.scalar(begins[0], pa.binary()), data], sizes
    return [pa.array(begins, pa.binary()).take(pa.array(which)), data], sizes


def _tagged(tag: bytes, numbers: _Numbers, width: int) -> tuple[_Bytes, _Bytes]:
    """Return the fields of numbers that have ``width`` bytes each: the tags, and the varints."""
    tags = np.full((len(numbers), 1), tag[0], np.uint8)
    shifts = VARINT_BITS * np.arange(width, dtype=np.int64)
    varints = (numbers[:, np.newaxis] >> shifts & _LOW_BITS).astype(np.uint8)
    varints[:, :-1] |= _GOES_ON
    return tags, varints


def _widths(numbers: _Numbers) -> _Numbers:
    """Return how many bytes the varint of each number has."""
    return np.searchsorted(_WIDER, numbers, side="right").astype(np.int64) + 1


def _column(rows: _Bytes) -> pa.Array:
    """Return rows of bytes as a column of type binary."""
    count, width = rows.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(rows)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
