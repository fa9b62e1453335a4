"""JSON payloads: strict types, poison that costs only itself, nothing that a text can break."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidRequestError
from spark_jobs.decode import ddl, json_decoder
from spark_jobs.decode.bounds import (
    MALFORMED,
    NOT_UTF8,
    TOO_DEEP,
    TOO_LARGE,
    WRONG_TYPE,
    DecodeBounds,
)
from spark_jobs.decode.json_decoder import (
    JsonDecoder,
    _pieces,
    _with_many_brackets,
    check_json_schema,
)
from spark_jobs.decode.outcome import DecodeOutcome

SCHEMA = ddl.parse(
    "n bigint, s string, f double, l array<bigint>, st struct<x: int, y: array<struct<z: string>>>,"
    " t timestamp, d date, e decimal(9,2), b boolean, i int"
)
BOUNDS = DecodeBounds(depth_max=20, record_bytes_max=10_000)


def decode(*payloads: bytes) -> DecodeOutcome:
    """Decode payloads with the schema of this file."""
    return JsonDecoder(SCHEMA, BOUNDS).decode(pa.array(payloads, pa.binary()))


def only(payload: bytes) -> dict[str, Any]:
    """Return the one row of a good payload, without its nulls."""
    (row,) = decode(payload).columns.to_pylist()
    return {name: value for name, value in row.items() if value is not None}


def test_every_type_has_its_value() -> None:
    """Each column type takes its JSON spelling, nested ones too; what is absent is null."""
    payload = (
        b'{"n": 5, "s": "\\u00e9", "f": 1, "l": [1, null], "st": {"x": 1, "y": [{"z": "q"}]}, '
        b'"t": "2020-01-01T02:00:00.000001+02:00", "d": "2020-02-29", "e": 1.25, "b": false}'
    )
    assert only(payload) == {
        "n": 5,
        "s": "é",
        "f": 1.0,
        "l": [1, None],
        "st": {"x": 1, "y": [{"z": "q"}]},
        "t": dt.datetime(2020, 1, 1, 0, 0, 0, 1, dt.UTC),
        "d": dt.date(2020, 2, 29),
        "e": Decimal("1.25"),
        "b": False,
    }
    assert only(b"{}") == {}
    assert only(b' \r\n{"n":\n1}\t') == {"n": 1}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", MALFORMED),
        (b"null", MALFORMED),
        (b"[]", MALFORMED),
        (b"{", MALFORMED),
        (b"}{", MALFORMED),
        (b'{"n":1}{"n":2}', MALFORMED),
        (b'{"n":1}\n{"n":2}', MALFORMED),
        (b'{"n":1,}', MALFORMED),
        (b'{"n":1,"n":2}', MALFORMED),
        (b'{"s":"a\nb"}', MALFORMED),
        (b'{"s":"\\ud800"}', MALFORMED),
        (b'\xef\xbb\xbf{"n":1}', MALFORMED),
        (b'{"s":"\xff"}', NOT_UTF8),
        (b'{"n":"5"}', WRONG_TYPE),
        (b'{"n":1.0}', WRONG_TYPE),
        (b'{"n":99999999999999999999}', WRONG_TYPE),
        (b'{"i":3000000000}', WRONG_TYPE),
        (b'{"s":5}', WRONG_TYPE),
        (b'{"s":{"a":1}}', WRONG_TYPE),
        (b'{"st":[]}', WRONG_TYPE),
        (b'{"st":{"x":"1"}}', WRONG_TYPE),
        (b'{"l":[1,"a"]}', WRONG_TYPE),
        (b'{"t":5}', WRONG_TYPE),
        (b'{"t":"yesterday"}', WRONG_TYPE),
        (b'{"d":"2020-13-01"}', WRONG_TYPE),
        (b'{"e":1.234}', WRONG_TYPE),
        (b'{"f":NaN}', MALFORMED),
        (b'{"f":-Infinity}', MALFORMED),
        (b'{"f": Inf}', MALFORMED),
        (b'{"f":1e999}', MALFORMED),
        (b'{"n":NaN}', MALFORMED),
        (b'{"no column":[NaN]}', MALFORMED),
        (b'{"f":9007199254740993}', WRONG_TYPE),
        (b'{"f":-9007199254740993 }', WRONG_TYPE),
        (b'{"f":' + b"9" * 300 + b"}", WRONG_TYPE),
        (b'{"z":' + b"[" * 30 + b"]" * 30 + b"}", TOO_DEEP),
        (b'{"z":' + b"[" * 4000 + b"]" * 4000 + b"}", TOO_DEEP),
        (b'{"s":"' + b"x" * 10_000 + b'"}', TOO_LARGE),
    ],
)
def test_a_bad_record_is_rejected_alone_with_its_reason(payload: bytes, code: str) -> None:
    """Its neighbours are decoded, and the reason is the same alone and in company."""
    among = decode(b'{"n":1}', payload, b'{"n":2}')
    assert [row["n"] for row in among.columns.to_pylist()] == [1, 2]
    assert {at: reason.code for at, reason in among.rejected.items()} == {1: code}
    assert decode(payload).rejected[0] == among.rejected[1]
    assert len(among.rejected[1].detail) <= 300


def test_brackets_in_texts_are_not_depth() -> None:
    """Only real nesting counts."""
    assert only(b'{"s":"' + b"[{" * 100 + b'\\"[["}')["s"].startswith("[{")
    assert only(b'{"l":[1],"z":[' + b"{}," * 100 + b"{}]}") == {"l": [1]}


def test_fields_without_a_column_are_left_out_and_counted() -> None:
    """Unknown fields, outermost or inner, do not stop a record; the records are counted."""
    found = decode(b'{"n":1,"new":{"deep":[1]}}', b'{"n":2}', b'{"st":{"x":1,"more":2}}', b"no")
    assert found.unknown_count == 2
    assert [row["n"] for row in found.columns.to_pylist()] == [1, 2, None]
    assert list(found.rejected) == [3]


def test_much_poison_is_found_without_trying_every_split() -> None:
    """A thousand bad records among as many good ones: each is where it belongs."""
    payloads = [json.dumps({"n": n if n % 2 else str(n)}).encode() for n in range(400)]
    found = decode(*payloads)
    assert [row["n"] for row in found.columns.to_pylist()] == list(range(1, 400, 2))
    assert sorted(found.rejected) == list(range(0, 400, 2))


def test_no_values_at_all() -> None:
    """An empty batch has the columns and no row."""
    found = decode()
    assert found.columns.type == pa.struct(list(SCHEMA))
    assert len(found.columns) == 0


def test_columns_that_json_cannot_spell_are_refused() -> None:
    """Maps and binaries have no one JSON form; a schema with one is refused by name."""
    for text in ("m map<string, int>", "a array<struct<x: binary>>"):
        with pytest.raises(InvalidRequestError, match="several spellings"):
            check_json_schema(ddl.parse(text))


_ATOMS = [
    "1", "-1", "1.5", '"x"', "null", "true", "[]", "{}", "[1,2]", '{"x":1,"y":[{"z":"q"}]}',
    '"2020-01-01"', '"2020-01-01T00:00:00Z"', "NaN", "1e400", '"\\ud800"', "Infinity", "Inf",
    "99999999999999999999", "[[[[]]]]", '{"a":{"a":{}}}', "-", '{"x":null}', "[null]", "[{}]",
]  # fmt: skip
_FIELDS = st.tuples(
    st.sampled_from(["n", "s", "f", "l", "st", "t", "d", "e", "b", "i", "zz", "", "N"]),
    st.sampled_from(_ATOMS),
)
_OBJECTS = st.lists(_FIELDS, max_size=4).map(
    lambda pairs: ("{" + ",".join(f'"{name}":{atom}' for name, atom in pairs) + "}").encode()
)
_DAMAGED = st.tuples(_OBJECTS, st.integers(0, 30), st.binary(max_size=2)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)
_PAYLOADS = st.one_of(_OBJECTS, _DAMAGED, st.binary(max_size=12), st.just(b"null"))


@given(st.lists(_PAYLOADS, max_size=8))
def test_a_record_fares_alone_as_in_any_company(payloads: list[bytes]) -> None:
    """Row, reason and validity do not depend on the batch: retries may cut batches anywhere."""
    together = decode(*payloads)
    together.columns.validate(full=True)
    rows = iter(together.columns.to_pylist())
    for at, payload in enumerate(payloads):
        alone = decode(payload)
        if at in together.rejected:
            assert alone.rejected == {0: together.rejected[at]}
        else:
            assert repr(alone.columns.to_pylist()) == repr([next(rows)])  # NaN has no equal
    assert next(rows, None) is None


@given(
    texts=st.lists(st.text('{}[]"ax,é', max_size=12), max_size=12),
    start=st.integers(0, 6),
    openers_max=st.integers(0, 6),
)
def test_crowded_texts_are_those_with_many_brackets(
    texts: list[str], start: int, openers_max: int
) -> None:
    """The quick count over the data buffer equals one text after the other, in slices too."""
    found = _with_many_brackets(pa.array(texts, pa.string()).slice(start), openers_max)
    counts = [text.count("{") + text.count("[") for text in texts[start:]]
    assert found == [at for at, count in enumerate(counts) if count > openers_max]


@given(lengths=st.lists(st.integers(0, 30), max_size=40), start=st.integers(0, 5))
def test_pieces_are_whole_and_short(lengths: list[int], start: int) -> None:
    """Pieces follow one another; each is within both bounds, or is one long text."""
    values = pa.array(["x" * length for length in lengths], pa.string()).slice(start)
    with (
        patch.object(json_decoder, "_PIECE_BYTES_MAX", 50),
        patch.object(json_decoder, "_PIECE_ROWS_MAX", 7),
    ):
        pieces = _pieces(values)
    bounds = [0, *(end for _, end in pieces)]
    assert pieces == list(itertools.pairwise(bounds))
    assert bounds[-1] == len(values)
    for first, end in pieces:
        assert end - first <= 7
        assert end - first <= 1 or sum(lengths[start:][first:end]) <= 50


@pytest.mark.parametrize(
    "payload",
    [
        b'{"d": "0000-12-31"}',
        b'{"t": "0000-01-01T00:00:00Z"}',
        b'{"t": "0001-01-01T00:00:00+14:00"}',
        b'{"t": "9999-12-31T23:59:59-01:00"}',
        b'{"e": 12345678}',
        b'{"e": "1e8"}',
        b'{"e": 1e38}',
    ],
)
def test_a_value_that_no_table_can_hold_is_rejected(payload: bytes) -> None:
    """Years outside of 1 to 9999, and more digits than a decimal has, cost their record only."""
    found = decode(b'{"n": 1}', payload, b'{"n": 2}')
    assert found.columns.field("n").to_pylist() == [1, 2]
    assert {at: reason.code for at, reason in found.rejected.items()} == {1: WRONG_TYPE}


def test_a_value_inside_of_a_list_must_be_held_too() -> None:
    """A date is looked at wherever it is in a column."""
    decoder = JsonDecoder(ddl.parse("l array<struct<d: date>>"), BOUNDS)
    payloads = [b'{"l": [{"d": "0000-01-01"}]}', b'{"l": [{"d": "0001-01-01"}, null]}', b"{}"]
    found = decoder.decode(pa.array(payloads, pa.binary()))
    assert list(found.rejected) == [0]
    assert found.columns.to_pylist() == [{"l": [{"d": dt.date(1, 1, 1)}, None]}, {"l": None}]


@pytest.mark.parametrize(
    "number",
    [
        "1e-999999999", "0e-2147483647", '"1e-9999999"', '"0.1e-99999999999999999999"',
        '"1\\u0065-999999999"', "0." + "0" * 60, "1e-41",
    ],
)  # fmt: skip
def test_a_decimal_far_below_its_column_never_gets_to_the_parser(number: str) -> None:
    """Arrow's parser would read beyond its table, and end the process or give a wrong value."""
    good = b'{"s": "5e-12", "e": 1.50e-1}'
    with patch.object(JsonDecoder, "parse", autospec=True, side_effect=JsonDecoder.parse) as parse:
        found = decode(good, b'{"e": %s}' % number.encode(), good)
    parsed = [text for call in parse.call_args_list for text in call.args[1].to_pylist()]
    assert set(parsed) == {good.decode()}
    assert found.columns.field("e").to_pylist() == [Decimal("0.15")] * 2
    assert found.rejected[1].code == WRONG_TYPE


def test_only_numbers_that_are_no_json_are_malformed() -> None:
    """The same words inside of a text, and numbers that are merely large, are as they were."""
    assert only(b'{"s": ": NaN, [Infinity"}') == {"s": ": NaN, [Infinity"}
    assert only(b'{"f": 1e308}') == {"f": 1e308}


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("column", ["f {}", "f array<{}>", "f struct<g: array<struct<h: {}>>>"])
def test_an_integer_is_exact_in_a_column_of_fractions_or_rejected(kind: str, column: str) -> None:
    """A long id beside fractions is never changed, at any depth; what a float has is taken."""
    first_lost = {"double": 2**53 + 1, "float": 2**24 + 1}[kind]
    whole = {"f {}": "%d", "f array<{}>": "[0.5, %d]"}.get(column, '{"g": [{"h": %d}]}')
    texts = [
        f'{{"f": {whole % number}, "zz": {"9" * 5000}}}'
        for number in (1, first_lost - 1, first_lost, first_lost + 1, -first_lost, 2**100)
    ]
    values = pa.array([text.encode() for text in texts], pa.binary())
    found = JsonDecoder(ddl.parse(column.format(kind)), BOUNDS).decode(values)
    assert {at: reason.code for at, reason in found.rejected.items()} == {
        2: WRONG_TYPE,
        4: WRONG_TYPE,
    }
    assert len(found.columns) == 4


def test_a_number_beyond_a_small_float_is_rejected() -> None:
    """It would be infinity in the table."""
    values = pa.array([b'{"f": 1e39}', b'{"f": 1e38}'], pa.binary())
    found = JsonDecoder(ddl.parse("f float"), BOUNDS).decode(values)
    assert {at: reason.code for at, reason in found.rejected.items()} == {0: WRONG_TYPE}


@pytest.mark.parametrize("number", ["1e30", "1e22", "9" * 22, '"1e30"', "-1e30", "123456e17"])
def test_a_decimal_beyond_128_bits_is_rejected(number: str) -> None:
    """Arrow's parser lets it overflow, and the value would be another one."""
    decoder = JsonDecoder(ddl.parse("e decimal(38,18), s string"), BOUNDS)
    good = b'{"e": 12345678901234567890.5, "s": "5e50"}'
    bad = b'{"e": %s}' % number.encode()
    found = decoder.decode(pa.array([good, bad, b'{"e": 1e19}'], pa.binary()))
    assert {at: reason.code for at, reason in found.rejected.items()} == {1: WRONG_TYPE}
    assert found.columns.field("e").to_pylist() == [
        Decimal("12345678901234567890.5"),
        Decimal(10**19),
    ]
