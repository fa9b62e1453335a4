"""Translates a whole query of Spark SQL over streams for DuckDB.

Names are resolved as Spark resolves them, and each output column gets the name that Spark gives it.
A query with a part that is not known to be answered alike raises :class:`NeedsSparkError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

import headwater.local_sql.functions  # noqa: F401  # adds its rules
from broker.errors import InvalidRequestError
from headwater.local_sql.expressions import (
    Kind,
    NeedsSparkError,
    Value,
    condition,
    only,
    quoted,
    translate,
)
from headwater.local_sql.parsing import Statement

STREAM_KINDS: Final[Mapping[str, Kind]] = {
    "partition": Kind.INT,
    "offset": Kind.BIGINT,
    "timestamp": Kind.TIMESTAMP,
    "key": Kind.BINARY,
    "value": Kind.BINARY,
    "headers": Kind.HEADERS,
    "subject": Kind.STRING,
    "leader_epoch": Kind.BIGINT,
    "reply_subject": Kind.STRING,
    "correlation_id": Kind.STRING,
}


@dataclass(frozen=True, slots=True)
class Translated:
    """A query for DuckDB.

    Attributes:
        sql: The query; :func:`table_name` says which table a stream is.
        columns: The names and types of the result, as Spark gives them.
        streams: The streams that are read, with the columns that are needed of each.
    """

    sql: str
    columns: tuple[tuple[str, Kind], ...]
    streams: Mapping[str, tuple[str, ...]]


def table_name(streams: Iterable[str], stream: str) -> str:
    """Return the name of a stream's table, which is a temporary one, among those of a query.

    DuckDB does not tell names apart that differ by case only, and streams may have such names.
    """
    return f"stream{list(streams).index(stream)}"


def translate_statement(statement: Statement, streams: Mapping[str, str]) -> Translated:
    """Translate a statement. Pure.

    Args:
        statement: A parsed statement.
        streams: For each of the statement's relations, the stream that it means.

    Raises:
        NeedsSparkError: the statement is not a query, or has a part that only Spark answers.
        InvalidRequestError: a column does not exist.
    """
    if not statement.is_query:
        raise NeedsSparkError("a statement that is not a query")
    used: dict[str, set[str]] = {name: set() for name in streams.values()}
    query = _Query(streams, used, {}, nested=False)
    sql, columns = query.translate(statement.tree)
    wanted = {
        name: tuple(column for column in STREAM_KINDS if column in columns) or ("offset",)
        for name, columns in used.items()
    }
    return Translated(sql, tuple(columns), wanted)


@dataclass(slots=True)
class _Relation:
    """A table in FROM: its columns, and, for a stream, the names of those that are used."""

    alias: str
    columns: list[tuple[str, Kind]]
    used: set[str] | None = None

    def find(self, name: str) -> Kind | None:
        matches = [kind for one, kind in self.columns if one.lower() == name.lower()]
        if len(matches) > 1:
            raise NeedsSparkError(f"two columns with the name {name}")
        if matches and self.used is not None:
            self.used.add(name.lower())
        return matches[0] if matches else None


_Columns = list[tuple[str, Kind]]


@dataclass(slots=True)
class _Query:
    """Translates queries with the same visible definitions.

    Attributes:
        streams: Relation name to stream.
        used: Per stream the columns that were named so far; shared by all queries of a statement.
        definitions: Names that WITH clauses have defined, lower-case, with their columns.
        nested: Whether the queries may name columns of a query around them.
    """

    streams: Mapping[str, str]
    used: dict[str, set[str]]
    definitions: dict[str, _Columns]
    nested: bool

    def translate(self, tree: exp.Expr) -> tuple[str, _Columns]:
        """Return a query for DuckDB and its columns."""
        inner = _Query(self.streams, self.used, dict(self.definitions), self.nested)
        prefix = inner._define(tree.args.get("with_"))
        match tree:
            case exp.Select():
                sql, columns = _Select(inner).translate(tree)
            case exp.Union() | exp.Intersect() | exp.Except():
                sql, columns = inner._set_operation(tree)
            case exp.Subquery():
                only(tree, "this")
                sql, columns = inner.translate(tree.this)
                sql = f"({sql})"
            case _:
                raise NeedsSparkError(f"{tree.key.upper()} as a query")
        return prefix + sql, columns

    def _define(self, clause: exp.Expr | None) -> str:
        """Take the definitions of a WITH; return the clause for DuckDB, or nothing."""
        if clause is None:
            return ""
        only(clause, "expressions")
        parts = []
        for one in clause.expressions:
            only(one, "this", "alias")
            only(one.args["alias"], "this")
            sql, columns = self.translate(one.this)
            _refuse_doubles(columns)
            self.definitions[one.alias.lower()] = columns
            parts.append(f"{quoted(one.alias)} AS ({sql})")
        return f"WITH {', '.join(parts)} "

    def _set_operation(self, tree: exp.Expr) -> tuple[str, _Columns]:
        only(tree, "with_", "this", "expression", "distinct", "order", "limit")
        every = not tree.args.get("distinct")
        if every and not isinstance(tree, exp.Union):
            raise NeedsSparkError(f"{tree.key.upper()} ALL")
        left, columns = self.translate(tree.this)
        right, others = self.translate(tree.expression)
        if len(columns) != len(others):
            raise NeedsSparkError("two queries with different numbers of columns")
        kinds = [_common(one[1], other[1]) for one, other in zip(columns, others, strict=True)]
        found = [(name, kind) for (name, _), kind in zip(columns, kinds, strict=True)]
        word = tree.key.upper() + (" ALL" if every else "")
        sql = f"({left}) {word} ({right})"
        outputs = {name.lower(): Value(quoted(name), kind, name) for name, kind in found}
        if tree.args.get("order") or tree.args.get("limit"):
            _refuse_doubles(found)
            sql = f"SELECT * FROM ({sql})"  # noqa: S608  # of translated parts only
            sql += _ordering(tree, outputs, None, len(found)) + _limit(tree)
        return sql, found

    def relation(self, node: exp.Expr) -> tuple[str, _Relation]:
        """Translate one table of a FROM or JOIN."""
        if isinstance(node, exp.Subquery):
            only(node, "this", "alias")
            sql, columns = self.translate(node.this)
            alias = self._alias(node) or "__anonymous"
            _refuse_doubles(columns)
            return f"({sql}) AS {quoted(alias)}", _Relation(alias, columns)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise NeedsSparkError(f"{node.key.upper()} in FROM")
        only(node, "this", "alias", "joins")
        alias = self._alias(node) or node.name
        defined = self.definitions.get(node.name.lower())
        if defined is not None:
            return f"{quoted(node.name)} AS {quoted(alias)}", _Relation(alias, list(defined))
        stream = self.streams.get(node.name)
        if stream is None:
            raise NeedsSparkError(f"the table {node.name}")
        columns = list(STREAM_KINDS.items())
        return (
            # With its catalog, so that no WITH of the statement can define the name.
            f"temp.{table_name(self.used, stream)} AS {quoted(alias)}",
            _Relation(alias, columns, self.used[stream]),
        )

    @staticmethod
    def _alias(node: exp.Expr) -> str:
        alias = node.args.get("alias")
        if alias is not None:
            only(alias, "this")
        return str(node.alias)


@dataclass(slots=True)
class _Select:
    """Translates one SELECT. It is the ``Names`` (expressions.py) of its parts."""

    query: _Query
    relations: list[_Relation] = field(default_factory=list)
    outputs: dict[str, Value] = field(default_factory=dict)  # lower-case alias -> expression

    def translate(self, tree: exp.Select) -> tuple[str, _Columns]:
        only(
            tree, "with_", "expressions", "from_", "joins", "where", "group", "having", "order",
            "limit", "distinct",
        )  # fmt: skip
        source = self._source(tree)
        where = tree.args.get("where")
        filtered = f" WHERE {condition(where.this, self)}" if where else ""
        items = self._items(tree.expressions)
        distinct = tree.args.get("distinct")
        if distinct is not None:
            only(distinct)
        sql = (
            f"SELECT {'DISTINCT ' if distinct else ''}"
            + ", ".join(f"{value.sql} AS {quoted(name)}" for name, value in items)
            + source
            + filtered
            + self._grouping(tree.args.get("group"), items)
        )
        having = tree.args.get("having")
        if having is not None:
            sql += f" HAVING {condition(having.this, _WithOutputs(self, first=False))}"
        if distinct:
            _refuse_doubles([(name, value.kind) for name, value in items])
        scope = None if distinct else self
        outputs = {name.lower(): value for name, value in items}
        sql += _ordering(tree, outputs, scope, len(items)) + _limit(tree)
        return sql, [(name, value.kind) for name, value in items]

    # ── Names of expressions ────────────────────────────────────────────────────────────────────

    def column(self, name: str, relation: str | None) -> Value:
        """Resolve a column in FROM.

        Raises:
            NeedsSparkError: it may be a column of an outer query, or an alias of this one.
            InvalidRequestError: it does not exist.
        """
        found = self.find(name, relation)
        if found is not None:
            return found
        if relation is None and name.lower() in self.outputs:
            raise NeedsSparkError(f"the alias {name} beside its definition")
        known = [column for one in self.relations for column, _ in one.columns]
        if self.query.nested or relation is not None or not known:
            raise NeedsSparkError(f"the column {name}, which is not in FROM")
        raise InvalidRequestError(
            f"SQL: there is no column {name}; the columns are {', '.join(dict.fromkeys(known))}"
        )

    def find(self, name: str, relation: str | None) -> Value | None:
        """Return a column of FROM; None if there is none with that name."""
        found = []
        for one in self.relations:
            if relation is not None and one.alias.lower() != relation.lower():
                continue
            kind = one.find(name)
            if kind is not None:
                found.append(Value(f"{quoted(one.alias)}.{quoted(name)}", kind, name))
        if len(found) > 1:
            raise NeedsSparkError(f"the ambiguous column {name}")
        return found[0] if found else None

    def scalar(self, query: exp.Expr) -> Value:
        """Translate a query whose one value is an expression; it sees no column of this one."""
        sql, columns = self._inner().translate(query)
        if len(columns) != 1:
            raise NeedsSparkError("a query with several columns as a value")
        return Value(f"({sql})", columns[0][1])

    def rows(self, query: exp.Expr) -> tuple[str, Sequence[Kind]]:
        """Translate a query after IN or EXISTS; it sees no column of this one."""
        sql, columns = self._inner().translate(query)
        return sql, [kind for _, kind in columns]

    def _inner(self) -> _Query:
        return replace(self.query, nested=True)

    # ── Clauses ─────────────────────────────────────────────────────────────────────────────────

    def _source(self, tree: exp.Select) -> str:
        clause = tree.args.get("from_")
        if clause is None:
            return ""
        only(clause, "this")
        sql = f" FROM {self._add(clause.this)}"
        for join in [*tree.args.get("joins", ()), *(clause.this.args.get("joins") or ())]:
            sql += self._join(join)
        return sql

    def _join(self, join: exp.Expr) -> str:
        only(join, "this", "kind", "side", "on")
        kind, side = (join.args.get("kind") or "").upper(), (join.args.get("side") or "").upper()
        if kind not in ("", "INNER", "CROSS", "OUTER") or side not in ("", "LEFT", "RIGHT", "FULL"):
            raise NeedsSparkError(f"{side} {kind} JOIN".strip())
        table = self._add(join.this)
        on = join.args.get("on")
        if on is None:
            if side:
                raise NeedsSparkError(f"{side} JOIN without ON")
            return f" CROSS JOIN {table}"
        return f" {side or 'INNER'} JOIN {table} ON {condition(on, self)}"

    def _add(self, node: exp.Expr) -> str:
        sql, relation = self.query.relation(node)
        if any(one.alias.lower() == relation.alias.lower() for one in self.relations):
            raise NeedsSparkError(f"two tables with the name {relation.alias}")
        self.relations.append(relation)
        return sql

    def _items(self, nodes: Sequence[exp.Expr]) -> list[tuple[str, Value]]:
        items: list[tuple[str, Value]] = []
        for node in nodes:
            if isinstance(node, exp.Star):
                only(node)
                items += self._every(None)
                continue
            if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
                only(node, "this", "table")
                only(node.this)
                items += self._every(node.args["table"].name)
                continue
            if isinstance(node, exp.Alias):
                only(node, "this", "alias")
                name, value = node.alias, translate(node.this, self)
            else:
                value = translate(node, self)
                name = _name_of(node, value)
            items.append((name, value))
            self.outputs.setdefault(name.lower(), value)
        return items

    def _every(self, relation: str | None) -> list[tuple[str, Value]]:
        chosen = [
            one for one in self.relations if (relation or one.alias).lower() == one.alias.lower()
        ]
        if not chosen:
            raise NeedsSparkError(f"{relation or ''}.* without such a table")
        return [(name, self.column(name, one.alias)) for one in chosen for name, _ in one.columns]

    def _grouping(self, group: exp.Expr | None, items: list[tuple[str, Value]]) -> str:
        if group is None:
            return ""
        only(group, "expressions")
        names = _WithOutputs(self, first=False)
        parts = []
        for node in group.expressions:
            if isinstance(node, exp.Literal) and not node.is_string:
                parts.append(items[_place(node, len(items))][1].sql)
            else:
                parts.append(translate(node, names).sql)
        return f" GROUP BY {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class _WithOutputs:
    """The names of a SELECT and its output columns; with ``first`` an output column wins."""

    select: _Select
    first: bool

    def column(self, name: str, relation: str | None) -> Value:
        output = self.select.outputs.get(name.lower()) if relation is None else None
        if output is None:
            return self.select.column(name, relation)
        if self.first:
            return output
        return self.select.find(name, relation) or output

    def scalar(self, query: exp.Expr) -> Value:
        return self.select.scalar(query)

    def rows(self, query: exp.Expr) -> tuple[str, Sequence[Kind]]:
        return self.select.rows(query)


@dataclass(frozen=True, slots=True)
class _OutputsOnly:
    """The names after DISTINCT and set operations: output columns and nothing else."""

    outputs: Mapping[str, Value]

    def column(self, name: str, relation: str | None) -> Value:
        if relation is not None or name.lower() not in self.outputs:
            raise NeedsSparkError(f"ORDER BY {name}, which is not in the result")
        return Value(quoted(name), self.outputs[name.lower()].kind, name)

    def scalar(self, query: exp.Expr) -> Value:
        raise NeedsSparkError(f"{query.key.upper()} in ORDER BY")

    def rows(self, query: exp.Expr) -> tuple[str, Sequence[Kind]]:
        raise NeedsSparkError(f"{query.key.upper()} in ORDER BY")


def _name_of(node: exp.Expr, value: Value) -> str:
    """Return the name that Spark gives an output column without an alias."""
    if isinstance(node, exp.TryCast) and isinstance(node.this, exp.Column):
        return str(node.this.name)  # a cast of a column alone keeps the column's name
    if value.name is None:
        raise NeedsSparkError("a column without a name (give it one with AS)")
    return value.name


def _ordering(
    tree: exp.Expr, outputs: Mapping[str, Value], scope: _Select | None, width: int
) -> str:
    """Translate ORDER BY. Spark has nulls first when ascending and last when descending."""
    order = tree.args.get("order")
    if order is None:
        return ""
    only(order, "expressions")
    parts = []
    for one in order.expressions:
        only(one, "this", "desc", "nulls_first")
        if isinstance(one.this, exp.Literal) and not one.this.is_string:
            sql = str(_place(one.this, width) + 1)
        else:
            names = _OutputsOnly(outputs) if scope is None else _WithOutputs(scope, first=True)
            value = translate(one.this, names)
            if value.kind is Kind.HEADERS or value.text is not None:
                raise NeedsSparkError("ORDER BY of headers or of a text")
            sql = value.sql
        parts.append(
            f"{sql} {'DESC' if one.args.get('desc') else 'ASC'} "
            f"NULLS {'FIRST' if one.args.get('nulls_first') else 'LAST'}"
        )
    return f" ORDER BY {', '.join(parts)}"


def _limit(tree: exp.Expr) -> str:
    limit = tree.args.get("limit")
    if limit is None:
        return ""
    only(limit, "expression")
    count = limit.expression
    if not isinstance(count, exp.Literal) or not count.name.isdecimal() or len(count.name) > 9:
        raise NeedsSparkError("LIMIT with more than a number")
    return f" LIMIT {count.name}"


def _place(node: exp.Expr, width: int) -> int:
    """Return the index of the output column that a number in GROUP BY or ORDER BY means."""
    if not node.name.isdecimal() or not 1 <= int(node.name) <= width:
        raise InvalidRequestError(
            f"SQL: {node.name} in GROUP BY or ORDER BY is not a column of the result, which has "
            f"{width}"
        )
    return int(node.name) - 1


def _common(left: Kind, right: Kind) -> Kind:
    if left is right:
        return left
    if {left, right} == {Kind.INT, Kind.BIGINT}:
        return Kind.BIGINT
    raise NeedsSparkError("two queries with columns of different types")


def _refuse_doubles(columns: _Columns) -> None:
    """Refuse two columns of one name where a name has to mean one column."""
    names = [name.lower() for name, _ in columns]
    if len(set(names)) != len(names):
        raise NeedsSparkError("two columns with the same name in an inner query")
