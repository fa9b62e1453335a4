"""SQL over streams: every stream that a statement names is a view of its full history.

Two ways. :func:`query` runs one statement and needs no preparation: Spark's own analyzer says which
names it cannot resolve; no text is searched, so a name in a string, an alias or a common table
expression is never mistaken for a stream. All streams of a statement are of one instant. Their
views exist only while the statement is analyzed: its result needs them no longer, and the next
statement looks again. :func:`register` leaves a temporary view per stream in the session, for
``spark.sql`` and for tools that know nothing of us; these stand still until they are moved up.

Both work in a classic session and in one of Spark Connect.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from broker.errors import UnknownStreamError
from spark_jobs.read import unified
from spark_jobs.read.held_reads import READS, HeldQuery, abandon, release
from spark_jobs.sessions import is_connect
from spark_jobs.source.columns import nearest

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

    from headwater.client import Client

_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"


class _Registered:
    """The views that :func:`register` made, by session. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: weakref.WeakKeyDictionary[SparkSession, dict[str, DataFrame]] = (
            weakref.WeakKeyDictionary()
        )

    def swap(self, spark: SparkSession, views: dict[str, DataFrame]) -> dict[str, DataFrame]:
        """Note the views of a session; return those that were there."""
        with self._lock:
            before = self._views.get(spark, {})
            self._views[spark] = views
        return before

    def names(self, spark: SparkSession) -> list[str]:
        """Return the streams whose views we made in a session."""
        with self._lock:
            return list(self._views.get(spark, {}))


_REGISTERED: Final = _Registered()


def query(
    spark: SparkSession, statement: str, client: Client, *, certificate: unified.Proof = "counts"
) -> DataFrame:
    """Return the result of one SQL statement; streams are read as of now. Blocks.

    A table or view of the session hides a stream of the same name, unless :func:`register` made
    it: such views are moved up first. The leases of the streams are renewed until
    ``headwater.release(result)``; when nobody refers to the result any more they run out by
    themselves, so that whatever was derived from it can still be finished within their time.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`, or one of Spark Connect.
        statement: one statement of Spark SQL; names with a dash go in backticks.
        client: how to reach the broker.
        certificate: as for :func:`spark_jobs.read.unified.read`.

    Raises:
        UnknownStreamError: the statement names something that is neither a stream nor a table.
        HeadwaterError: a stream could not be read; see :func:`spark_jobs.read.unified.read_many`.
        pyspark.errors.AnalysisException: what else Spark finds wrong with the statement.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (importing this stays free)

    registered = _REGISTERED.names(spark)
    if registered:
        register(spark, client, streams=registered, certificate=certificate)
    reads: dict[str, DataFrame] = {}
    try:
        while True:
            try:
                with _unlogged():
                    result = _run(spark, statement, reads)
            except AnalysisException as error:
                name = _missing_stream(error, client)
                if name is None or name in reads:
                    raise
            else:
                held = {name: READS.of(rows) for name, rows in reads.items()}
                READS.remember_query(result, HeldQuery(reads=held))
                return result
            # All of them again, so that whatever runs in the end is of one instant.
            names = [*reads, name]
            _release_all(reads)
            reads = {}
            reads = unified.read_many(spark, names, certificate=certificate, client=client)
    except BaseException:
        _release_all(reads)
        raise


def register(
    spark: SparkSession,
    client: Client,
    *,
    streams: Sequence[str] | None = None,
    certificate: unified.Proof = "counts",
) -> dict[str, DataFrame]:
    """Make a temporary view of each stream, all of one instant; return them by name. Blocks.

    Calling it again moves the views up to that moment; the leases of what they were before run
    out by themselves. A view shows the rows of its moment until then, in every query.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`, or one of Spark Connect.
        client: how to reach the broker.
        streams: which ones; every stream of the broker by default.
        certificate: as for :func:`spark_jobs.read.unified.read`.

    Raises:
        HeadwaterError: see :func:`spark_jobs.read.unified.read_many`; the views are as they were.
    """
    names = [stream.name for stream in client.streams()] if streams is None else list(streams)
    views = unified.read_many(spark, names, certificate=certificate, client=client) if names else {}
    for name, rows in views.items():
        rows.createOrReplaceTempView(f"`{name}`")
    for name, rows in _REGISTERED.swap(spark, views).items():
        abandon(READS.of(rows).cut)
        if name not in views:
            spark.catalog.dropTempView(name)
    return views


def _run(spark: SparkSession, statement: str, reads: Mapping[str, DataFrame]) -> DataFrame:
    """Analyze a statement, and execute it if it is a command, with the streams as views."""
    if is_connect(spark):
        from spark_jobs.connect_sql import sql_with_views  # noqa: PLC0415  (needs grpc)

        return sql_with_views(spark, statement, reads)
    made = []
    try:
        for name, rows in reads.items():
            rows.createTempView(f"`{name}`")
            made.append(name)
        return spark.sql(statement)
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def _release_all(reads: Mapping[str, DataFrame]) -> None:
    for rows in reads.values():
        release(rows)


def _missing_stream(error: AnalysisException, client: Client) -> str | None:
    """Return the stream whose view would help, None when the error is about something else.

    Raises:
        UnknownStreamError: a name is missing, and no stream has it.
    """
    wanted = _unresolved(error)
    if wanted is None:
        return None
    names = [stream.name for stream in client.streams()]
    name = _stream_named(wanted, names)
    if name is None:
        raise UnknownStreamError(
            f"{wanted} is neither a stream nor a table{nearest(wanted, names)}", stream=wanted
        ) from error
    return name


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PySpark from logging each analysis error in full: we expect some, or raise them."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415  (importing this stays free)

    loggers = [
        PySparkLogger.getLogger(name)
        for name in ("SQLQueryContextLogger", "pyspark.sql.connect.client.logging")
    ]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _unresolved(error: AnalysisException) -> str | None:
    """Return the one-part name that the analyzer did not find, None for any other complaint."""
    if error.getCondition() != _NOT_FOUND:
        return None
    text = (error.getMessageParameters() or {}).get("relationName", "")
    quoted = text.startswith("`") and text.endswith("`") and "`.`" not in text
    return text[1:-1].replace("``", "`") if quoted else None


def _stream_named(wanted: str, names: list[str]) -> str | None:
    """Return the stream of that name; Spark's names ignore case, so a unique match by case does."""
    if wanted in names:
        return wanted
    alike = [name for name in names if name.lower() == wanted.lower()]
    return alike[0] if len(alike) == 1 else None
