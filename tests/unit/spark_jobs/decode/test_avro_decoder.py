"""Avro payloads: every type, every kind of damage, and dangerous schemas."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidRequestError
from spark_jobs.decode.avro_decoder import AvroDecoder
from spark_jobs.decode.bounds import MALFORMED, OTHER_SCHEMA, TOO_LARGE, DecodeBounds

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "demo",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "x", "type": "int"}]}}},
        {"name": "rates", "type": {"type": "map", "values": "double"}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 4}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip
ORDER: dict[str, Any] = {
    "id": 1,
    "note": None,
    "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    "day": dt.date(2020, 1, 2),
    "price": Decimal("1.23"),
    "kind": "A",
    "other": "B",
    "lines": [{"x": 1}],
    "rates": {"a": 1.0},
    "mark": b"abcd",
    "uid": "7f7edbb3-d932-472d-8e16-8b0b5eecfb97",
}


def datum(value: Any = None) -> bytes:
    """Return one encoded order."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), value or ORDER)
    return out.getvalue()


def decoder(schema: Any = None, **options: Any) -> AvroDecoder:
    """Return a decoder of orders, or of another schema."""
    given_options = {"schema_id": None, "bounds": DecodeBounds(), **options}
    return AvroDecoder(json.dumps(schema or SCHEMA), **given_options)


def test_every_type_has_its_value() -> None:
    """Numbers, texts, times, decimals, enums, arrays, maps, fixed and uuids become columns."""
    found = decoder().decode(pa.array([datum()], pa.binary()))
    assert found.rejected == {}
    assert found.columns.to_pylist() == [{**ORDER, "rates": [("a", 1.0)]}]


def test_damage_is_rejected_alone() -> None:
    """Cut short, too long, too large, empty or noise: rejected, and the good ones stay."""
    good = datum()
    payloads = [good, good[:-1], good + b"x", b"", b"\xff" * 50, b"x" * 2000, good]
    found = decoder(bounds=DecodeBounds(record_bytes_max=1000)).decode(
        pa.array(payloads, pa.binary())
    )
    assert len(found.columns) == 2
    codes = {at: reason.code for at, reason in found.rejected.items()}
    assert codes == {1: MALFORMED, 2: MALFORMED, 3: MALFORMED, 4: MALFORMED, 5: TOO_LARGE}


@given(st.integers(0, 80), st.binary(min_size=1, max_size=4), st.integers(0, 90))
def test_no_bytes_raise(at: int, noise: bytes, length: int) -> None:
    """Whatever is written over an order, it decodes or is rejected."""
    body = bytearray(datum())
    body[at : at + len(noise)] = noise
    found = decoder().decode(pa.array([bytes(body[:length])], pa.binary()))
    assert len(found.columns) + len(found.rejected) == 1


def test_a_frame_must_name_the_given_schema() -> None:
    """With a registry's frame only the given schema number is decoded; others are rejected."""
    payloads = [b"\0\0\0\0\7" + datum(), b"\0\0\0\0\x08" + datum(), datum(), b"\0\0"]
    found = decoder(schema_id=7).decode(pa.array(payloads, pa.binary()))
    assert len(found.columns) == 1
    codes = [found.rejected[at].code for at in (1, 2, 3)]
    assert codes[0] == OTHER_SCHEMA
    assert codes[1] in {MALFORMED, OTHER_SCHEMA}
    assert codes[2] == MALFORMED


def _with(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (_with({"type": "array", "items": "null"}), "take no bytes"),
        (
            _with({"type": "array", "items": {"type": "record", "name": "Z", "fields": []}}),
            "take no bytes",
        ),
        (
            _with({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}),
            "take no bytes",
        ),
        (_with(["null", "R"]), "contains itself"),
        (_with(["int", "string"]), "union"),
        (_with("null"), "may not be used alone"),
        (_with("Nobody"), "not known"),
        (_with({"type": "long", "logicalType": "time-micros"}), "cannot become a column"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "not an Avro schema"),
        ({"type": "record", "name": "R"}, "has no fields"),
        ({"type": "array", "items": "int"}, "must be a record"),
        ("string", "must be a record"),
    ],
)
def test_dangerous_and_columnless_schemas_are_refused(schema: Any, words: str) -> None:
    """Five bytes must not become a billion nulls, and a union has no one type."""
    with pytest.raises(InvalidRequestError, match=words):
        decoder(schema)


@pytest.mark.parametrize("size", [5_000, 8_000_000])
def test_a_decimal_of_any_size_is_a_row_or_a_reason(size: int) -> None:
    """The bytes of a decimal may be far more than a number of Python can be.

    fastavro's own decimals take hours for the larger one, in which a job does nothing else.
    """
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(_with("bytes")), {"a": b"\x7f" * size})
    found = decoder(_with(kind)).decode(pa.array([out.getvalue()], pa.binary()))
    assert {at: reason.code for at, reason in found.rejected.items()} == {0: MALFORMED}


def test_decimals_are_exact_to_the_last_digit_and_refused_beyond_it() -> None:
    """Of both encodings, of both signs, with bytes in front that say nothing."""
    most = 10**38 - 1
    for kind in ({"type": "bytes"}, {"type": "fixed", "size": 20, "name": "F"}):
        told = {**kind, "logicalType": "decimal", "precision": 38, "scale": 9}
        plain = fastavro.parse_schema(_with(kind if "size" in kind else "bytes"))
        bodies = []
        for number in (0, 1, -1, 12_345_678_901, most, -most, most + 1, -most - 1):
            out = io.BytesIO()
            encoded = number.to_bytes(20, "big", signed=True)
            fastavro.schemaless_writer(out, plain, {"a": encoded})
            bodies.append(out.getvalue())
        found = decoder(_with(told)).decode(pa.array(bodies, pa.binary()))
        assert {at: one.code for at, one in found.rejected.items()} == {6: MALFORMED, 7: MALFORMED}
        assert [str(one) for one in found.columns.field("a").to_pylist()[:6]] == [
            "0E-9",
            "1E-9",
            "-1E-9",
            "12.345678901",
            "99999999999999999999999999999.999999999",
            "-99999999999999999999999999999.999999999",
        ]


@pytest.mark.parametrize("number", [b"\x01", b"\x03", b"\x05", b"\xff" * 9 + b"\x01"])
def test_negative_numbers_name_no_symbol_and_no_branch(number: bytes) -> None:
    """-1 is not the last one, neither in a record nor in a type that is used by its name."""
    symbols = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    for schema, good, bad in (
        (_with(symbols), b"\x02", number),
        (_with(["null", "long"]), b"\x02\x0e", number + b"\x0e"),
        (
            {"type": "record", "name": "R", "fields": [
                {"name": "a", "type": symbols}, {"name": "b", "type": "E"}]},
            b"\x00\x02",
            b"\x00" + number,
        ),
    ):  # fmt: skip
        found = decoder(schema).decode(pa.array([good, bad], pa.binary()))
        assert list(found.rejected) == [1]
        assert len(found.columns) == 1


_ENDLESS = b"\x80" * 10 + b"\x00"  # eleven bytes
_OVERFLOWING = b"\xff" * 9 + b"\x02"  # the 65th bit


@pytest.mark.parametrize("number", [_ENDLESS, _OVERFLOWING, b"\x81" * 12 + b"\x01"])
def test_a_number_of_more_than_64_bits_is_rejected_wherever_it_is(number: bytes) -> None:
    """A value, a length, a branch, a symbol, a block's count and size: none may overflow."""
    line = {"type": "record", "name": "L", "fields": [{"name": "x", "type": "int"}]}
    cases = [
        (_with("long"), number),
        (_with({"type": "int", "logicalType": "date"}), number),
        (_with("string"), number + b"ab"),
        (_with("bytes"), number + b"ab"),
        (_with(["null", "long"]), number + b"\x02"),
        (_with({"type": "enum", "name": "E", "symbols": ["A", "B"]}), number),
        (_with({"type": "array", "items": "int"}), number),
        (_with({"type": "array", "items": "int"}), b"\x01" + number + b"\x02\x00"),
        (_with({"type": "array", "items": line}), b"\x02" + number + b"\x00"),
        (_with({"type": "map", "values": "long"}), b"\x02\x02a" + number + b"\x00"),
        (_with({"type": "map", "values": "long"}), b"\x02\x02a\x02" + number),
    ]
    for schema, body in cases:
        found = decoder(schema).decode(pa.array([body], pa.binary()))
        assert {at: one.code for at, one in found.rejected.items()} == {0: MALFORMED}, schema


def test_bytes_that_look_like_a_long_number_are_none() -> None:
    """Texts, doubles, fixed bytes and the longest numbers with such bytes are decoded."""
    most = b"\xff" * 9 + b"\x01"
    looks = b"\xff" * 20
    line = {"type": "record", "name": "L", "fields": [
        {"name": "f", "type": {"type": "fixed", "size": 20, "name": "F"}},
        {"name": "d", "type": "double"}, {"name": "s", "type": "float"},
        {"name": "t", "type": "boolean"},
    ]}  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "n", "type": "long"},
        {"name": "a", "type": {"type": "array", "items": line}},
        {"name": "b", "type": ["null", "L"]},
        {"name": "m", "type": {"type": "map", "values": "bytes"}},
        {"name": "s", "type": "string"},
        {"name": "last", "type": "long"},
    ]}  # fmt: skip
    word = "ä" * 30
    one = looks + b"\x80" * 8 + b"\x80" * 4 + b"\x01"
    body = (
        most + b"\x01\xc2\x00" + one + b"\x00" + b"\x02" + one + b"\x02\x02k\x28" + looks + b"\x00"
        + b"\x78" + word.encode() + most
    )  # fmt: skip
    found = decoder(schema).decode(pa.array([body], pa.binary()))
    assert found.rejected == {}
    (row,) = found.columns.to_pylist()
    assert (row["n"], row["s"], row["last"]) == (-(2**63), word, -(2**63))
    assert row["b"]["f"] == looks


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), st.text(max_size=20))
def test_all_numbers_of_64_bits_are_decoded(numbers: list[int], text: str) -> None:
    """What an encoder writes is never taken for a longer number."""
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": {"type": "array", "items": "long"}}, {"name": "s", "type": "string"},
    ]}  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"a": numbers, "s": text})
    found = decoder(schema).decode(pa.array([out.getvalue()], pa.binary()))
    assert found.columns.to_pylist() == [{"a": numbers, "s": text}]
