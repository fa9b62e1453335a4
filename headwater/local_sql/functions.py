"""Translates the functions and aggregates of Spark SQL that DuckDB answers alike.

Each is a rule of :data:`headwater.local_sql.expressions.RULES`; importing this module adds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from headwater.local_sql.expressions import (
    NUMBERS,
    RULES,
    Kind,
    Names,
    NeedsSparkError,
    Value,
    as_kind,
    expect,
    joined,
    only,
    quoted,
    text_of,
    translate,
)

_JSON_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_WHOLE_NUMBER: Final = text_of("[1-9][0-9]{0,18}")
_TRUNCATIONS: Final = frozenset(
    {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"}
)
_ORDERED: Final = tuple(kind for kind in Kind if kind is not Kind.HEADERS)


# ── Aggregates ───────────────────────────────────────────────────────────────────────────────────


def _count(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "big_int")
    if isinstance(node.this, exp.Star):
        only(node.this)
        return Value("count(*)", Kind.BIGINT, "count(1)")
    if isinstance(node.this, exp.Distinct):
        item = _distinct(node.this, names)
        expect(item, *_ORDERED)
        return Value(f"count(DISTINCT {item.sql})", Kind.BIGINT, joined("count(DISTINCT {})", item))
    item = translate(node.this, names)
    return Value(f"count({item.sql})", Kind.BIGINT, joined("count({})", item))


def _distinct(node: exp.Expr, names: Names) -> Value:
    only(node, "expressions")
    if len(node.expressions) != 1:
        raise NeedsSparkError("DISTINCT over several columns")
    return translate(node.expressions[0], names)


def _count_if(node: exp.Expr, names: Names) -> Value:
    only(node, "this")
    test = translate(node.this, names)
    expect(test, Kind.BOOLEAN)
    sql = f"count(CASE WHEN {test.sql} THEN 1 END)"
    return Value(sql, Kind.BIGINT, joined("count_if({})", test))


def _sum(node: exp.Expr, names: Names) -> Value:
    only(node, "this")
    distinct = isinstance(node.this, exp.Distinct)
    item = _distinct(node.this, names) if distinct else translate(node.this, names)
    expect(item, *NUMBERS)
    kind = Kind.DOUBLE if item.kind is Kind.DOUBLE else Kind.BIGINT
    word = "DISTINCT " if distinct else ""
    total = f"sum({word}{item.sql})"  # of whole numbers: 128 bits wide; an overflow is an error
    return Value(
        total if kind is Kind.DOUBLE else f"({total})::BIGINT",
        kind,
        joined("sum(" + word + "{})", item),
    )


def _average(node: exp.Expr, names: Names) -> Value:
    only(node, "this")
    item = translate(node.this, names)
    expect(item, *NUMBERS)
    return Value(f"avg({as_kind(item, Kind.DOUBLE)})", Kind.DOUBLE, joined("avg({})", item))


def _extreme(word: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        only(node, "this")
        item = translate(node.this, names)
        expect(item, *_ORDERED)
        return Value(f"{word}({item.sql})", item.kind, joined(word + "({})", item))

    return rule


def _value_at(word: str, duckdb: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        only(node, "this", "expression")
        item, by = translate(node.this, names), translate(node.expression, names)
        expect(by, *_ORDERED)
        name = joined(word + "({}, {})", item, by)
        return Value(f"{duckdb}({item.sql}, {by.sql})", item.kind, name)

    return rule


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────


def _length(node: exp.Expr, names: Names) -> Value:
    only(node, "this")
    item = translate(node.this, names)
    expect(item, Kind.STRING, Kind.BINARY)
    word = "length" if item.kind is Kind.STRING else "octet_length"
    return Value(f"{word}({item.sql})::INTEGER", Kind.INT)


def _change_case(word: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        only(node, "this")
        item = translate(node.this, names)
        expect(item, Kind.STRING)
        ascii_only = f"(strlen({item.sql}) = length({item.sql}) OR {item.sql} IS NULL)"
        return Value(
            f"(CASE WHEN {ascii_only} THEN {word}({item.sql}) ELSE error('not ASCII') END)",
            Kind.STRING,
            joined(word + "({})", item),
        )

    return rule


def _concatenation(node: exp.Expr, names: Names) -> Value:
    """Translate texts that are joined.

    The parser gives the same tree for 'it''s', for 'it' 's' and for concat('it', 's'). The first
    has a quote in Spark, and the others do not, so Spark answers whatever has only literals.
    """
    parts = node.expressions or [node.this, node.expression]
    if all(isinstance(part, exp.Literal) for part in parts):
        raise NeedsSparkError("a text with two quotes side by side, or texts joined to each other")
    items = [translate(part, names) for part in parts]
    for item in items:
        expect(item, Kind.STRING)
    return Value("(" + " || ".join(item.sql for item in items) + ")", Kind.STRING)


def _substring(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "start", "length")
    item = translate(node.this, names)
    expect(item, Kind.STRING)
    places = [node.args[part] for part in ("start", "length") if node.args.get(part) is not None]
    if not all(isinstance(one, exp.Literal) and one.name.isdecimal() for one in places):
        raise NeedsSparkError("SUBSTRING at a place that is not a plain number")
    if int(places[0].name) < 1 or any(int(one.name) > 2**31 - 1 for one in places):
        raise NeedsSparkError("SUBSTRING before the first character")
    return Value(f"substring({', '.join([item.sql, *(one.name for one in places)])})", Kind.STRING)


def _json_text(node: exp.Expr, names: Names) -> Value:
    """Translate get_json_object; the engines write fractions differently, so Spark runs those."""
    only(node, "this", "expression", "only_json_types")
    item = translate(node.this, names)
    expect(item, Kind.STRING)
    path = node.expression
    if not isinstance(path, exp.JSONPath):
        raise NeedsSparkError("GET_JSON_OBJECT with a path that is not a text")
    _root, *steps = path.expressions
    keys = [step.name for step in steps if isinstance(step, exp.JSONPathKey)]
    if not keys or len(keys) != len(steps) or not all(map(_JSON_KEY.fullmatch, keys)):
        raise NeedsSparkError("GET_JSON_OBJECT with more than names in its path")
    where = text_of("$" + "".join(f".{quoted(key)}" for key in keys))
    raw, text, kind = (
        f"{function}({item.sql}, {where})"
        for function in ("json_extract", "json_extract_string", "json_type")
    )
    # Of a name that is there twice DuckDB takes the first value, Spark the first that is not null.
    twice = " OR ".join(_occurs_twice(item.sql, key) for key in dict.fromkeys(keys))
    # Each function parses the whole record, and stops at what is not JSON. So one is called, whose
    # result is JSON: most texts have no escapes, and most numbers show that they are whole. The
    # others need a second call: DuckDB writes 0 for -0, and reads NaN and numbers of any size.
    return Value(
        f"list_transform([{raw}::VARCHAR], lambda raw: CASE "
        f"WHEN raw IS NULL OR raw = 'null' "
        f"THEN CASE WHEN {twice} THEN error('a name occurs twice') END "
        f"WHEN starts_with(raw, '\"') THEN CASE WHEN contains(raw, '\\') THEN {text} "
        f"ELSE substr(raw, 2, length(raw) - 2) END "
        f"WHEN regexp_full_match(raw, {_WHOLE_NUMBER}) THEN raw "
        f"WHEN {kind} IN ('UBIGINT', 'BOOLEAN') THEN raw "
        f"ELSE error('not a text, a whole number or a truth value') END)[1]",
        Kind.STRING,
    )


def _occurs_twice(sql: str, key: str) -> str:
    """Return the test whether a text of JSON may have a name twice, also with escapes in it."""
    name = text_of(f'"{key}"')
    return f"(contains({sql}, '\\') OR contains(substr({sql}, strpos({sql}, {name}) + 1), {name}))"


# ── Times ────────────────────────────────────────────────────────────────────────────────────────


def _part_of_time(part: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        only(node, "this")
        inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
        item = translate(inner, names)
        expect(item, Kind.TIMESTAMP)
        return Value(f"{part}({item.sql})::INTEGER", Kind.INT, joined(part + "({})", item))

    return rule


def _epoch(word: str, duckdb: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        only(node, "this")
        item = translate(node.this, names)
        expect(item, Kind.TIMESTAMP)
        return Value(f"{duckdb}({item.sql})::BIGINT", Kind.BIGINT, joined(word + "({})", item))

    return rule


def _truncated_time(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "unit")
    unit = node.args["unit"].name.upper()
    if unit not in _TRUNCATIONS:
        raise NeedsSparkError(f"DATE_TRUNC to {unit}")
    item = translate(node.this, names)
    expect(item, Kind.TIMESTAMP)
    return Value(f"date_trunc('{unit.lower()}', {item.sql})", Kind.TIMESTAMP)


def _day(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "safe")
    item = translate(node.this, names)
    expect(item, Kind.TIMESTAMP)
    return Value(f"({item.sql})::DATE", Kind.DATE, joined("to_date({})", item))


# ── Numbers ──────────────────────────────────────────────────────────────────────────────────────


def _absolute(node: exp.Expr, names: Names) -> Value:
    only(node, "this")
    item = translate(node.this, names)
    expect(item, *NUMBERS)
    return Value(f"abs({item.sql})", item.kind, joined("abs({})", item))


RULES.update(
    {
        exp.Count: _count,
        exp.CountIf: _count_if,
        exp.Sum: _sum,
        exp.Avg: _average,
        exp.Min: _extreme("min"),
        exp.Max: _extreme("max"),
        exp.ArgMin: _value_at("min_by", "arg_min_null"),
        exp.ArgMax: _value_at("max_by", "arg_max_null"),
        exp.Length: _length,
        exp.Upper: _change_case("upper"),
        exp.Lower: _change_case("lower"),
        exp.Concat: _concatenation,
        exp.DPipe: _concatenation,
        exp.Substring: _substring,
        exp.JSONExtractScalar: _json_text,
        exp.Year: _part_of_time("year"),
        exp.Month: _part_of_time("month"),
        exp.Day: _part_of_time("day"),
        exp.Hour: _part_of_time("hour"),
        exp.Minute: _part_of_time("minute"),
        exp.UnixMicros: _epoch("unix_micros", "epoch_us"),
        exp.TimestampTrunc: _truncated_time,
        exp.TsOrDsToDate: _day,
        exp.Abs: _absolute,
    }
)
