"""Opens objects as files of Arrow, which end before the interpreter does.

Arrow reads with threads of its own, and one of these may be the last to drop the file. If the file
is memory or an object of Python, the thread takes the GIL for that. A thread that waits for the GIL
when the interpreter ends is ended inside C++, and the process ends by a signal after all its work:
"terminate called without an active exception" (apache/arrow#34314). So bytes are copied into
Arrow's memory, and the exit waits for files that are read in ranges.
"""

from __future__ import annotations

import atexit
import io
import time
from typing import Any, Final
from weakref import WeakSet

import pyarrow as pa
import pyarrow.parquet as pq

from broker.errors import ObjectCorruptError
from tiering.store.object_store import ObjectStore

WHOLE_BYTES_MAX: Final = 4 * 1024 * 1024  # up to this size, one request is faster than several
_ROWS_PER_BYTE_MAX: Final = 1024  # rows that are alike are packed, but their offsets differ
_EXIT_MS: Final = 100  # a thread drops a file within microseconds; a reader may keep one open


def bytes_file(body: bytes) -> pa.NativeFile:
    """Return bytes as a file in memory of Arrow; a copy of 1 MiB takes about 0.1 ms."""
    copied = pa.BufferOutputStream()
    copied.write(body)
    return pa.BufferReader(copied.getvalue())


def object_file(store: ObjectStore, key: str, size: int) -> pa.NativeFile:
    """Return an object of ``size`` bytes: a small one is fetched whole, a large one in ranges.

    Raises:
        ObjectMissingError, RemoteTierUnavailableError: from here, and from reads of the file.
    """
    return bytes_file(store.get(key)) if size <= WHOLE_BYTES_MAX else range_file(store, key, size)


def parquet_file(source: pa.NativeFile, key: str, **options: Any) -> pq.ParquetFile:
    """Open a file as Parquet, if the counts of its footer agree; ``options`` are ParquetFile's.

    Arrow takes memory for as many rows as a footer says of a row group before it reads one. So four
    changed bytes of a footer took 16 GiB and a minute, without an error.

    Raises:
        ObjectCorruptError: counts of the footer differ, or are more than the bytes can have.
        pyarrow.ArrowException, OSError: it is not a Parquet file.
    """
    file = pq.ParquetFile(source, **options)
    footer = file.metadata
    # What it says of columns is not looked at: pyarrow ends the process where it cannot be read.
    groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    if sum(groups) != footer.num_rows or not all(
        0 <= count <= _ROWS_PER_BYTE_MAX * source.size() for count in groups
    ):
        raise ObjectCorruptError(
            f"{key} is not readable Parquet: its footer says {footer.num_rows} rows, and "
            f"{sum(groups)} in its row groups",
            key=key,
        )
    return file


def range_file(store: ObjectStore, key: str, size: int) -> pa.NativeFile:
    """Return an object of ``size`` bytes that is fetched in ranges; see :func:`object_file`."""
    return pa.PythonFile(_RangeFile(store, key, size), mode="r")


class _RangeFile(io.RawIOBase):
    """A remote object as a seekable file; each read is one ranged request."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = size
        self._position = 0
        _open.add(self)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._position + size)
        data = self._store.get(self._key, self._position, end)
        self._position += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


_open: Final[WeakSet[_RangeFile]] = WeakSet()  # only added to and counted, so without a lock


def await_drops(timeout_ms: int = _EXIT_MS) -> bool:
    """Wait until Arrow's threads have dropped the files; tell whether none is left open."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while _open and time.monotonic() < deadline_s:
        time.sleep(0.001)  # without the GIL, which such a thread needs
    return not _open


atexit.register(await_drops)
