"""Rows and a table's columns: assigned, filled, added or refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import SchemaMismatchError
from spark_jobs.tables import schema_match
from spark_jobs.tables.arrow_types import converted, delta_type, fits

ROWS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("name", pa.string())])


def match(table: pa.Schema, rows: pa.Schema = ROWS, **options: object) -> schema_match.Fit:
    """Match with defaults."""
    given = {"partition_columns": (), "evolve": "none", **options}
    return schema_match.match(rows, table, **given)  # type: ignore[arg-type]


def test_columns_go_by_name_in_the_tables_order() -> None:
    """Case does not matter, nullable columns that rows lack are filled with nulls."""
    table = pa.schema(
        [
            ("more", pa.date32()),
            ("Name", pa.string()),
            ("offset", pa.int64()),
            ("partition", "int64"),
        ]
    )
    fit = match(table, partition_columns=("partition",))

    assert [(each.name, each.source) for each in fit.columns] == [
        ("more", None),
        ("Name", "name"),
        ("offset", "offset"),
    ]
    assert [(each.name, each.type) for each in fit.partition_columns] == [("partition", pa.int64())]
    assert fit.file_schema.names == ["more", "Name", "offset"]


def test_columns_that_the_table_lacks() -> None:
    """An error that names the column, or an addition; the position columns may be left out."""
    table = pa.schema([("name", pa.string())])
    with pytest.raises(SchemaMismatchError) as refused:
        match(table, optional=("partition",))
    assert refused.value.column == "offset"
    assert match(table, optional=("partition", "offset")).additions == ()
    grown = match(table, evolve="add")
    assert [each.name for each in grown.additions] == ["partition", "offset"]
    assert [each.name for each in grown.columns] == ["name", "partition", "offset"]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ([("name", pa.binary())], "name"),
        ([("name", pa.string()), pa.field("must", pa.int32(), nullable=False)], "must"),
        ([("name", pa.string()), ("offset", pa.int32())], "offset"),
    ],
)
def test_what_cannot_hold_the_rows_is_named(table: list[object], column: str) -> None:
    """Another type, a narrower one, a column that may not be null."""
    with pytest.raises(SchemaMismatchError) as refused:
        match(pa.schema(table), optional=("partition", "offset"))
    assert refused.value.column == column


def test_partition_columns_have_one_spelling() -> None:
    """Times and fractions are spelled differently by different writers: refused."""
    for kind in (pa.float64(), pa.timestamp("us", tz="UTC"), pa.binary()):
        rows = pa.schema([("x", kind)])
        with pytest.raises(SchemaMismatchError):
            schema_match.new_table(rows, ["x"])
    assert schema_match.new_table(ROWS, ["partition"]).names == ROWS.names
    with pytest.raises(SchemaMismatchError):
        schema_match.new_table(ROWS, ["nothing"])


def test_a_table_that_no_delta_can_be_is_not_made() -> None:
    """Names that differ by case only, characters that Delta refuses, types that it lacks."""
    for fields in (
        [("a", pa.int32()), ("A", pa.int32())],
        [("a b", pa.int32())],
        [("a", pa.uint64())],
        [("a", pa.timestamp("ns", tz="UTC"))],
        [("a", pa.struct([("b", pa.time64("us"))]))],
    ):
        with pytest.raises(SchemaMismatchError):
            schema_match.new_table(pa.schema(fields), [])


def test_position_columns_are_added_once() -> None:
    """First when they are new; untransformed rows have them under the names asked for."""
    assert schema_match.with_positions(pa.schema([("x", "int32")]), ("p", "o")).names == [
        "p",
        "o",
        "x",
    ]
    assert schema_match.with_positions(ROWS, ("partition", "offset")) == ROWS
    assert schema_match.row_schema(("p", "o")).names == ["p", "o", *ROW_SCHEMA.names[2:]]
    assert schema_match.row_schema(None) == ROW_SCHEMA


def test_a_table_may_change_under_written_files_within_limits() -> None:
    """A new nullable column is fine; another type, a lost column or a NOT NULL is not."""
    table = pa.schema([("name", pa.string()), ("offset", pa.int64()), ("partition", pa.int32())])
    fit = match(table)
    extra = pa.field("extra", pa.int32())
    assert schema_match.still_fits(fit, table.append(extra), [])
    assert not schema_match.still_fits(fit, table.append(extra.with_nullable(False)), [])
    assert not schema_match.still_fits(fit, table.remove(0), [])
    assert not schema_match.still_fits(fit, table, ["partition"])
    assert not schema_match.still_fits(fit, table.set(1, pa.field("offset", pa.int32())), [])


def test_statistics_are_kept_where_the_table_wants_them() -> None:
    """The table names columns, a count, or all; position columns always have statistics."""
    table = pa.schema([(f"c{number}", pa.int32()) for number in range(40)] + [("o", pa.int64())])
    fit = match(table, rows=table)
    columns = schema_match.stats_columns
    assert columns(fit, {}, ["o"]) == (*(f"c{number}" for number in range(32)), "o")
    assert columns(fit, {"delta.dataSkippingNumIndexedCols": "1"}, []) == ("c0",)
    assert len(columns(fit, {"delta.dataSkippingNumIndexedCols": "-1"}, [])) == 41
    assert columns(fit, {"delta.dataSkippingStatsColumns": "c7, `c3`"}, ["o"]) == ("c3", "c7", "o")


def test_values_keep_their_value() -> None:
    """Whatever fits converts to equal values; what would lose something does not fit."""
    cases: list[tuple[pa.Array, pa.DataType]] = [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([1, None], pa.int32()), pa.float64()),
        (pa.array(["ü", None], pa.large_string()), pa.string()),
        (pa.array([b"\x00"], pa.large_binary()), pa.binary()),
        (pa.array([[1], None], pa.list_(pa.int32())), pa.list_(pa.field("element", pa.int64()))),
        (
            pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())])),
            pa.struct([("b", pa.string()), ("a", pa.int64())]),
        ),
    ]
    for values, wanted in cases:
        assert fits(values.type, wanted)
        made = converted(values, wanted)
        assert made.type == wanted
        for before, after in zip(values.to_pylist(), made.to_pylist(), strict=True):
            known = {**after, **before} if isinstance(before, dict) else before
            assert known == after
    for narrow, wide in (
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.float64(), pa.float32()),
        (pa.string(), pa.binary()),
        (pa.decimal128(10, 4), pa.decimal128(10, 2)),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        (pa.timestamp("us", tz="UTC"), pa.timestamp("us")),
    ):
        assert not fits(narrow, wide)
    assert delta_type(pa.uint8()) is None
