r"""The content digest of a range of records: a reader recomputes it, a ledger entry stores it.

The digest depends on the rows alone. It does not depend on batches, row groups or files, on
compression, or on the bytes that Arrow may keep under a null. Each column is split into plain
streams, each stream goes through its own SHA-256, and the digest is the SHA-256 of

    b"headwater.digest.1\n" | rows i64 | SHA-256 of stream 0 | SHA-256 of stream 1 | ...

with the streams in the order of :data:`STREAMS`. All numbers are little-endian:

    fixed-width column   values      value, or zero when null       (8 bytes a row)
                         nulls       0 = null, 1 = value            (1 byte a row)
    binary, text         lengths     i64, or -1 when null           (8 bytes a row)
                         data        the bytes, one after another
    headers              lengths     i64 number of entries, or -1   (8 bytes a row)
                         entries     0 = null entry, 1 = entry      (1 byte an entry)
                         key, value  lengths and data, as above, of all entries

Lengths make boundaries part of the content: ("ab", "c") and ("a", "bc") differ. Frozen by
tests/golden/test_digest.py.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.codec.schema import FILE_SCHEMA
from broker.errors import SchemaMismatchError

_DOMAIN: Final = b"headwater.digest.1\n"
_FIXED: Final = ("offset", "timestamp", "leader_epoch")
_TEXTS: Final = ("key", "value", "subject", "reply_subject", "correlation_id")
_OFFSETS: Final = np.dtype("<i4")

# The order of the streams in the result. Frozen: a new column is a new digest version.
STREAMS: Final[tuple[str, ...]] = (
    *(f"{name}.{part}" for name in _FIXED for part in ("values", "nulls")),
    *(f"{name}.{part}" for name in _TEXTS for part in ("lengths", "data")),
    *("headers.lengths", "headers.entries"),
    *(f"headers.{name}.{part}" for name in ("key", "value") for part in ("lengths", "data")),
)


class RangeDigest:
    """Digest rows one batch at a time, in offset order. Not thread-safe."""

    def __init__(self) -> None:
        self._streams = {name: hashlib.sha256() for name in STREAMS}
        self._rows = 0

    @property
    def records_count(self) -> int:
        """Rows digested so far."""
        return self._rows

    def update(self, rows: pa.RecordBatch) -> None:
        """Add the next rows, in offset order; columns beyond FILE_SCHEMA's are ignored.

        Raises:
            SchemaMismatchError: a column is missing or of another type.
        """
        for name in (*_FIXED, *_TEXTS, "headers"):
            index = rows.schema.get_field_index(name)
            if index < 0 or rows.schema.field(index).type != FILE_SCHEMA.field(name).type:
                raise SchemaMismatchError(f"a digest needs column {name!r}", column=name)
        for name in _FIXED:
            self._fixed(name, rows.column(name))
        for name in _TEXTS:
            self._binary(name, rows.column(name))
        self._headers(rows.column("headers"))
        self._rows += rows.num_rows

    def hexdigest(self) -> str:
        """Return the digest of all rows so far as 64 hexadecimal digits."""
        whole = hashlib.sha256(_DOMAIN + struct.pack("<q", self._rows))
        for name in STREAMS:
            whole.update(self._streams[name].digest())
        return whole.hexdigest()

    def _fixed(self, name: str, column: pa.Array) -> None:
        valid = _validity(column)
        # Read the buffer itself: NumPy has no type for a timestamp with a time zone.
        values = np.frombuffer(column.buffers()[1], dtype="<i8")
        values = values[column.offset : column.offset + len(column)]
        if valid is not None:
            values = np.where(valid, values, 0)
        self._add(f"{name}.values", values)
        self._add(f"{name}.nulls", _marks(valid, len(column)))

    def _binary(self, name: str, column: pa.Array) -> None:
        valid = _validity(column)
        if valid is not None and not valid.any():
            self._add(f"{name}.lengths", np.full(len(column), -1, dtype="<i8"))
            return
        bounds = _bounds(column)
        lengths = np.diff(bounds).astype("<i8")
        if valid is not None:
            if lengths[~valid].any():  # Arrow allows bytes under a null; they are not content
                self._binary(name, pa.array(column.to_pylist(), column.type))
                return
            lengths[~valid] = -1
        self._add(f"{name}.lengths", lengths)
        data = column.buffers()[2]
        if data is not None and len(bounds):
            self._add(f"{name}.data", memoryview(data)[int(bounds[0]) : int(bounds[-1])])

    def _headers(self, column: pa.Array) -> None:
        valid = _validity(column)
        if valid is not None and not valid.any():
            self._add("headers.lengths", np.full(len(column), -1, dtype="<i8"))
            return
        bounds = _bounds(column)
        lengths = np.diff(bounds).astype("<i8")
        if valid is not None:
            if lengths[~valid].any():
                self._headers(pa.array(column.to_pylist(), column.type))
                return
            lengths[~valid] = -1
        self._add("headers.lengths", lengths)
        first, last = (int(bounds[0]), int(bounds[-1])) if len(bounds) else (0, 0)
        entries = column.values.slice(first, last - first)
        self._add("headers.entries", _marks(_validity(entries), len(entries)))
        # flatten() gives the children as the entries see them: null where the entry is null.
        for name, child in zip(("key", "value"), entries.flatten(), strict=True):
            self._binary(f"headers.{name}", child)

    def _add(self, stream: str, data: Any) -> None:
        self._streams[stream].update(data)


def digest_of(rows: pa.RecordBatch) -> str:
    """Return the digest of one batch of rows."""
    digest = RangeDigest()
    digest.update(rows)
    return digest.hexdigest()


def _validity(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return one bool a row, or None when no row is null."""
    if column.null_count == 0:
        return None
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _marks(
    valid: np.ndarray[Any, np.dtype[np.bool_]] | None, rows: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ones(rows, dtype=np.uint8) if valid is None else valid.astype(np.uint8)


def _bounds(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the offsets buffer of a variable-size column: one more entry than rows."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(1, dtype=_OFFSETS)
    return np.frombuffer(buffer, dtype=_OFFSETS)[column.offset : column.offset + len(column) + 1]
