"""`headwater query` answers exactly in its own process, or says why it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import GapError
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.local.embedded import moto_environment
from headwater.local_sql.duckdb_engine import EngineRefusedError, RowSource, run
from headwater.local_sql.expressions import NeedsSparkError
from headwater.local_sql.local import answer
from headwater.local_sql.parsing import parse_statement
from headwater.local_sql.translation import table_name, translate_statement
from simkit.brokers.memory_broker import numbered
from simkit.servers.motoproc import fresh, moto_location
from simkit.servers.s3_proxy import s3_proxy
from simkit.tier.lake_broker import Served, serving

pytestmark = pytest.mark.integration

# Each takes 20 to 150 ms of the time that a person waits for an answer.
_SLOW_TO_IMPORT = {
    "asyncio",
    "boto3",
    "botocore",
    "headwater.client.group.events",
    "headwater.client.producer",
    "pandas.core.frame",
    "pyarrow.compute",
    "pyarrow._dataset",
    "pydantic",
    "pyspark",
}
_SCHEMA = pa.schema([("offset", pa.int64())])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A stream ``orders`` with 30 records, 20 of them in the table."""
    with serving(str(tmp_path / "lake")) as found, Client(found.server) as client:
        client.create_stream("orders")
        with client.producer("orders") as producer:
            producer.send(numbered(0, 30))
        found.broker.ship("orders", 0, Offset(20))
        yield found


def _query(served: Served, sql: str, *options: str, **environment: str) -> Any:
    """Run the command where no Java can be found, so that Spark cannot have answered."""
    return subprocess.run(
        [sys.executable, "-m", "headwater", "query", sql, "--server", served.server, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "JAVA_HOME": "/nonexistent", "PATH": "/nonexistent", **environment},
    )


def _require_quick(import_times: str, loaded: set[str]) -> None:
    modules = {line.rpartition("|")[2].strip() for line in import_times.splitlines()}
    assert loaded <= modules
    assert sorted(_SLOW_TO_IMPORT & modules) == []


def test_a_statement_is_answered_without_java_and_certified(served: Served) -> None:
    """Both tiers are counted; the certificate is printed as by `headwater read`."""
    done = _query(served, "select count(*) n, max(offset) last from orders")

    assert json.loads(done.stdout) == {"n": 30, "last": 29}, done.stderr
    assert "Exact: 30 records, each once, of orders" in done.stderr
    assert "20 cold + 10 hot" in done.stderr
    assert done.returncode == 0


def test_an_answer_loads_neither_pandas_nor_spark(served: Served) -> None:
    """Most of the time of a query is imports; pandas, which pyarrow looks for, took a third."""
    done = _query(served, "select count(*) n from orders", PYTHONPROFILEIMPORTTIME="1")

    assert json.loads(done.stdout) == {"n": 30}, done.stderr
    _require_quick(done.stderr, {"pyarrow", "duckdb"})


def test_a_query_asks_s3_for_each_object_once(tmp_path: Path) -> None:
    """Three listings, and one request for each commit and each file; boto3 is not loaded."""
    commits, files = 7, 6
    with (
        moto_location(tmp_path) as moto,
        s3_proxy(str(moto.endpoint)) as proxy,
        serving(fresh(moto)) as found,
        Client(found.server) as client,
    ):
        client.create_stream("orders")
        with client.producer("orders") as producer:
            producer.send(numbered(0, 30))
        for number in range(files):
            found.broker.ship("orders", 0, Offset(4 * number + 4))
        environment = moto_environment(proxy.address) | {"PYTHONPROFILEIMPORTTIME": "1"}
        done = _query(found, "select count(*) n from orders", **environment)
        asked = {method: proxy.count(method) for method in ("GET", "HEAD", "PUT", "POST")}

    assert json.loads(done.stdout) == {"n": 30}, done.stderr
    assert f"{files} files" in done.stderr
    assert "24 cold + 6 hot" in done.stderr
    assert asked == {"GET": 3 + commits + files, "HEAD": 0, "PUT": 0, "POST": 0}
    _require_quick(done.stderr, {"obstore"})


def test_wrong_statements_are_told_before_spark_is_started(served: Served) -> None:
    """An unknown stream, an unknown column and an error of syntax each end with exit code 2."""
    for sql, words in (
        ("selec * from orders", "syntax error at line 1"),
        ("select * from ordres", "ordres is neither a stream nor a table"),
        ("select ofset from orders", "there is no column ofset"),
    ):
        done = _query(served, sql)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert words in done.stderr
        assert "Spark" not in done.stderr


def test_the_local_engine_says_what_only_spark_answers(served: Served) -> None:
    """No row is shown before the whole answer is known."""
    for sql, words in (
        ("select rand() r from orders", "only Spark answers this statement: RAND"),
        ("select 10 / (offset - 29) r from orders", "division by zero"),
    ):
        for form in ("json", "csv", "table"):
            done = _query(served, sql, "--engine", "local", "--format", form)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert words in done.stderr


def test_more_records_than_the_limit_are_sparks(served: Served) -> None:
    """The error has the size, and `headwater query --help` names the limit."""
    statement = parse_statement("select count(*) from orders")
    with (
        Client(served.server) as client,
        pytest.raises(NeedsSparkError, match="30 records"),
        answer(statement, client, records_max=29),
    ):
        raise AssertionError("Spark has to answer")
    with Client(served.server) as client, answer(statement, client, records_max=30) as found:
        assert list(found.rows()) == [(30,)]
    shown = subprocess.run(
        [sys.executable, "-m", "headwater", "query", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "10,000,000" in shown.stdout


def test_times_have_their_zone(served: Served) -> None:
    """The zone of the machine does not change what is printed."""
    done = _query(served, "select timestamp t from orders limit 1", TZ="Asia/Tokyo")

    assert json.loads(done.stdout)["t"].endswith("+00:00"), done.stderr


@pytest.mark.parametrize(
    "body",
    [
        *('{"n": -0}', '{"n": 1.5}', '{"n": 1e3}', '{"n": 18446744073709551616}', '{"n": inf}'),
        *('{"n": -Infinity}', '{"n": NaN}', '{"n": {}}', '{"n": [1]}'),
        *('{"n": 1} 2', '{"a": 1, "n"}', ""),
    ],
)
def test_json_that_spark_may_word_otherwise_is_sparks(body: str) -> None:
    """Also when what is wrong stands behind the value that is asked for."""
    sql = "select get_json_object(cast(value as string), '$.n') n from s"
    query = translate_statement(parse_statement(sql), {"s": "s"})
    schema = pa.schema([("value", pa.binary())])

    def values(*bodies: str | None) -> list[tuple[Any, ...]]:
        rows = pa.record_batch([pa.array([one and one.encode() for one in bodies], pa.binary())],
                               schema=schema)  # fmt: skip
        return list(
            run(query.sql, 1, {table_name(["s"], "s"): RowSource(schema, lambda: iter([rows]))})
        )

    known = ['{"n": "é"}', '{"n": 0}', '{"n": true}', '{"n": null}', "{}", "[1]", None]
    assert values(*known) == [("é",), ("0",), ("true",), (None,), (None,), (None,), (None,)]
    texts = ["", "-0", "1.5", "12", "2013-01-01", "NaN", "Infinity", "[", "{}", "9" * 20, "1\n"]
    shown = values('{"n": 9999999999999999999}', *(json.dumps({"n": text}) for text in texts))
    assert shown == [("9999999999999999999",), *((text,) for text in texts)]
    with pytest.raises(EngineRefusedError):
        values(*known, body)


def test_a_read_that_cannot_be_exact_ends_the_query_with_its_own_error() -> None:
    """DuckDB keeps only the text of the error; the command raises the read's own error."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1])], schema=_SCHEMA)
        raise GapError("records [1, 3) are missing", partition=0, start=1, end=3)

    with pytest.raises(GapError, match="are missing"):
        list(run("SELECT count(*) FROM s", 1, {"s": RowSource(_SCHEMA, batches)}))


def test_a_stream_that_is_named_twice_is_read_twice() -> None:
    """A stream of Arrow batches can be read once; a join of it with itself has to see all rows."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1, 2, 3])], schema=_SCHEMA)

    sql = 'SELECT count(*), sum(a."offset") FROM s a, s b, (SELECT max("offset") m FROM s) c'
    assert list(run(sql, 2, {"s": RowSource(_SCHEMA, batches)})) == [(9, 18)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/*')",
        "SELECT getenv('HOME')",
        "SELECT * FROM _SCHEMA",
    ],
)
def test_the_engine_reaches_nothing_but_its_tables(sql: str) -> None:
    """No file, no variable of the environment, no object of this program."""
    with pytest.raises(EngineRefusedError):
        list(run(sql, 1, {}))
