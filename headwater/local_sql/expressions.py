"""Translates expressions of Spark SQL for DuckDB, with their types and the names Spark gives them.

Only what is known to give Spark's answer is translated; everything else raises
:class:`NeedsSparkError`. Where the engines agree on some values only (a division by zero, text that
is not UTF-8, JSON with fractions), the translation raises an error of DuckDB for the other values,
and Spark runs the statement. Spark's rules are those of its ANSI mode with time zone UTC.

The file is not split: it is a table of functions and operators, with a short rule for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from sqlglot import exp


class NeedsSparkError(Exception):
    """The statement has a part that only Spark answers as Spark does; the text names the part."""


class Kind(Enum):
    """A type of Spark."""

    BOOLEAN = auto()
    INT = auto()
    BIGINT = auto()
    DOUBLE = auto()
    STRING = auto()
    BINARY = auto()
    TIMESTAMP = auto()
    DATE = auto()
    HEADERS = auto()  # array<struct<key: string, value: binary>>


@dataclass(frozen=True, slots=True)
class Value:
    """One translated expression.

    Attributes:
        sql: The expression for DuckDB.
        kind: The type that Spark gives it.
        name: The name that Spark gives the column where it has no alias; None if that is not known.
        text: The characters of a literal string; None for everything else.
    """

    sql: str
    kind: Kind
    name: str | None = None
    text: str | None = None


class Names(Protocol):
    """Resolves the columns and inner queries of an expression."""

    def column(self, name: str, relation: str | None) -> Value:
        """Return a column."""

    def scalar(self, query: exp.Expr) -> Value:
        """Return the value of a query with one column and at most one row."""

    def rows(self, query: exp.Expr) -> tuple[str, Sequence[Kind]]:
        """Return a query for DuckDB, and the types of its columns."""


_WHOLE: Final = frozenset({Kind.INT, Kind.BIGINT})
NUMBERS: Final = _WHOLE | {Kind.DOUBLE}
_INT_MAX: Final = 2**31 - 1
_BIGINT_MAX: Final = 2**63 - 1
_DUCKDB_TYPES: Final = {Kind.INT: "INTEGER", Kind.BIGINT: "BIGINT", Kind.DOUBLE: "DOUBLE"}
_SPARK_TYPES: Final = {Kind.INT: "INT", Kind.BIGINT: "BIGINT", Kind.DOUBLE: "DOUBLE"}
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?)?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def only(node: exp.Expr, *known: str) -> None:
    """Refuse a node that has a part beside the known ones.

    Raises:
        NeedsSparkError: the node has such a part.
    """
    for name, part in node.args.items():
        if name not in known and part not in (None, False, []):
            raise NeedsSparkError(f"{named(node)} with {name.strip('_')}")


def quoted(name: str) -> str:
    """Return a name as an identifier of DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def text_of(text: str) -> str:
    """Return a text as a literal of DuckDB.

    Raises:
        NeedsSparkError: the text has a zero character, which no statement of DuckDB can have.
    """
    if "\0" in text:
        raise NeedsSparkError("a text with a zero character")
    return "'" + text.replace("'", "''") + "'"


def translate(node: exp.Expr, names: Names) -> Value:
    """Translate one expression.

    Raises:
        NeedsSparkError: the expression has a part that is not known to be the same in both.
        InvalidRequestError: a column does not exist.
    """
    rule = RULES.get(type(node))
    if rule is None:
        raise NeedsSparkError(named(node))
    if type(node) in _TWO_SIDED:
        only(node, "this", "expression", "typed", "safe")
    return rule(node, names)


def condition(node: exp.Expr, names: Names) -> str:
    """Translate an expression that has to be true or false."""
    value = translate(node, names)
    expect(value, Kind.BOOLEAN)
    return value.sql


# ── Literals and names ───────────────────────────────────────────────────────────────────────────


def _column(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "table")
    if not isinstance(node.this, exp.Identifier):
        raise NeedsSparkError("a star among expressions")
    table = node.args.get("table")
    return names.column(node.name, None if table is None else str(table.name))


def _literal(node: exp.Expr, _names: Names) -> Value:
    text = node.name
    if node.is_string:
        return Value(text_of(text), Kind.STRING, text, text)
    if not text.isdecimal():
        raise NeedsSparkError(f"the decimal number {text}")
    return _whole(int(text))


def _whole(number: int) -> Value:
    if not -_BIGINT_MAX <= number <= _BIGINT_MAX:
        raise NeedsSparkError(f"the number {number}")
    kind = Kind.INT if -_INT_MAX - 1 <= number <= _INT_MAX else Kind.BIGINT
    return Value(f"({number}::{_DUCKDB_TYPES[kind]})", kind, str(number))


def _boolean(node: exp.Expr, _names: Names) -> Value:
    true = bool(node.this)
    return Value("true" if true else "false", Kind.BOOLEAN, "true" if true else "false")


def _paren(node: exp.Expr, names: Names) -> Value:
    inner = translate(node.this, names)
    return Value(f"({inner.sql})", inner.kind, inner.name, inner.text)


# ── Conditions ───────────────────────────────────────────────────────────────────────────────────


def _logic(word: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        left, right = translate(node.this, names), translate(node.expression, names)
        for side in (left, right):
            expect(side, Kind.BOOLEAN)
        return Value(
            f"({left.sql} {word} {right.sql})",
            Kind.BOOLEAN,
            joined("({} " + word + " {})", left, right),
        )

    return rule


def _not(node: exp.Expr, names: Names) -> Value:
    inner = translate(node.this, names)
    expect(inner, Kind.BOOLEAN)
    name = joined("(NOT {})", inner)
    if isinstance(node.this, exp.Is):
        name = None if name is None else name[5:-1].replace(" IS NULL)", " IS NOT NULL)")
    elif isinstance(node.this, exp.In | exp.Like | exp.Between):
        name = None
    return Value(f"(NOT {inner.sql})", Kind.BOOLEAN, name)


def _is(node: exp.Expr, names: Names) -> Value:
    if not isinstance(node.expression, exp.Null):
        raise NeedsSparkError("IS TRUE")
    inner = translate(node.this, names)
    return Value(f"({inner.sql} IS NULL)", Kind.BOOLEAN, joined("({} IS NULL)", inner))


def _comparison(sign: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        left, right = alike(translate(node.this, names), translate(node.expression, names))
        shown = "(NOT ({} = {}))" if sign == "<>" else "({} " + sign + " {})"
        return Value(f"({left.sql} {sign} {right.sql})", Kind.BOOLEAN, joined(shown, left, right))

    return rule


def _same_or_both_null(node: exp.Expr, names: Names) -> Value:
    left, right = alike(translate(node.this, names), translate(node.expression, names))
    return Value(
        f"({left.sql} IS NOT DISTINCT FROM {right.sql})",
        Kind.BOOLEAN,
        joined("({} <=> {})", left, right),
    )


def _between(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "low", "high")
    value = translate(node.this, names)
    low = alike(value, translate(node.args["low"], names))
    high = alike(value, translate(node.args["high"], names))
    return Value(f"({low[0].sql} >= {low[1].sql} AND {high[0].sql} <= {high[1].sql})", Kind.BOOLEAN)


def _in(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "expressions", "query")
    value = translate(node.this, names)
    query = node.args.get("query")
    if query is not None:
        sql, kinds = names.rows(query.this if isinstance(query, exp.Subquery) else query)
        if tuple(kinds) != (value.kind,):
            raise NeedsSparkError("IN over a query of another type")
        return Value(f"({value.sql} IN ({sql}))", Kind.BOOLEAN)
    items = [alike(value, translate(item, names))[1] for item in node.expressions]
    if not items:
        raise NeedsSparkError("an empty IN")
    return Value(f"({value.sql} IN ({_commas(items)}))", Kind.BOOLEAN)


def _exists(node: exp.Expr, names: Names) -> Value:
    sql, _ = names.rows(node.this)
    return Value(f"EXISTS ({sql})", Kind.BOOLEAN)


def _like(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "expression", "negate")
    value, pattern = translate(node.this, names), translate(node.expression, names)
    expect(value, Kind.STRING)
    if pattern.text is None or "\\" in pattern.text:
        raise NeedsSparkError("LIKE with a pattern that is not a plain text")
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    return Value(f"({value.sql} {word} {pattern.sql})", Kind.BOOLEAN)


def alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Return two values that are compared by the same rule in both engines.

    Raises:
        NeedsSparkError: Spark would convert one of them in its own way.
    """
    for one, other in ((left, right), (right, left)):
        if one.text is not None and other.kind in (Kind.TIMESTAMP, Kind.DATE):
            converted = _moment(one.text, other.kind)
            return (converted, right) if one is left else (left, converted)
    if left.kind is Kind.HEADERS:
        raise NeedsSparkError("a comparison of headers")
    if left.kind is not right.kind and not {left.kind, right.kind} <= NUMBERS:
        raise NeedsSparkError(
            f"a comparison of {left.kind.name.lower()} and {right.kind.name.lower()}"
        )
    return left, right


def _moment(text: str, kind: Kind) -> Value:
    """Return a literal time (in UTC) or day.

    Raises:
        NeedsSparkError: the text is written in another way.
    """
    if kind is Kind.DATE and _DAY.fullmatch(text):
        return Value(f"DATE {text_of(text)}", Kind.DATE, f"DATE '{text}'")
    if kind is Kind.TIMESTAMP and _MOMENT.fullmatch(text):
        moment = text.removesuffix("Z").replace("T", " ") + (" 00:00:00" if len(text) == 10 else "")
        return Value(f"TIMESTAMPTZ {text_of(moment + '+00')}", Kind.TIMESTAMP)
    raise NeedsSparkError(f"the time {text!r}")


# ── Arithmetic ───────────────────────────────────────────────────────────────────────────────────


def _arithmetic(sign: str) -> Callable[[exp.Expr, Names], Value]:
    def rule(node: exp.Expr, names: Names) -> Value:
        left, right = translate(node.this, names), translate(node.expression, names)
        kind = _wider(left, right)
        return Value(
            f"({as_kind(left, kind)} {sign} {as_kind(right, kind)})",
            kind,
            joined("({} " + sign + " {})", left, right),
        )

    return rule


def _division(node: exp.Expr, names: Names) -> Value:
    left, right = translate(node.this, names), translate(node.expression, names)
    _wider(left, right)
    sql = f"{as_kind(left, Kind.DOUBLE)} / {as_kind(right, Kind.DOUBLE)}"
    return Value(_unless_zero(right, sql), Kind.DOUBLE, joined("({} / {})", left, right))


def _remainder(node: exp.Expr, names: Names) -> Value:
    left, right = translate(node.this, names), translate(node.expression, names)
    kind = _wider(left, right)
    if kind is Kind.DOUBLE:
        raise NeedsSparkError("a remainder of fractions")
    sql = f"{as_kind(left, kind)} % {as_kind(right, kind)}"
    return Value(_unless_zero(right, sql), kind, None)


def _whole_division(node: exp.Expr, names: Names) -> Value:
    left, right = translate(node.this, names), translate(node.expression, names)
    if _wider(left, right) is Kind.DOUBLE:
        raise NeedsSparkError("DIV of fractions")
    sql = f"{as_kind(left, Kind.BIGINT)} // {as_kind(right, Kind.BIGINT)}"
    return Value(_unless_zero(right, sql), Kind.BIGINT, joined("({} div {})", left, right))


def _negative(node: exp.Expr, names: Names) -> Value:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        if not node.this.name.isdecimal():
            raise NeedsSparkError(f"the decimal number {node.this.name}")
        return _whole(-int(node.this.name))
    inner = translate(node.this, names)
    expect(inner, *NUMBERS)
    return Value(f"(- {inner.sql})", inner.kind, joined("(- {})", inner))


def _unless_zero(divisor: Value, sql: str) -> str:
    return f"(CASE WHEN {divisor.sql} = 0 THEN error('division by zero') ELSE {sql} END)"


def _wider(left: Value, right: Value) -> Kind:
    for side in (left, right):
        expect(side, *NUMBERS)
    for kind in (Kind.DOUBLE, Kind.BIGINT):
        if kind in (left.kind, right.kind):
            return kind
    return Kind.INT


def as_kind(value: Value, kind: Kind) -> str:
    """Return the SQL of a number, converted to a wider type where that is needed."""
    return value.sql if value.kind is kind else f"({value.sql})::{_DUCKDB_TYPES[kind]}"


# ── Choices ──────────────────────────────────────────────────────────────────────────────────────


def _case(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "ifs", "default")
    if node.this is not None:
        raise NeedsSparkError("CASE with a value")
    tests = [condition(one.this, names) for one in node.args["ifs"]]
    default = node.args.get("default")
    thens = [one.args["true"] for one in node.args["ifs"]]
    results = _one_kind(
        [translate(one, names) for one in [*thens, *([default] if default else [])]]
    )
    arms = [f"WHEN {test} THEN {then.sql}" for test, then in zip(tests, results, strict=False)]
    rest = f" ELSE {results[-1].sql}" if default else ""
    return Value(f"(CASE {' '.join(arms)}{rest} END)", _kind_of(results))


def _if(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "true", "false")
    if node.args.get("false") is None:
        raise NeedsSparkError("IF without its last part")
    test = condition(node.this, names)
    results = _one_kind([translate(node.args[part], names) for part in ("true", "false")])
    return Value(
        f"(CASE WHEN {test} THEN {results[0].sql} ELSE {results[1].sql} END)", _kind_of(results)
    )


def _coalesce(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "expressions")
    items = _one_kind([translate(one, names) for one in (node.this, *node.expressions)])
    return Value(f"coalesce({_commas(items)})", _kind_of(items))


def _nullif(node: exp.Expr, names: Names) -> Value:
    left, right = alike(translate(node.this, names), translate(node.expression, names))
    if left.kind is not right.kind and {left.kind, right.kind} - _WHOLE:
        raise NeedsSparkError("NULLIF of two types")
    sql = f"nullif({left.sql}, {right.sql})"
    return Value(f"({sql})::{_DUCKDB_TYPES[left.kind]}" if left.kind in NUMBERS else sql, left.kind)


def _one_kind(values: list[Value]) -> list[Value]:
    kinds = {value.kind for value in values}
    if len(kinds) > 1 and not kinds <= _WHOLE:
        raise NeedsSparkError("a choice between values of different types")
    return values


def _kind_of(values: list[Value]) -> Kind:
    kinds = {value.kind for value in values}
    return kinds.pop() if len(kinds) == 1 else Kind.BIGINT


# ── Conversions ──────────────────────────────────────────────────────────────────────────────────


def _cast(node: exp.Expr, names: Names) -> Value:
    only(node, "this", "to", "_type")
    target = _CASTS.get(node.args["to"].this)
    if target is None or node.args["to"].expressions:
        raise NeedsSparkError(f"CAST to {node.args['to'].sql('spark')}")
    value = translate(node.this, names)
    if value.text is not None and target in (Kind.TIMESTAMP, Kind.DATE):
        return _moment(value.text, target)
    sql = _converted(value, target)
    # `string(x)` and `10L` are casts, too, and have other names.
    written = isinstance(node, exp.TryCast) and not isinstance(node.this, exp.Literal)
    name = joined("CAST({} AS " + _CAST_NAMES[target] + ")", value) if written else None
    return Value(sql, target, name)


def _converted(value: Value, target: Kind) -> str:
    pair = (value.kind, target)
    if value.kind is target:
        return value.sql
    if pair == (Kind.BINARY, Kind.STRING):
        return f"decode({value.sql})"  # raises for what is not UTF-8, which Spark lets through
    if pair in ((Kind.INT, Kind.STRING), (Kind.BIGINT, Kind.STRING), (Kind.BOOLEAN, Kind.STRING)):
        return f"({value.sql})::VARCHAR"
    if pair == (Kind.TIMESTAMP, Kind.DATE):
        return f"({value.sql})::DATE"
    if {value.kind, target} <= NUMBERS and value.kind is not Kind.DOUBLE:
        return as_kind(value, target)
    if value.kind is Kind.STRING and target in NUMBERS:
        digits = "[+-]?[0-9]{1,18}" if target in _WHOLE else r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?"
        trimmed = f"trim({value.sql}, ' ')"
        return (
            f"(CASE WHEN {value.sql} IS NULL OR regexp_full_match({trimmed}, '{digits}') "
            f"THEN ({trimmed})::{_DUCKDB_TYPES[target]} ELSE error('not a plain number') END)"
        )
    raise NeedsSparkError(f"CAST of {value.kind.name.lower()} to {target.name.lower()}")


_CASTS: Final = {
    exp.DType.TEXT: Kind.STRING,
    exp.DType.INT: Kind.INT,
    exp.DType.BIGINT: Kind.BIGINT,
    exp.DType.DOUBLE: Kind.DOUBLE,
    exp.DType.DATE: Kind.DATE,
    exp.DType.TIMESTAMPTZ: Kind.TIMESTAMP,
}
_CAST_NAMES: Final = {
    Kind.STRING: "STRING",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    **_SPARK_TYPES,
}

# ── Helpers ──────────────────────────────────────────────────────────────────────────────────────


def _subquery(node: exp.Expr, names: Names) -> Value:
    only(node, "this")
    return names.scalar(node.this)


def expect(value: Value, *kinds: Kind) -> None:
    """Refuse a value of another type, which Spark would convert in its own way."""
    if value.kind not in kinds:
        wanted = " or ".join(kind.name.lower() for kind in kinds)
        raise NeedsSparkError(f"{value.kind.name.lower()} where {wanted} is expected")


def joined(pattern: str, *values: Value) -> str | None:
    """Fill a pattern with the values' names; None if one has no known name."""
    known = [value.name for value in values if value.name is not None]
    return pattern.format(*known) if len(known) == len(values) else None


def _commas(values: Sequence[Value]) -> str:
    return ", ".join(value.sql for value in values)


def named(node: exp.Expr) -> str:
    """Return the word for a node in messages."""
    if isinstance(node, exp.Anonymous):
        return f"the function {node.name.lower()}"
    return node.key.upper()


# Rules that look at two sides: any other part is refused, such as a NOT that the node itself has.
_TWO_SIDED: Final = frozenset(
    {
        exp.And, exp.Or, exp.Is, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE,
        exp.NullSafeEQ, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Nullif,
    }
)  # fmt: skip

RULES: Final[dict[type[exp.Expr], Callable[[exp.Expr, Names], Value]]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: _boolean,
    exp.Paren: _paren,
    exp.And: _logic("AND"),
    exp.Or: _logic("OR"),
    exp.Not: _not,
    exp.Is: _is,
    exp.EQ: _comparison("="),
    exp.NEQ: _comparison("<>"),
    exp.LT: _comparison("<"),
    exp.LTE: _comparison("<="),
    exp.GT: _comparison(">"),
    exp.GTE: _comparison(">="),
    exp.NullSafeEQ: _same_or_both_null,
    exp.Between: _between,
    exp.In: _in,
    exp.Exists: _exists,
    exp.Like: _like,
    exp.Add: _arithmetic("+"),
    exp.Sub: _arithmetic("-"),
    exp.Mul: _arithmetic("*"),
    exp.Div: _division,
    exp.IntDiv: _whole_division,
    exp.Mod: _remainder,
    exp.Neg: _negative,
    exp.Case: _case,
    exp.If: _if,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Subquery: _subquery,
}
