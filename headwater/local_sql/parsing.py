"""Reads a statement of Spark SQL before anything is started: its syntax, and the names it reads.

sqlglot parses the statement in Spark's dialect. A statement that sqlglot refuses and Spark would
accept is possible; the caller can ask for Spark by name, which skips this reading.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from sqlglot import ErrorLevel, TokenType, exp, parse, tokenize
from sqlglot.errors import ParseError, TokenError

from broker.errors import InvalidRequestError

_STATEMENT_MAX: Final = 1024 * 1024  # characters
_CHANGES: Final = (
    exp.Alter, exp.Delete, exp.Drop, exp.Insert, exp.Merge, exp.TruncateTable, exp.Update,
)  # fmt: skip

# Statements of Spark that sqlglot takes for an expression, by their first word.
_LOOKS_LIKE_EXPRESSION: Final = frozenset({"clear", "dfs", "list", "reset", "table"})

# sqlglot warns about statements that it keeps as text, such as SHOW; Spark runs these.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Statement:
    """One parsed statement.

    Attributes:
        text: The statement as it was given, without a semicolon at the end.
        tree: sqlglot's tree.
        relations: The one-part names of tables that the statement reads and does not define, in
            the order of their first use. Names with a dot are tables of a catalog, not streams.
        is_query: Whether the statement returns rows and changes nothing: SELECT, WITH, VALUES.
    """

    text: str
    tree: exp.Expr
    relations: tuple[str, ...]
    is_query: bool


def parse_statement(text: str) -> Statement:
    """Parse one statement of Spark SQL. Pure.

    Raises:
        InvalidRequestError: the text is empty, too long, more than one statement, or has an error
            of syntax; the message says where.
    """
    if len(text) > _STATEMENT_MAX:
        raise InvalidRequestError(
            f"the statement has {len(text):,} characters; {_STATEMENT_MAX:,} is the maximum"
        )
    try:
        found = [tree for tree in _trees(text) if tree]
    except ParseError as error:
        raise InvalidRequestError(f"SQL: {_where(error)}") from error
    except TokenError as error:
        raise InvalidRequestError(f"SQL: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise InvalidRequestError("SQL: the statement is nested too deeply") from error
    if len(found) != 1:
        raise InvalidRequestError(f"give one SQL statement, not {len(found)}")
    tree = found[0]
    assert isinstance(tree, exp.Expr), "sqlglot returns trees"
    _refuse_expression(tree, text)
    return Statement(
        text=text.strip().rstrip(";"),
        tree=tree,
        relations=tuple(_relations(tree)),
        is_query=isinstance(tree, exp.Query),
    )


def _trees(text: str) -> list[exp.Expr | None]:
    try:
        return list(parse(text, read="spark", error_level=ErrorLevel.RAISE))
    except ParseError:
        # The column `offset` may have been taken for the clause OFFSET, as in GROUP BY offset.
        again = _offset_as_column(text)
        if again == text:
            raise
        with suppress(ParseError):
            return list(parse(again, read="spark", error_level=ErrorLevel.RAISE))
        raise


def _refuse_expression(tree: exp.Expr, text: str) -> None:
    """Raise InvalidRequestError for an expression in place of a statement, as of ``selec``."""
    first = tokenize(text, read="spark")[0]
    is_expression = isinstance(tree, exp.Condition | exp.Alias)
    if is_expression and first.text.lower() not in _LOOKS_LIKE_EXPRESSION:
        raise InvalidRequestError(
            f"SQL: syntax error at line {first.line}, column {first.col}, near {first.text!r}: a "
            "statement begins with a word such as SELECT, WITH or SHOW"
        )


def _offset_as_column(text: str) -> str:
    """Put each word ``offset`` without a number behind it into backticks."""
    tokens = tokenize(text, read="spark")
    for token, behind in reversed(list(zip_longest(tokens, tokens[1:]))):
        number = behind is not None and behind.token_type is TokenType.NUMBER
        if token.token_type is TokenType.OFFSET and not number:
            text = f"{text[: token.start]}`offset`{text[token.end + 1 :]}"
    return text


def refuse_change(statement: Statement) -> None:
    """Raise InvalidRequestError for a statement that would change what a one-part name means."""
    if isinstance(statement.tree, _CHANGES) and statement.relations:
        raise InvalidRequestError(
            f"SQL: a statement cannot change a stream, and {statement.relations[0]!r} is read as a "
            "stream's name: `headwater publish` adds records, `headwater stream` purges and deletes"
        )


def _where(error: ParseError) -> str:
    """Return the place of the first error in one line, without sqlglot's internal terms."""
    first = error.errors[0] if error.errors else {}
    line, column = first.get("line"), first.get("col")
    near = str(first.get("highlight") or "").strip()
    place = "" if line is None else f" at line {line}, column {column}"
    return f"syntax error{place}" + (f", near {near!r}" if near else "")


def _relations(tree: exp.Expr) -> dict[str, None]:
    """Return the names of tables that no WITH around them defines."""
    found: dict[str, None] = {}
    for table in tree.find_all(exp.Table):
        plain = isinstance(table.this, exp.Identifier) and not table.args.get("db")
        if plain and not _is_defined(table):
            found.setdefault(table.name)
    return found


def _is_defined(table: exp.Table) -> bool:
    """Return whether a WITH in scope defines the table's name. A definition sees earlier ones."""
    name = table.name.lower()
    node: exp.Expr = table
    while node.parent is not None:
        parent = node.parent
        if isinstance(parent, exp.With):  # the node is a definition
            place = parent.expressions.index(node)
            visible = parent.expressions[: place + 1 if parent.args.get("recursive") else place]
            node = parent.parent or parent
        else:
            clause = parent.args.get("with_")
            visible = clause.expressions if isinstance(clause, exp.With) else []
            node = parent
        if any(one.alias.lower() == name for one in visible):
            return True
    return False
