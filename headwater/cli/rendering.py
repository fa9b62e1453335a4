"""Formats records for people and scripts: text, JSON lines, raw values. Pure.

Keys and values are bytes. If they are UTF-8, they are shown as text. If not, JSON has
``key_base64`` or ``value_base64`` instead of ``key`` or ``value``: the bytes are exact, and the
name says how they are encoded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headwater.cli.parsing import format_time_us

_TEXT_KEY_WIDTH: Final = 16
TEXT_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value")


def text_lines(rows: pa.RecordBatch) -> Iterator[str]:
    """Yield ``partition:offset  time  key  value`` per row; a tombstone's value is ``∅``."""
    columns = [rows.column(name) for name in TEXT_COLUMNS]
    partitions, offsets, times, keys, values = (
        columns[0].to_pylist(),
        columns[1].to_pylist(),
        columns[2].cast(pa.int64()).to_pylist(),
        columns[3].to_pylist(),
        columns[4].to_pylist(),
    )
    for partition, offset, time_us, key, value in zip(
        partitions, offsets, times, keys, values, strict=True
    ):
        place = f"{partition}:{offset}"
        shown_key = "-" if key is None else printable(key)
        shown = "∅" if value is None else printable(value)
        yield f"{place:>10}  {format_time_us(time_us)}  {shown_key:<{_TEXT_KEY_WIDTH}}  {shown}"


def json_lines(rows: pa.RecordBatch) -> Iterator[str]:
    """Yield one JSON object per row with every column that the batch has."""
    for record in json_records(rows):
        yield json.dumps(record, ensure_ascii=False)


def json_records(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON-ready dictionaries, times as ISO text."""
    names = rows.schema.names
    columns = []
    for name in names:
        column = rows.column(name)
        if name == "timestamp":
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    for values in zip(*columns, strict=True):
        yield _json_record(names, values)


def _json_record(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if name == "timestamp":
            record[name] = None if value is None else format_time_us(value)
        elif name == "headers":
            record[name] = [header(one) for one in value or ()]
        elif isinstance(value, bytes):
            record.update(_bytes_field(name, value))
        else:
            record[name] = value
    return record


def header(entry: dict[str, Any]) -> dict[str, Any]:
    """Return one record header as JSON-ready values."""
    value = entry["value"]
    return {
        "key": entry["key"],
        **({"value": None} if value is None else _bytes_field("value", value)),
    }


def _bytes_field(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def raw_values(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Yield each value unchanged; tombstones are skipped, because they have no value."""
    for value in rows.column("value").to_pylist():
        if value is not None:
            yield value


def printable(value: bytes) -> str:
    """Return bytes as text without control characters; base64 if the bytes are not UTF-8."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
