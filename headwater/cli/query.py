"""``headwater query``: Spark SQL over streams, answered in this process or by Spark."""

from __future__ import annotations

import base64
import csv
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from broker.errors import HeadwaterError, InvalidRequestError
from broker.process.quick_imports import quick_imports
from headwater.cli import console
from headwater.cli.certificates import print_certificate
from headwater.cli.discovery import connect, find_server, use_lake_of
from headwater.cli.interrupts import ends_in_one_line
from headwater.cli.options import ServerOption

if TYPE_CHECKING:
    from headwater.client import Client

_TABLE_ROWS: Final = 100
# Engine -> how many records this process reads at most; None: no limit.
_RECORDS_MAX: Final[dict[str, int | None]] = {"auto": 10_000_000, "local": None}
_ENGINES: Final = ("auto", "local", "spark")
_T = TypeVar("_T")


def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One statement, or @FILE; - reads stdin.")
    ],
    *,
    format: Annotated[  # noqa: A002  # the option's name
        str | None,
        typer.Option(
            "--format",
            help="table, json (one object per line) or csv. Default: table on a terminal, json "
            "in a pipe.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="local: here, without Spark. spark: always Spark. auto: here, if the statement's "
            "answer is known to equal Spark's and it reads up to 10,000,000 records; else Spark."
        ),
    ] = "auto",
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    server: ServerOption = None,
) -> None:
    """Run a Spark SQL statement over streams, up to the last committed record.

    Columns: partition, offset, timestamp, key, value, headers, subject, leader_epoch,
    reply_subject, correlation_id. Keys and values are binary: CAST(value AS STRING).

    [bold]Examples[/bold]

      headwater query 'select count(*) from orders'
      headwater query 'select cast(key as string) k, count(*) n from orders group by k'
      headwater query "select get_json_object(cast(value as string), '$.dest') d from flights"
      headwater query @report.sql --format csv > report.csv
    """
    form = format or ("table" if console.is_terminal() else "json")
    if form not in ("table", "json", "csv"):
        raise typer.BadParameter("choose table, json or csv", param_hint="--format")
    if engine not in _ENGINES:
        raise typer.BadParameter(f"choose {', '.join(_ENGINES)}", param_hint="--engine")
    statement = _statement(sql)
    target = find_server(server)
    use_lake_of(target)
    with connect(target) as client:
        if engine == "spark" or not _answered_here(statement, client, form, engine):
            _answer_by_spark(statement, client, form, master)


def _answered_here(statement: str, client: Client, form: str, engine: str) -> bool:
    """Answer in this process; return False, with a remark that says why, if Spark has to.

    Raises:
        InvalidRequestError: the statement is wrong; or only Spark answers it, and Spark is not
            wanted.
    """
    try:
        with quick_imports():
            from headwater.local_sql.expressions import NeedsSparkError
            from headwater.local_sql.local import answer
            from headwater.local_sql.parsing import parse_statement, refuse_change
            from headwater.local_sql.spark_functions import refuse_unknown_functions

            parsed = parse_statement(statement)  # which loads the dialect
    except ModuleNotFoundError as error:
        if engine == "local" or error.name not in ("duckdb", "sqlglot"):
            raise
        return False
    refuse_change(parsed)
    refuse_unknown_functions(parsed.tree)
    _keep_pandas_out()
    try:
        with console.working("reading and computing"), ExitStack() as stack:
            with quick_imports():
                limit = _RECORDS_MAX[engine]
                found = stack.enter_context(answer(parsed, client, records_max=limit))
                rows = found.rows()
                # Write nothing before it is certain that Spark is not needed.
                first = next(rows, None)
            _write(form, list(found.columns), chain([] if first is None else [first], rows))
            proofs = found.proofs()
            for certificate, cut in proofs:
                print_certificate(certificate, cut)
            if not proofs:
                console.note("The answer needed no record of a stream: there is no certificate.")
    except NeedsSparkError as reason:
        if engine == "local":
            raise InvalidRequestError(
                f"only Spark answers this statement: {reason}; leave out --engine local"
            ) from reason
        console.note(f"Spark runs the statement: {console.plain(str(reason))}.")
        return False
    return True


def _keep_pandas_out() -> None:
    """Save the import of pandas, a third of the whole command: nothing here converts to it."""
    from broker.process.arrow_without_pandas import keep_pandas_out

    keep_pandas_out()


def _answer_by_spark(statement: str, client: Client, form: str, master: str) -> None:
    import headwater
    from spark_jobs.read.sql import sql as run

    client.streams()  # fails at once without a server; the start of Spark takes seconds
    with (
        tempfile.TemporaryDirectory() as scratch,
        ends_in_one_line(partial(rmtree, scratch, ignore_errors=True)),
        console.working("Spark starts, and works on the statement"),
    ):
        conf = {"spark.sql.warehouse.dir": scratch}  # else Spark makes one in the current folder
        spark = headwater.session("headwater-query", master, conf=conf)
        try:
            result = _translated(lambda: run(spark, statement, server=client))
            rows = _translated(lambda: result.toLocalIterator(prefetchPartitions=True))
            _write(form, list(result.columns), _rows(rows))
        finally:
            headwater.release_all()
            spark.stop()


def _statement(sql: str) -> str:
    if sql == "-":
        return sys.stdin.read()
    return Path(sql[1:]).read_text(encoding="utf-8") if sql.startswith("@") else sql


def _rows(rows: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    while True:
        row = _translated(lambda: next(rows, None))
        if row is None:
            return
        yield tuple(row)


def _translated(work: Callable[[], _T]) -> _T:
    """Call a function that runs Spark, and turn Spark's errors into HeadwaterErrors.

    Raises:
        HeadwaterError: our own error, which Spark had wrapped; or InvalidRequestError with Spark's
            message, for a statement that Spark cannot run.
    """
    from spark_jobs.failures import typed

    try:
        return work()
    except HeadwaterError:
        raise
    except Exception as error:
        ours = typed(error)
        if ours is not None:
            raise ours from error
        if not type(error).__module__.startswith("pyspark.errors"):
            raise
        text = str(error).partition("\n\nJVM stacktrace")[0].strip()
        raise InvalidRequestError(f"Spark: {text[:2000]}") from error


def _write(form: str, names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    if form == "table":
        head = [tuple(_cell(value) for value in row) for row in islice(rows, _TABLE_ROWS)]
        console.table(names, head)
        if next(rows, None) is not None:
            console.note(f"The first {_TABLE_ROWS} rows; --format csv or json gives all.")
        return
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in rows)
        return
    for row in rows:
        console.json_line(dict(zip(names, map(_plain, row), strict=True)))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; bytes become text if they are UTF-8, else base64."""
    match value:
        case bytes() | bytearray():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                return f"base64:{base64.b64encode(value).decode()}"
        case datetime():  # Spark gives times as local ones without a zone
            return (value if value.tzinfo else value.astimezone()).astimezone(UTC).isoformat()
        case date():
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
        case dict():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case list() | tuple():
            as_dict = getattr(value, "asDict", None)
            return _plain(as_dict()) if as_dict else [_plain(item) for item in value]
        case _:
            return value


def _cell(value: Any) -> Any:
    plain = _plain(value)
    return str(plain) if isinstance(plain, dict | list) else plain
