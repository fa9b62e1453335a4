"""Checks that the statistics of a foreign writer's file match the file's rows.

Readers skip files by their statistics: our look-up of a time does, and any filter in Spark. Wrong
statistics (times in a local zone without a mark, a wrong count of nulls) hide rows from readers,
without an error. The check runs once, when the file's rows are compared with the ledger.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from broker.codec.schema import FILE_SCHEMA
from broker.errors import TableMismatchError
from tiering.proof.provenance import ProvedFile
from tiering.read.parquet_source import ParquetObject
from tiering.store.object_store import ObjectStore
from tiering.table.commit_files import micros_of
from tiering.table.table import TableSnapshot

_OURS: Final = ("offset", "timestamp")


class _Column:
    """Bounds and nulls of one column, counted from the rows of a file."""

    def __init__(self) -> None:
        self.nulls = 0
        self.least: Any = None
        self.greatest: Any = None

    def add(self, values: pa.ChunkedArray) -> None:
        """Count the next rows."""
        import pyarrow.compute as pc  # noqa: PLC0415  # few reads meet a foreign commit

        self.nulls += values.null_count
        plain = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
        if not (pa.types.is_integer(plain.type) or pa.types.is_string(plain.type)):
            return  # no reader skips files by the bounds of bytes or lists
        bounds = pc.min_max(plain)
        for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
            if bound is not None:
                self.least = bound if self.least is None else min(self.least, bound)
                self.greatest = bound if self.greatest is None else max(self.greatest, bound)


def require_true_statistics(known: ProvedFile, snapshot: TableSnapshot, store: ObjectStore) -> None:
    """Compare the statistics in a foreign commit with the rows of the file. Blocks.

    Raises:
        TableMismatchError: a count or bound differs from the rows.
        ObjectMissingError, ObjectCorruptError, RemoteTierUnavailableError.
    """
    claims = {} if known.claims is None else json.loads(known.claims)
    named = {name for part in claims.values() for name in part}
    columns = {name: _Column() for name in FILE_SCHEMA.names if name in named or name in _OURS}
    source = ParquetObject(store, known.file)
    rows = 0
    for group in source.row_groups():
        table = source.read(group.index, list(columns))
        rows += table.num_rows
        for name, column in columns.items():
            column.add(table.column(name))
    for what, said, true in _differences(known, claims, columns, rows):
        raise TableMismatchError(
            f"version {snapshot.version} of {snapshot.uri} has false statistics of "
            f"{known.file.path}: {what} is {said}, but the rows have {true}. The engine that "
            "rewrote the file wrote them, and readers would skip rows because of them. Rewrite "
            "the table with another engine (OPTIMIZE … ZORDER BY offset), or read a cut of an "
            "earlier version",
            uri=snapshot.uri,
            version=snapshot.version,
            path=known.file.path,
        )


def _differences(
    known: ProvedFile, claims: dict[str, dict[str, Any]], columns: dict[str, _Column], rows: int
) -> list[tuple[str, Any, Any]]:
    """Return each wrong statistic: its name, the stated value, the true value."""
    file, offset, time = known.file, columns["offset"], columns["timestamp"]
    exact = [
        ("number of rows", file.records_count, rows),
        ("first offset", file.min_offset, offset.least),
        ("last offset", file.max_offset, offset.greatest),
    ]
    for name, said in claims.get("nullCount", {}).items():
        if name in columns:
            exact.append((f"number of nulls in {name}", said, columns[name].nulls))
    wrong = [one for one in exact if one[1] is not None and one[1] != one[2]]
    # Delta keeps milliseconds, and engines round both bounds down.
    first, last = file.min_timestamp_us, file.max_timestamp_us
    if first is not None and time.least is not None and first // 1000 > time.least // 1000:
        wrong.append(("first timestamp", first, time.least))
    exact_first = claims.get("minValues", {}).get("timestamp")  # no whole millisecond
    if exact_first is not None and time.least is not None:
        first_us = micros_of(exact_first)
        if first_us is not None and first_us > time.least:
            wrong.append(("first timestamp", first_us, time.least))
    if last is not None and time.greatest is not None and last // 1000 < time.greatest // 1000:
        wrong.append(("last timestamp", last, time.greatest))
    for name, column in columns.items():
        if name in _OURS or column.least is None:
            continue
        least, greatest = (claims.get(kind, {}).get(name) for kind in ("minValues", "maxValues"))
        if least is not None and (type(least) is not type(column.least) or least > column.least):
            wrong.append((f"least {name}", least, column.least))
        if greatest is not None and (
            type(greatest) is not type(column.greatest) or greatest < column.greatest
        ):
            wrong.append((f"greatest {name}", greatest, column.greatest))
    return wrong
