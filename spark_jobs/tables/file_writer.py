"""Writes rows as Parquet files of one table, on an executor; stores and checks the files.

Keys are random and never reused. Objects are created with ``If-None-Match``, and each is checked
after it was stored. A file becomes part of the table only by the driver's commit.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from broker.codec.checksum import crc32c
from broker.errors import ObjectCorruptError, SchemaMismatchError
from spark_jobs.tables.arrow_types import converted
from spark_jobs.tables.file_stats import WrittenStats
from spark_jobs.tables.schema_match import ColumnFit, Fit
from tiering.ship.compression import codecs
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo, ObjectStore

ROW_GROUP_ROWS_MAX: Final = 128 * 1024
ROW_GROUP_BYTES_MAX: Final = 32 * 1024 * 1024
FILE_BYTES_MAX: Final = 128 * 1024 * 1024  # compressed; kept in memory until its one PUT
_OPEN_FILES_MAX: Final = 64
_PENDING_BYTES_MAX: Final = 128 * 1024 * 1024  # for all open files together


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The location and the form of an append's files in one table. Sent to executors."""

    store: StoreConfig
    folder: str  # below the table; used by this append only
    fit: Fit
    stats_columns: tuple[str, ...]
    note: Mapping[str, str]  # written into every footer

    def without_secrets(self) -> Output:
        """Return a copy without credentials; an executor has them in its own environment."""
        return replace(self, store=replace(self.store, credentials=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A stored file, with all facts that the commit needs."""

    path: str
    size_bytes: int
    rows_count: int
    partition_values: Mapping[str, str | None]
    modified_us: int
    stats_json: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


class FileWriter:
    """The files of one slice in one table. Not thread-safe."""

    def __init__(self, store: ObjectStore, output: Output, label: str) -> None:
        """Use the table's store; ``label`` is the beginning of the files' names."""
        self._store = store
        self._output = output
        self._label = label
        self._fit = output.fit
        self._schema = output.fit.file_schema
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._written: list[WrittenFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows, with the columns that the fit has as sources.

        Raises:
            SchemaMismatchError: a value does not fit its column.
        """
        if rows.num_rows == 0:
            return
        columns = [_column(rows, each) for each in self._fit.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        keys = [_column(rows, each) for each in self._fit.partition_columns]
        for key, part in _by_key(batch, keys):
            self._file(key).add(part)
        self._relieve()

    def finish(self) -> list[WrittenFile]:
        """Store all open files; return every file, in the order of storing."""
        for key in list(self._open):
            self._close(key)
        return self._written

    def _file(self, key: tuple[str | None, ...]) -> _OpenFile:
        found = self._open.pop(key, None)
        if found is not None and found.size_bytes >= FILE_BYTES_MAX:
            self._open[key] = found
            self._close(key)
            found = None
        if found is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            found = _OpenFile(self._schema, self._output.stats_columns)
        self._open[key] = found  # moved to the end: the file used last is closed last
        return found

    def _relieve(self) -> None:
        """Flush the fullest file, again and again, while all files together hold too many bytes."""
        while sum(file.pending_bytes for file in self._open.values()) > _PENDING_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.pending_bytes).flush()

    def _close(self, key: tuple[str | None, ...]) -> None:
        file = self._open.pop(key)
        body = file.body(self._output.note)
        path = (
            f"{self._output.folder}/{self._label}-{len(self._written):04}-"
            f"{secrets.token_hex(8)}.parquet"
        )
        checksum = crc32c(body)
        stored = self._store.put_if_absent(path, body, crc32c=checksum)
        _check_stored(self._store, path, stored, size=len(body), checksum=checksum)
        names = [each.name for each in self._fit.partition_columns]
        self._written.append(
            WrittenFile(
                path=path,
                size_bytes=len(body),
                rows_count=file.stats.rows_count,
                partition_values=dict(zip(names, key, strict=True)),
                modified_us=time.time_ns() // 1000,
                stats_json=file.stats.to_json(),
            )
        )


class _OpenFile:
    def __init__(self, schema: pa.Schema, stats_columns: tuple[str, ...]) -> None:
        self.stats = WrittenStats(stats_columns)
        self.pending_bytes = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        self.stats.add(rows)
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self.pending_bytes += rows.nbytes
        if self._pending_rows >= ROW_GROUP_ROWS_MAX or self.pending_bytes >= ROW_GROUP_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending, self._schema)
            self._opened().write_table(table, row_group_size=2 * ROW_GROUP_ROWS_MAX)
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0

    def body(self, note: Mapping[str, str]) -> pa.Buffer:
        self.flush()
        writer = self._opened()
        writer.add_key_value_metadata({"headwater.append": json.dumps(dict(note))})
        writer.close()
        return self._sink.getvalue()

    def _opened(self) -> pq.ParquetWriter:
        """Return the writer, opened with the first rows, which decide the compression."""
        if self._writer is None:
            options, payloads = _writer_options(self._schema)
            chosen = codecs(self._schema, payloads, self._pending)
            self._writer = pq.ParquetWriter(self._sink, self._schema, **options, **chosen)
        return self._writer


def _writer_options(schema: pa.Schema) -> tuple[dict[str, Any], list[str]]:
    """Return the writer's options, and the names of the payload columns.

    Columns with repeating values get a dictionary. Payloads get none, because their values rarely
    repeat.
    """
    plain, packed, bounded = set(), {}, []
    for each in schema:
        if pt.is_binary(each.type) and each.name != "key":
            plain.add(each.name)
        elif pt.is_int64(each.type) or pt.is_timestamp(each.type):
            packed[each.name] = "DELTA_BINARY_PACKED"
        if not pt.is_nested(each.type) and not pt.is_binary(each.type):
            bounded.append(each.name)
    names = [each.name for each in schema if each.name not in plain and each.name not in packed]
    leaves = [name for name in names if not pt.is_nested(schema.field(name).type)]
    if "headers" in names:
        leaves.append("headers.list.element.key")
    options = {
        "use_dictionary": leaves,
        "column_encoding": packed or None,
        "write_statistics": bounded,
        "write_page_checksum": True,
        "version": "2.6",
    }
    return options, sorted(plain)


def _column(rows: pa.RecordBatch, wanted: ColumnFit) -> pa.Array:
    if wanted.source is None:
        return pa.nulls(rows.num_rows, wanted.type)
    values = rows.column(wanted.source)
    if values.null_count and not wanted.nullable:
        raise SchemaMismatchError(
            f"column {wanted.name} may not be null in the table, but {values.null_count} of "
            f"{len(values)} rows are null",
            column=wanted.name,
        )
    try:
        return converted(values, wanted.type)
    except pa.ArrowInvalid as cause:
        raise SchemaMismatchError(f"column {wanted.name}: {cause}", column=wanted.name) from cause


def _by_key(
    batch: pa.RecordBatch, keys: list[pa.Array]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Split rows by their partition values, in Delta's spelling; the order in a part stays."""
    if not keys:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for values in keys:
        encoded = values.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    if len(first) == 1:
        yield tuple(_spelled(values[0]) for values in keys), batch
        return
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    for number, end in enumerate(ends):
        key = tuple(_spelled(values[int(first[number])]) for values in keys)
        low = 0 if number == 0 else int(ends[number - 1])
        yield key, batch.take(pa.array(order[low : int(end)]))


def _spelled(found: pa.Scalar) -> str | None:
    """Return a partition value in the log's spelling; for Delta an empty text is null."""
    try:
        value = found.as_py()
    except (OverflowError, ValueError) as cause:
        raise SchemaMismatchError(
            "a table cannot be partitioned by such a date: the log has the years 1 to 9999"
        ) from cause
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None or value == "" else str(value)


def _check_stored(
    store: ObjectStore, path: str, stored: ObjectInfo | None, *, size: int, checksum: int
) -> None:
    """Check the object in the store; ``stored`` is the store's answer to its PUT.

    A store that keeps checksums is asked for its own. From others the object is read back.

    Raises:
        ObjectCorruptError: it differs from the bytes that were written.
    """
    info = store.head(path) if stored is not None and stored.crc32c is not None else None
    if info is None or info.crc32c is None:
        body = store.get(path)
        info = ObjectInfo(path, len(body), crc32c=crc32c(body))
    if stored is None or (info.size_bytes, info.crc32c) != (size, checksum):
        raise ObjectCorruptError(
            f"{path} was written with {size} bytes, but the store has {info.size_bytes} bytes, or "
            "other bytes of the same length",
            key=path,
            expected=size,
            found=info.size_bytes,
        )
