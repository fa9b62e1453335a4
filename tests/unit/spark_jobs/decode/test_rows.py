"""Rows of a stream become rows of two tables, each row once."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.schema import ROW_SCHEMA
from broker.errors import InvalidRequestError, SchemaMismatchError
from spark_jobs.decode import ddl, types
from spark_jobs.decode.rows import REJECTED_SCHEMA, RowDecoder
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.decode.transform import DecodeTransform


def spec(text: str = "id bigint, name string", **more: object) -> DecodeSpec:
    """Return a JSON spec of a DDL schema."""
    return DecodeSpec(format="json", schema=types.to_json(ddl.parse(text)), **more)  # type: ignore[arg-type]


def rows(*values: bytes | None) -> pa.RecordBatch:
    """Return rows of partition 1 from offset 100 on, with everything that a row has."""
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    return pa.RecordBatch.from_pylist(
        [
            {"partition": 1, "offset": 100 + n, "timestamp": at, "key": b"k%d" % n, "value": value,
             "headers": [{"key": "h", "value": b"v"}], "subject": "s", "leader_epoch": 3}
            for n, value in enumerate(values)
        ],
        schema=ROW_SCHEMA,
    )  # fmt: skip


def test_good_bad_and_null_values_go_where_they_belong() -> None:
    """A tombstone has null columns, a bad record keeps every byte of its row and says why."""
    made = RowDecoder(spec()).decode(rows(b'{"id":1}', None, b"bad", b'{"id":2,"name":"x"}'))
    assert made.decoded.select(["offset", "key", "id", "name"]).to_pylist() == [
        {"offset": 100, "key": b"k0", "id": 1, "name": None},
        {"offset": 101, "key": b"k1", "id": None, "name": None},
        {"offset": 103, "key": b"k3", "id": 2, "name": "x"},
    ]
    assert made.kept is not None
    assert made.kept.to_pylist() == [0, 1, 3]
    (rejected,) = made.rejected.to_pylist()
    assert (rejected["offset"], rejected["value"], rejected["reason"]) == (102, b"bad", "malformed")
    assert rejected["headers"] == [{"key": "h", "value": b"v"}]
    assert made.reasons == {"malformed": 1}
    assert made.rejected.schema == REJECTED_SCHEMA


@pytest.mark.parametrize("name", [b"\xed\xa0\x80", b"\\ud800"])
def test_a_rejected_record_does_not_keep_others_from_new_columns(name: bytes) -> None:
    """Its field has half of a surrogate pair as its name, which no column can have."""
    decode = DecodeTransform(spec(), grow=True)
    with pytest.raises(SchemaMismatchError, match="new fields: tail"):
        decode(rows(b'{"id":1,"%s":2}' % name, b'{"id":2,"tail":"N1"}'))


def test_a_rejected_record_adds_no_column() -> None:
    """Its fields may be junk; only those of records that decode become columns."""
    decode = DecodeTransform(spec(), grow=True)
    made = decode(rows(b'{"id":"x","junk":2}', b'{"id":2}'))
    assert made.rejected is not None
    with pytest.raises(SchemaMismatchError, match=r"new fields: tail\s"):
        decode(rows(b'{"id":"x","junk":2}', b'{"id":2,"tail":1}'))


def test_nothing_but_tombstones_and_nothing_at_all() -> None:
    """Batches without a payload, and without a row, have the columns, too."""
    made = RowDecoder(spec()).decode(rows(None, None))
    assert made.decoded.column("id").to_pylist() == [None, None]
    assert RowDecoder(spec()).decode(rows()).decoded.num_rows == 0


@given(st.lists(st.sampled_from([b'{"id":1}', b'{"id":2}', b"bad", None, b"{}"]), max_size=12))
def test_every_row_comes_out_once_in_order(values: list[bytes | None]) -> None:
    """Decoded and rejected offsets together are those that went in."""
    made = RowDecoder(spec()).decode(rows(*values))
    good = made.decoded.column("offset").to_pylist()
    bad = made.rejected.column("offset").to_pylist()
    assert good == sorted(good)
    assert sorted(good + bad) == list(range(100, 100 + len(values)))
    for row in made.decoded.to_pylist():
        payload = values[row["offset"] - 100]
        assert row["id"] == (None if payload is None else json.loads(payload).get("id"))


def test_names_that_are_taken_get_a_prefix() -> None:
    """Row columns and earlier payload columns win, whatever the case; characters are replaced."""
    wide = spec("key string, `Offset` bigint, a int, A int, `x y` int, value_key int")
    assert RowDecoder(wide).schema.names[4:] == [
        "value_key", "value_Offset", "a", "value_A", "x_y", "value_value_key",
    ]  # fmt: skip
    made = RowDecoder(wide).decode(rows(b'{"key":"mine","A":1,"a":2,"x y":3}'))
    (row,) = made.decoded.to_pylist()
    assert (row["key"], row["value_key"], row["a"], row["value_A"], row["x_y"]) == (
        b"k0", "mine", 2, 1, 3,
    )  # fmt: skip


def test_raw_keeps_the_value() -> None:
    """Format raw rejects nothing; its columns are the row's."""
    made = RowDecoder(DecodeSpec(format="raw")).decode(rows(b"\xff", None))
    assert made.decoded.schema.names == ["partition", "offset", "timestamp", "key", "value"]
    assert made.decoded.column("value").to_pylist() == [b"\xff", None]
    assert made.rejected.num_rows == 0


def test_a_spec_survives_as_text() -> None:
    """Each format's spec is the same after a trip through its text."""
    specs = [
        spec(),
        DecodeSpec(format="raw", row_columns=("partition", "offset", "subject")),
        DecodeSpec(format="avro", avro_schema="{}", avro_schema_id=7),
        DecodeSpec(format="protobuf", descriptors="AA==", message="a.B"),
    ]
    assert [DecodeSpec.from_text(each.to_text()) for each in specs] == specs


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"headwater_decode":2,"format":"raw","row_columns":[],"bounds":{}}',
     '{"headwater_decode":1,"format":"raw","row_columns":["partition","offset"],"bounds":{},"x":1}'],
)  # fmt: skip
def test_what_is_no_spec_is_refused(text: str) -> None:
    """A damaged spec, or one of a newer program, is never guessed at."""
    with pytest.raises(SchemaMismatchError):
        DecodeSpec.from_text(text)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": "xml"}, "not known"),
        ({"format": "json"}, "needs --schema"),
        ({"format": "raw", "schema": "{}"}, "takes no --schema"),
        ({"format": "raw", "row_columns": ("offset",)}, "must include partition"),
        ({"format": "raw", "row_columns": ("partition", "ofset")}, "did you mean"),
    ],
)
def test_specs_that_make_no_sense_are_refused(values: dict[str, object], words: str) -> None:
    """A spec is checked where it is made."""
    with pytest.raises(InvalidRequestError, match=words):
        DecodeSpec(**values)  # type: ignore[arg-type]


def test_a_grown_spec_is_known_as_such() -> None:
    """Columns at the end are growth; a changed type, bound or order is another spec."""
    before = spec("a int")
    assert before.with_fields(ddl.parse("b int")).grown_from(before)
    assert before.grown_from(before)
    assert not before.grown_from(before.with_fields(ddl.parse("b int")))
    assert not spec("a bigint, b int").grown_from(before)
    assert not spec("b int, a int").grown_from(before)
    assert not spec("a int", row_columns=("partition", "offset")).grown_from(before)
