"""Matches rows of a transform with the columns of a table: by name, types without loss. Pure.

A column that the table lacks is an error, or is added if ``evolve`` says so. A nullable column that
the rows lack is filled with nulls. Names are compared without case, as in Delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from broker.codec.schema import ROW_SCHEMA
from broker.errors import SchemaMismatchError
from spark_jobs.tables.arrow_types import delta_type, fits

_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")  # Delta allows them only with column mapping
_STATS_COLUMNS_DEFAULT: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFit:
    """A column of the table, and the column of the rows that fills it; None: filled with nulls."""

    name: str
    type: pa.DataType
    nullable: bool
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A matched schema. ``columns`` are in the files, ``partition_columns`` in the log."""

    columns: tuple[ColumnFit, ...]
    partition_columns: tuple[ColumnFit, ...]
    additions: tuple[pa.Field, ...]  # to be added to the table first

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of the files to write."""
        return pa.schema([pa.field(each.name, each.type) for each in self.columns])


def with_positions(output: pa.Schema, positions: tuple[str, str] | None) -> pa.Schema:
    """Return the schema of the rows with the position columns; new ones come first."""
    if positions is None:
        return output
    partition, offset = positions
    added = [
        pa.field(name, kind)
        for name, kind in ((partition, pa.int32()), (offset, pa.int64()))
        if output.get_field_index(name) < 0
    ]
    return pa.schema([*added, *output])


def row_schema(positions: tuple[str, str] | None) -> pa.Schema:
    """Return the schema of untransformed rows, with the given names of the position columns."""
    if positions is None:
        return ROW_SCHEMA
    renamed = dict(zip(("partition", "offset"), positions, strict=True))
    return pa.schema([each.with_name(renamed.get(each.name, each.name)) for each in ROW_SCHEMA])


def new_table(rows: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Return the schema of a table made for such rows, every column nullable.

    Raises:
        SchemaMismatchError: a column cannot be a column of a Delta table; names it.
    """
    fields = [_new_field(each) for each in rows]
    seen: dict[str, str] = {}
    for each in fields:
        other = seen.setdefault(each.name.lower(), each.name)
        if other != each.name or len([one for one in fields if one.name == each.name]) > 1:
            raise _mismatch(each.name, f"differs from {other} only by case, or occurs twice")
    missing = [name for name in partition_by if name not in seen.values()]
    if missing:
        raise _mismatch(missing[0], "is in partition_by, but the rows do not have it")
    for each in fields:
        if each.name in partition_by:
            require_partitionable(each)
    return pa.schema(fields)


def match(
    rows: pa.Schema,
    table: pa.Schema,
    *,
    partition_columns: Sequence[str],
    evolve: str,
    optional: Sequence[str] = (),
) -> Fit:
    """Match rows with a table.

    Args:
        rows: the schema of the transform's rows.
        table: the table's columns.
        partition_columns: the table's partition columns.
        evolve: ``add`` turns missing columns into additions instead of errors.
        optional: columns of the rows that are left out if the table lacks them.

    Raises:
        SchemaMismatchError: names the column and the reason.
    """
    sources = _by_name(rows)
    known = {each.name.lower() for each in table}
    additions = []
    for each in rows:
        if each.name.lower() in known:
            continue
        if evolve == "add":
            additions.append(_new_field(each))
        elif each.name not in optional:
            raise _mismatch(each.name, 'is not in the table; to add it, use evolve="add"')
    fitted = [_fitted(each, sources.get(each.name.lower())) for each in [*table, *additions]]
    for each in table:
        if each.name in partition_columns:
            require_partitionable(each)
    by_name = {each.name: each for each in fitted}
    return Fit(
        columns=tuple(each for each in fitted if each.name not in partition_columns),
        partition_columns=tuple(by_name[name] for name in partition_columns),
        additions=tuple(additions),
    )


def still_fits(fit: Fit, table: pa.Schema, partition_columns: Sequence[str]) -> bool:
    """Tell whether files that were written for a fit still match the table's columns."""
    if list(partition_columns) != [each.name for each in fit.partition_columns]:
        return False
    ours = {each.name: each for each in (*fit.columns, *fit.partition_columns)}
    there = {each.name: each for each in table}
    return all(
        name in there and there[name].type == each.type and there[name].nullable == each.nullable
        for name, each in ours.items()
    ) and all(each.nullable for name, each in there.items() if name not in ours)


def stats_columns(
    fit: Fit, properties: Mapping[str, str], always: Sequence[str]
) -> tuple[str, ...]:
    """Return the file columns with bounds in the log: the table's choice, and ``always``."""
    asked = properties.get("delta.dataSkippingStatsColumns")
    names = [each.name for each in fit.columns]
    if asked is not None:
        wanted = {name.strip().strip("`").lower() for name in asked.split(",")}
        chosen = [name for name in names if name.lower() in wanted]
    else:
        text = properties.get("delta.dataSkippingNumIndexedCols", str(_STATS_COLUMNS_DEFAULT))
        limit = int(text) if text.lstrip("-").isdigit() else _STATS_COLUMNS_DEFAULT
        chosen = names if limit < 0 else names[:limit]
    return tuple(name for name in names if name in chosen or name in always)


def require_partitionable(column: pa.Field) -> None:
    """Refuse a partition column whose values have more than one spelling in Delta.

    Raises:
        SchemaMismatchError: names the column.
    """
    kind = column.type
    if not (pt.is_string(kind) or pt.is_integer(kind) or pt.is_date32(kind) or pt.is_boolean(kind)):
        raise _mismatch(
            column.name, f"is {kind}; a table may be partitioned by text, integers, dates, booleans"
        )


def _fitted(column: pa.Field, source: pa.Field | None) -> ColumnFit:
    if source is None:
        if not column.nullable:
            raise _mismatch(column.name, "may not be null in the table, but the rows lack it")
    elif not fits(source.type, column.type):
        raise _mismatch(column.name, f"is {column.type} in the table and {source.type} in the rows")
    return ColumnFit(
        name=column.name,
        type=column.type,
        nullable=column.nullable,
        source=None if source is None else source.name,
    )


def _by_name(rows: pa.Schema) -> dict[str, pa.Field]:
    found: dict[str, pa.Field] = {}
    for each in rows:
        if each.name.lower() in found:
            raise _mismatch(each.name, "occurs twice in the rows")
        found[each.name.lower()] = each
    return found


def _new_field(column: pa.Field) -> pa.Field:
    kind = delta_type(column.type)
    if kind is None:
        raise _mismatch(column.name, f"is {column.type}, which no Delta column can hold exactly")
    if not column.name or _FORBIDDEN & set(column.name):
        raise _mismatch(column.name, "has a character that Delta does not allow in names")
    return pa.field(column.name, kind)


def _mismatch(name: str, what: str) -> SchemaMismatchError:
    return SchemaMismatchError(f"column {name} {what}", column=name)
