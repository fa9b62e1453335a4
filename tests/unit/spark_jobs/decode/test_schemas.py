"""Schemas from DDL, from Spark's JSON and from samples agree with each other."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidRequestError
from spark_jobs.decode import ddl, json_inference, types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.json_decoder import JsonDecoder

DDL = (
    "id BIGINT NOT NULL COMMENT 'it''s', `odd name` string, d decimal(9, 2), n decimal, "
    "m map<string, array<int>>, st struct<x: int, y STRING COMMENT 'q'>, t timestamp, b boolean"
)


def test_ddl_and_json_spell_the_same_schema() -> None:
    """A DDL text, its schema and that schema's JSON are the same columns."""
    schema = ddl.parse(DDL.replace("''", ""))
    assert schema.names == ["id", "odd name", "d", "n", "m", "st", "t", "b"]
    assert schema.field("n").type == pa.decimal128(10, 0)
    assert schema.field("st").type == pa.struct([("x", pa.int32()), ("y", pa.string())])
    assert types.from_json(types.to_json(schema)) == schema


@pytest.mark.parametrize(
    "text",
    ["", "id", "id bigint,", "id bigint name string", "id array<", "id array<int", "id decimal(50)",
     "id decimal(2,9)", "id what", "1 int", "id struct<>", "id int)", "id int not", "id int; drop",
     "a " + "array<" * 200 + "int" + ">" * 200],
)  # fmt: skip
def test_what_is_no_ddl_is_refused(text: str) -> None:
    """Half a schema is no schema, and the message is ours."""
    with pytest.raises(InvalidRequestError):
        ddl.parse(text)


@given(st.text("abin<>(),:`'1 tgrys", max_size=40))
def test_ddl_parsing_ends_in_a_schema_or_a_refusal(text: str) -> None:
    """No text makes the parser fail in another way."""
    try:
        ddl.parse(text)
    except InvalidRequestError:
        return


@pytest.mark.parametrize(
    "text",
    ["", "[]", '"long"', '{"type":"struct"}', '{"type":"struct","fields":[{"name":"a"}]}',
     '{"type":"struct","fields":[{"name":"a","type":"void"}]}', "[" * 100_000,
     '{"type":"array","elementType":"long","containsNull":true}'],
)  # fmt: skip
def test_what_is_no_schema_in_json_is_refused(text: str) -> None:
    """Nothing else than a struct of known types gets through."""
    with pytest.raises(InvalidRequestError):
        types.from_json(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a struct<`x y`: int>", "Delta allows no"),
        ("a struct<x: int, X: int>", "occurs twice"),
        ("a int, a int", "occurs twice"),
        ("a int, b int, c struct<d: int, e: int>", "has 4 columns"),
    ],
)
def test_schemas_that_a_table_cannot_have_are_refused(text: str, words: str) -> None:
    """Inner names, twins and width are checked when the decoder is built."""
    with pytest.raises(InvalidRequestError, match=words):
        types.check(ddl.parse(text), DecodeBounds(columns_max=3))


def infer(*bodies: dict[str, object]) -> pa.Schema:
    """Guess columns from objects."""
    return json_inference.infer(bodies, DecodeBounds())


def test_columns_are_guessed_from_a_sample() -> None:
    """Names come in order of appearance, numbers widen, the majority decides, nulls wait."""
    found = infer(
        {"a": 1, "b": "2020-01-01", "n": None, "e": [], "o": {}},
        {"a": 1.5, "c": [1, None], "s": {"x": True, "bad name": 1, "X": 2}, "big": 2**70},
        {"b": "x", "mixed": 1, "l": [{"y": 1}, {"z": "q"}]},
        {"mixed": "a"},
        {"mixed": "b"},
    )
    assert found == ddl.parse(
        "a double, b string, c array<bigint>, s struct<x: boolean>, big double, mixed string, "
        "l array<struct<y: bigint, z: string>>"
    )


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**64 - 1, 10**25 + 1])
def test_a_double_is_not_guessed_where_it_changes_a_whole_number(number: int) -> None:
    """One fraction among ids makes a decimal, in which each id and the fraction are exact."""
    found = infer({"a": number, "s": {"x": [number]}}, {"a": 1.5, "s": {"x": [2.5]}}, {"a": 1})
    assert found == ddl.parse("a decimal(38,18), s struct<x: array<decimal(38,18)>>")


def test_a_double_is_guessed_where_it_has_the_whole_numbers() -> None:
    """Large numbers that a double has exactly need no decimal."""
    assert infer({"a": 2**53, "b": 2**1023}, {"a": 1.5}) == ddl.parse("a double, b double")


def test_what_is_no_json_says_nothing_about_columns() -> None:
    """Its record is rejected, so it is no sample of what the table will hold."""
    assert json_inference.objects([b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1}']) == [{"a": 1}]


def test_ids_beside_a_fraction_get_into_the_table_as_they_are() -> None:
    """What inference guesses, the decoder fills without a change."""
    texts = [b'{"id": 9007199254740993}', b'{"id": 18446744073709551615}', b'{"id": 0.1}']
    schema = json_inference.infer(json_inference.objects(texts), DecodeBounds())
    found = JsonDecoder(schema, DecodeBounds()).decode(pa.array(texts, pa.binary()))
    assert [row["id"] for row in found.columns.to_pylist()] == [
        Decimal(2**53 + 1),
        Decimal(2**64 - 1),
        Decimal("0.1"),
    ]


def test_new_fields_stay_within_bounds() -> None:
    """Known fields and unusable names are passed over, and width has an end."""
    known = ddl.parse("a int, b int")
    body = {"a": 1, "c": 1, "": 1, "x\ny": 1, "d" * 300: 1, "e": None, "f": 1, "g": 1}
    assert json_inference.new_fields([body], known, DecodeBounds()).names == ["c", "f", "g"]
    assert json_inference.new_fields([body], known, DecodeBounds(columns_max=3)).names == ["c"]
    assert json_inference.new_fields([body], known, DecodeBounds(columns_max=2)).names == []


@pytest.mark.parametrize("name", [b"\xed\xa0\x80", b"\\ud800"])
def test_a_name_with_half_of_a_surrogate_pair_is_passed_over(name: bytes) -> None:
    """No column can have it; the record itself is rejected later, and the job goes on."""
    sample = json_inference.objects([b'{"%s":1,"a":{"%s":2,"b":3}}' % (name, name)])
    assert sample
    found = json_inference.infer(sample, DecodeBounds())
    assert found == pa.schema([("a", pa.struct([("b", pa.int64())]))])


def test_only_objects_say_something_about_columns() -> None:
    """Nulls, noise and other JSON values are no sample."""
    assert json_inference.objects([None, b"x", b"[1]", b"5", b'{"a":1}', b"\xff"]) == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "before", "found"),
    [
        ("id bigint )", "id bigint", ")"),
        ("id bigint, name", "id bigint, name", ""),
        ("id bigint, tags array(string)", "id bigint, tags array", "("),
    ],
)
def test_a_wrong_text_is_shown_with_its_place(text: str, before: str, found: str) -> None:
    """The message has the text before the error, and what stands there instead."""
    with pytest.raises(InvalidRequestError, match=re.escape(f"after {before!r}, ")) as error:
        ddl.parse(text)
    assert error.value.message.endswith(f"but there is {found!r}")
