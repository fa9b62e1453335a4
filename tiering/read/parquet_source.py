"""Reads data files as Arrow, piece by piece, from an object store.

A file has to have the size that the table recorded. Only its footer and the wanted columns of the
wanted row groups are fetched. Every error that Parquet finds in the bytes becomes
ObjectCorruptError with the object's key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from broker.codec.schema import FILE_SCHEMA
from broker.errors import ObjectCorruptError
from tiering.store import arrow_file
from tiering.store.object_store import ObjectStore
from tiering.store.table_keys import FOOTER_KEY, keys_at, needs_key, no_keys
from tiering.table.table import DataFile

_T = TypeVar("_T")
Offsets = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file; its bounds come from the footer or from the rows."""

    file: DataFile
    index: int
    rows_count: int
    size_bytes: int  # uncompressed
    min_offset: int
    max_offset: int


class ParquetObject:
    """One data file of a table, opened. Not thread-safe."""

    def __init__(self, store: ObjectStore, file: DataFile) -> None:
        """Fetch size and footer; raises ObjectMissingError or ObjectCorruptError.

        A small file is fetched whole with one request, and the length of the answer is its size.
        """
        self._file = file
        if file.size_bytes <= arrow_file.WHOLE_BYTES_MAX:
            body = store.get(file.path)
            self._require_size(len(body))
            source = arrow_file.bytes_file(body)
        else:
            self._require_size(store.head(file.path).size_bytes)
            source = arrow_file.range_file(store, file.path, file.size_bytes)
        keys = keys_at(store.config)
        self._has_keys = keys is not None
        self._parquet = self._checked(
            lambda: arrow_file.parquet_file(
                source,
                file.path,
                pre_buffer=True,
                page_checksum_verification=True,
                decryption_properties=None if keys is None else keys.for_reading(),
            )
        )

    def _require_size(self, found: int) -> None:
        if found != self._file.size_bytes:
            raise ObjectCorruptError(
                f"{self._file.path} has {found} bytes, but the table's log says "
                f"{self._file.size_bytes}",
                key=self._file.path,
                expected=self._file.size_bytes,
                found=found,
            )

    @property
    def metadata(self) -> dict[str, str]:
        """The footer's key-value pairs that are text."""
        pairs = self._parquet.metadata.metadata or {}
        return {key.decode(errors="replace"): text.decode(errors="replace")
                for key, text in pairs.items()}  # fmt: skip

    @property
    def rows_count(self) -> int:
        """Rows of the whole file."""
        return int(self._parquet.metadata.num_rows)

    @property
    def row_groups_count(self) -> int:
        """Row groups of the file, those without rows included."""
        return int(self._parquet.metadata.num_row_groups)

    def row_groups(self) -> list[RowGroup]:
        """Return the row groups that hold rows, with their offset bounds.

        The column statistics in the footer are not used: if the footer is damaged, pyarrow ends
        the whole process when they are read (a C++ exception escapes from its accessors). Our own
        files hold their offsets in order, so the row counts give the bounds. Of a foreign file the
        offset column is read.
        """
        footer = self._parquet.metadata
        counts = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        sizes = [footer.row_group(index).total_byte_size for index in range(len(counts))]
        start = self.metadata.get("headwater.start", "")
        if start.isascii() and start.isdigit():
            ends = list(itertools.accumulate(counts, initial=int(start)))
            bounds = [(low, high - 1) for low, high in itertools.pairwise(ends)]
        else:
            bounds = self._read_bounds(counts)
        return [
            RowGroup(self._file, index, count, size, least, greatest)
            for index, (count, size, (least, greatest)) in enumerate(
                zip(counts, sizes, bounds, strict=True)
            )
            if count > 0
        ]

    def _read_bounds(self, counts: Sequence[int]) -> list[tuple[int, int]]:
        offsets = self.offsets()
        if len(offsets) != sum(counts):
            raise ObjectCorruptError(
                f"{self._file.path} has {len(offsets)} offsets for {sum(counts)} rows",
                key=self._file.path,
            )
        bounds = []
        at = 0
        for count in counts:
            part = offsets[at : at + count]
            bounds.append((int(part.min()), int(part.max())) if count else (0, -1))
            at += count
        return bounds

    def offsets(self, index: int | None = None) -> Offsets:
        """Return the offsets of one row group, or of the file, in file order."""
        names = ["offset"]
        table = self._checked(
            lambda: (
                self._parquet.read(columns=names)
                if index is None
                else self._parquet.read_row_group(index, columns=names)
            )
        )
        column = self._checked(lambda: table.column("offset").combine_chunks())
        if column.null_count or column.type != pa.int64():
            raise ObjectCorruptError(
                f"{self._file.path} has offsets that are null or not int64", key=self._file.path
            )
        values: Offsets = np.asarray(column)
        return values

    def read(self, index: int, names: Sequence[str]) -> pa.Table:
        """Return columns of one row group, in the order of ``names``, as FILE_SCHEMA's types.

        Raises:
            EncryptionKeyError, KeyProviderUnavailableError: a column is encrypted, and this process
                has no key for it.
        """
        if not self._has_keys and FOOTER_KEY in self.metadata and needs_key(names):
            raise no_keys(self._file.path)
        schema = pa.schema([FILE_SCHEMA.field(name) for name in names])
        return self._checked(
            lambda: _as(
                schema, self._parquet.read_row_group(index, columns=list(names)).select(list(names))
            )
        )

    def _checked(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as cause:
            raise ObjectCorruptError(
                f"{self._file.path} is not readable Parquet: {' '.join(str(cause).split())[:300]}",
                key=self._file.path,
            ) from cause


def _as(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return rows with the types of a schema; our own files have them already."""
    return rows if rows.schema.equals(schema) else rows.cast(schema)


def count_values(store: ObjectStore, key: str, column: str) -> int:
    """Count the rows of a Parquet object that have a value in a column; 0 without the column.

    Raises ObjectMissingError or ObjectCorruptError.
    """
    found = read_columns(store, key, [column]).columns
    return sum(len(values) - int(values.null_count) for values in found)


def read_columns(store: ObjectStore, key: str, names: Sequence[str] | None = None) -> pa.Table:
    """Return a Parquet object's rows, with those of the named columns that the object has.

    Raises ObjectMissingError or ObjectCorruptError.
    """
    try:
        file = arrow_file.parquet_file(
            arrow_file.object_file(store, key, store.head(key).size_bytes),
            key,
            page_checksum_verification=True,
        )
        present = file.schema_arrow.names
        wanted = present if names is None else [name for name in names if name in present]
        return file.read(columns=wanted)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise ObjectCorruptError(f"{key} is not readable Parquet: {cause}", key=key) from cause


def read_batches(store: ObjectStore, key: str, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet object's rows in order, in batches of about ``bytes_max`` bytes at most.

    A batch has at least one row. Raises ObjectMissingError or ObjectCorruptError.
    """
    try:
        file = arrow_file.parquet_file(
            arrow_file.object_file(store, key, store.head(key).size_bytes),
            key,
            page_checksum_verification=True,
        )
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            share = bytes_max * group.num_rows // max(1, group.total_byte_size)
            yield from file.iter_batches(
                batch_size=max(1, min(share, group.num_rows)), row_groups=[number]
            )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise ObjectCorruptError(f"{key} is not readable Parquet: {cause}", key=key) from cause
