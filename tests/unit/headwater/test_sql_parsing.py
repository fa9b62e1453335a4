"""Statements are read before Spark starts: their syntax, and the streams that they name."""

from __future__ import annotations

import re

import pytest

from broker.errors import InvalidRequestError
from headwater.local_sql.parsing import parse_statement, refuse_change
from headwater.local_sql.spark_functions import refuse_unknown_functions


@pytest.mark.parametrize(
    ("text", "relations"),
    [
        ("select count(*) from orders", ("orders",)),
        ("select 'from nowhere', x.k from `b-c` x join y on x.k = y.k;", ("b-c", "y")),
        ("with orders as (select * from orders) select * from orders", ("orders",)),
        ("with a as (select * from x), b as (select * from a) select * from b", ("x",)),
        ("with b as (select * from a), a as (select 1) select * from b", ("a",)),
        ("with recursive r as (select 1 union all select * from r) select * from r", ()),
        ("select (with z as (select 1) select * from z), * from z", ("z",)),
        ("select * from lake.orders", ()),
        ("select * from values (1), (2) as t(a)", ()),
        ("insert into x select * from y", ("x", "y")),
        ("show tables", ()),
        ("table orders", ()),
        ("reset", ()),
        ("clear cache", ()),
    ],
)
def test_names_that_a_statement_reads_and_does_not_define(
    text: str, relations: tuple[str, ...]
) -> None:
    """A WITH defines names for what comes after it; texts and catalogs' tables are no streams."""
    assert sorted(parse_statement(text).relations) == sorted(relations)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("selec count(*) from orders", "syntax error at line 1, column"),
        ("-- all\nselec", "syntax error at line 2, column"),
        ("orders o", "begins with a word such as SELECT"),
        ("1 + 1", "begins with a word such as SELECT"),
        ("select *\nfrom from", "syntax error at line 2"),
        ("select 'open from orders", "SQL: "),
        ("select 1; select 2", "one SQL statement, not 2"),
        ("  ", "one SQL statement, not 0"),
        ("select " + "(" * 5000 + "1" + ")" * 5000, "nested too deeply"),
        ("x" * (1024 * 1024 + 1), "1,048,576 is the maximum"),
    ],
)
def test_a_statement_that_cannot_be_read_is_told_with_its_place(text: str, words: str) -> None:
    """The message names line and column, and no class of the parser."""
    with pytest.raises(InvalidRequestError) as told:
        parse_statement(text)

    assert words in str(told.value)
    assert "sqlglot" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("select cuont(*) from pay", "no function 'cuont'; did you mean 'count'?"),
        ("select * from (select zqx(value) from pay)", "no function 'zqx'"),
        ("select * from expload(array(1))", "no function 'expload'; did you mean 'explode'?"),
    ],
)
def test_a_function_that_spark_lacks_is_told_before_spark_starts(text: str, words: str) -> None:
    """Spark would say so after 16 s."""
    with pytest.raises(InvalidRequestError, match=re.escape(words)):
        refuse_unknown_functions(parse_statement(text).tree)


@pytest.mark.parametrize(
    "text",
    [
        "select my.db.f(value) from pay",
        "select transform(array(1), x -> x + 1), parse_json(value) from pay",
        "select int(1), string(1), timestampadd(DAY, 1, timestamp), left('a', 1) from pay",
        "select * from explode(array(1)) join range(3) join identifier('pay')",
    ],
)
def test_functions_that_spark_or_a_catalog_has_are_left_alone(text: str) -> None:
    """Scalar, higher-order and table functions, casts that look like calls, forms of the syntax."""
    refuse_unknown_functions(parse_statement(text).tree)


def test_only_statements_that_return_rows_are_queries() -> None:
    """SHOW, INSERT and CREATE are Spark's."""
    kinds = {
        text: parse_statement(text).is_query
        for text in ("select 1", "with a as (select 1) select * from a", "show tables", "cache x")
    }

    assert list(kinds.values()) == [True, True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "drop table orders",
        "insert into orders select * from other",
        "delete from orders where offset < 3",
        "update orders set value = null",
        "truncate table orders",
    ],
)
def test_a_statement_that_would_change_a_stream_is_refused_here(text: str) -> None:
    """Spark would refuse it, too, but seconds later and with an error about its catalog."""
    with pytest.raises(InvalidRequestError, match="cannot change a stream, and 'orders'"):
        refuse_change(parse_statement(text))


def test_a_statement_about_other_tables_is_for_spark() -> None:
    """A name with dots, or a path, is not a stream."""
    for text in ("drop table a.b", "insert into delta.`/t` select 1", "select 1", "create table x"):
        refuse_change(parse_statement(text))
