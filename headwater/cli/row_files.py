"""Writes rows as a table, JSON lines, CSV or Parquet; a file appears only when it is complete."""

from __future__ import annotations

import base64
import csv
import errno
import io
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from broker.codec.schema import ROW_SCHEMA
from broker.errors import InvalidRequestError
from headwater.cli import console, rendering
from headwater.cli.parsing import format_time_us


def head(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the first ``limit`` rows."""
    left = limit
    for batch in batches:
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if left == 0:
            return


def write(form: str, batches: Iterator[pa.RecordBatch], output: Path | None, binary: str) -> int:
    """Write all rows as ``form`` to ``output``, or to stdout if None; return the number of rows.

    Raises:
        InvalidRequestError: the form is CSV with values as text, and a value is not UTF-8.
    """
    if form == "table":
        return _write_table(batches)
    if output is None:
        return _write_stream(form, batches, sys.stdout.buffer, binary)
    with _complete_file(output) as sink:
        if form == "parquet":
            return _write_parquet(batches, sink)
        return _write_stream(form, batches, sink, binary)


@contextmanager
def _complete_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside the target and rename it at the end, so a partial file is never read.

    Nobody can guess the partial file's name and put a link there before.
    """
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(8)}")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        with partial.open("xb") as sink:
            yield sink
        partial.replace(path)
    except OSError as error:
        if error.filename != str(partial):
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error  # as the user named it
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_table(batches: Iterator[pa.RecordBatch]) -> int:
    records = [record for batch in batches for record in rendering.json_records(batch)]
    names = list(dict.fromkeys(name for record in records for name in record))
    names = [
        name for name in names if any(record.get(name) not in (None, []) for record in records)
    ]
    rows = [
        [_cell(record.get(name)) if name in record else None for name in names]
        for record in records
    ]
    console.table(names, rows)
    return len(records)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _write_parquet(batches: Iterator[pa.RecordBatch], sink: BinaryIO) -> int:
    rows = 0
    first = next(batches, None)
    schema = ROW_SCHEMA if first is None else first.schema
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in chain([] if first is None else [first], batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_stream(form: str, batches: Iterator[pa.RecordBatch], sink: BinaryIO, binary: str) -> int:
    rows = 0
    for batch in batches:
        if form == "jsonl":
            text = "".join(f"{line}\n" for line in rendering.json_lines(batch))
        else:
            text = _csv(batch, binary, with_names=rows == 0)
        sink.write(text.encode())
        rows += batch.num_rows
    sink.flush()
    return rows


def _csv(batch: pa.RecordBatch, binary: str, *, with_names: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if with_names:
        writer.writerow(batch.schema.names)
    columns = [_csv_column(batch, name, binary) for name in batch.schema.names]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _csv_column(batch: pa.RecordBatch, name: str, binary: str) -> list[Any]:
    column = batch.column(name)
    if name == "timestamp":
        return [format_time_us(value) for value in column.cast(pa.int64()).to_pylist()]
    values = column.to_pylist()
    if name == "headers":
        return [
            json.dumps([rendering.header(one) for one in value or ()], ensure_ascii=False)
            for value in values
        ]
    if not pa.types.is_binary(column.type):
        return list(values)
    if binary == "base64":
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    try:
        return [None if value is None else value.decode() for value in values]
    except UnicodeDecodeError as cause:
        raise InvalidRequestError(
            f"a {name} is not UTF-8 text: use --bytes base64, or --format jsonl"
        ) from cause
