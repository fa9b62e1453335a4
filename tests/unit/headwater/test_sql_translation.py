"""Statements answered without Spark: only those whose result is known to be equal."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

from broker.errors import InvalidRequestError
from headwater.local_sql.duckdb_engine import RowSource, run
from headwater.local_sql.expressions import NeedsSparkError
from headwater.local_sql.functions import _occurs_twice
from headwater.local_sql.parsing import parse_statement
from headwater.local_sql.translation import Translated, table_name, translate_statement


def _translated(text: str) -> Translated:
    statement = parse_statement(text)
    return translate_statement(statement, {name: name for name in statement.relations})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("show tables", "not a query"),
        ("select offset / 1.5 x from s", "decimal number 1.5"),
        ("select value = 'x' y from s", "comparison of binary and string"),
        ("select try_cast(subject as int) y from s", "TRYCAST with safe"),
        ("select cast(timestamp as string) y from s", "CAST of timestamp to string"),
        ("select from_json(cast(value as string), 'a int') y from s", "FROMJSON"),
        ("select row_number() over (order by offset) y from s", "WINDOW"),
        ("select approx_count_distinct(key) y from s", "APPROXDISTINCT"),
        ("select count(distinct key, subject) y from s", "several columns"),
        ("select subject like '50\\\\%' y from s", "LIKE with a pattern"),
        ("select subject like key y from s", "LIKE with a pattern"),
        ("select * from s tablesample (5 rows)", "TABLE with sample"),
        ("select * from s join t using (key)", "using"),
        ("select * from lake.s", "TABLE with db"),
        ("select * from s lateral view explode(headers) h as a", "laterals"),
        ("select headers.key from s", "the column key"),
        ("select offset + 1 as a, a + 1 as b from s", "the alias a beside its definition"),
        ("select subject || 'x' from s", "a column without a name"),
        ("select offset from s join t on s.offset = t.offset", "ambiguous column offset"),
        ("select (select max(t.offset) from t where t.key = s.key) m from s", "the column key"),
        ("select offset from s order by offset limit 3 offset 2", "offset"),
        ("select rand() r from s", "RAND"),
        ("select current_timestamp() r from s", "CURRENTTIMESTAMP"),
        ("select get_json_object(cast(value as string), '$.a[0]') r from s", "names in its path"),
        ("select null as n from s", "NULL"),
        ("select * from range(10)", "in FROM"),
        ("select key from s union select subject from s", "columns of different types"),
        ("select offset from s except all select offset from s", "EXCEPT ALL"),
        ("select /*+ REPARTITION(3) */ offset from s", "hint"),
        ("select 'a\\0b' x from s", "zero character"),
    ],
)
def test_what_may_differ_is_left_to_spark(text: str, reason: str) -> None:
    """The reason names the part of the statement."""
    with pytest.raises(NeedsSparkError, match=reason):
        _translated(text)


def test_a_wrong_column_is_told_at_once() -> None:
    """The message lists the columns that there are."""
    with pytest.raises(
        InvalidRequestError, match="no column ofset; the columns are partition, off"
    ):
        _translated("select ofset from s")
    with pytest.raises(InvalidRequestError, match="3 in GROUP BY or ORDER BY is not a column"):
        _translated("select offset from s order by 3")


def test_only_the_columns_that_are_named_are_read() -> None:
    """A count reads the offsets; a nested query reads only the columns that it needs."""
    assert _translated("select count(*) from s").streams == {"s": ("offset",)}
    assert _translated(
        "select a.k, b.subject from (select key k, offset o from s) a join t b on a.o = b.offset"
    ).streams == {"s": ("offset", "key"), "t": ("offset", "subject")}
    assert len(_translated("select * from s").streams["s"]) == 10


def test_names_cannot_leave_their_quotes() -> None:
    """A quote in an alias or a text stays a part of it."""
    found = _translated("""select offset as `a"b`, 'it\\'s; drop' as t from s""")

    assert found.columns[0][0] == 'a"b'
    assert '"a""b"' in found.sql
    assert "'it''s; drop'" in found.sql


@pytest.mark.parametrize(
    "text",
    [
        "select 'it''s' x from s",
        'select "a""b" x from s',
        "select '''' x from s",
        "select 'a' 'b' x from s",
        "select subject || 'it''s' x from s",
        "select concat(subject, 'it''s') x from s",
        "select offset from s where subject = 'it''s'",
        "select offset from s where subject in ('a', 'it''s')",
        "select offset from s where subject like 'it''s%'",
        "select case when offset = 1 then 'it''s' else 'b' end x from s",
        "select offset from s where if(offset = 1, 'it''s', 'b') = 'b'",
        "select get_json_object(cast(value as string), '$.it''s') x from s",
        "select date_trunc('ho''ur', timestamp) x from s",
        "select offset from s where timestamp >= '2023-11-14''T00:00:00Z'",
        "select cast('20''26' as int) x from s",
        "select length('it''s') x from s",
        "select offset from s order by 'it''s'",
        "select offset from s group by offset having max(subject) = 'it''s'",
        "select offset from s limit '1''0'",
    ],
)
def test_two_quotes_in_a_text_are_left_to_spark(text: str) -> None:
    """For Spark they are one quote; the parser gives two texts, as for texts side by side."""
    with pytest.raises(NeedsSparkError):
        _translated(text)


def test_texts_that_are_joined_to_a_column_are_joined_here() -> None:
    """Only what may be one text with a quote in it goes to Spark."""
    assert "|| 'b'" in _translated("select subject || 'a' || 'b' x from s").sql
    assert "|| 'b'" in _translated("select concat('a', subject, 'b') x from s").sql
    assert "'it''''s'" in _translated("select \"it''s\" x from s").sql


def test_not_like_is_not_like() -> None:
    """The NOT is a part of the node of LIKE; no rule may overlook a part of its node."""
    assert "NOT LIKE" in _translated("select subject from s where subject not like 'a%'").sql
    statement = parse_statement("select offset + 1 as n from s")
    next(iter(statement.tree.find_all(exp.Add))).set("negate", True)
    with pytest.raises(NeedsSparkError, match="ADD with negate"):
        translate_statement(statement, {"s": "s"})


def test_the_column_offset_is_no_clause() -> None:
    """GROUP BY offset was refused as an error of syntax."""
    for text in (
        "select offset, count(*) n from s group by offset",
        "select offset, count(*) n from s group by offset order by offset limit 3",
        "select partition, offset from s group by partition, offset having count(*) > 1",
    ):
        assert parse_statement(text).text == text
        assert "offset" in dict(_translated(text).columns)
    with pytest.raises(InvalidRequestError, match="syntax error"):
        parse_statement("select offset from s group offset")


@pytest.mark.parametrize(
    ("text", "left_to_spark"),
    [('{"a":null,"\\u0061":5}', True), ('{"a":null,"a":5}', True), ('{"a":null}', False)],
)
def test_a_name_with_an_escape_may_be_there_twice(text: str, left_to_spark: bool) -> None:
    """Only names that are spelled in one way can be counted in a text."""
    query = f"select {_occurs_twice('t', 'a')} from (select $1 as t)"
    assert duckdb.execute(query, [text]).fetchall() == [(left_to_spark,)]


def _answered(text: str, offsets: dict[str, list[int]]) -> list[tuple[object, ...]]:
    """Return the answer to a statement over streams with these offsets."""
    query = _translated(text)

    def source(stream: str) -> RowSource:
        rows = pa.record_batch({"offset": pa.array(offsets[stream], pa.int64())})
        return RowSource(rows.schema, lambda: iter([rows]))

    tables = {table_name(query.streams, stream): source(stream) for stream in query.streams}
    return list(run(query.sql, len(query.columns), tables))


def test_streams_whose_names_differ_by_case_are_two_tables() -> None:
    """DuckDB does not tell the names apart, so one of the streams was counted twice."""
    text = "select (select count(*) from orders) a, (select count(*) from Orders) b"
    assert _answered(text, {"orders": [1, 2, 3], "Orders": [1]}) == [(3, 1)]


def test_a_name_that_a_statement_defines_hides_no_stream() -> None:
    """What DuckDB calls the table of a stream is not a name that a statement can define."""
    table = table_name(["orders"], "orders")
    text = f"with {table} as (select max(offset) m from orders) select m from {table}"
    assert _answered(text, {"orders": [1, 2, 3]}) == [(3,)]
    both = f"with {table} as (select 7 as m) select count(*) n from orders cross join {table}"
    assert _answered(both, {"orders": [1, 2, 3]}) == [(3,)]
