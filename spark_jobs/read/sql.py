"""SQL over streams: every stream that a statement names is a view of its full history.

There are two ways. :func:`sql` runs one statement and needs no preparation. Spark's own analyzer
reports the names that it cannot resolve. The statement's text is not searched, so a name in a
string, an alias or a common table expression is never mistaken for a stream. All streams of a
statement are read as of one instant. Their views exist only while the statement is analyzed; the
result does not need them, and the next statement reads the streams anew. :func:`register` creates
a temporary view per stream in the session, for ``spark.sql`` and for tools that do not know
Headwater. Such a view does not change until :func:`register` or :func:`sql` moves it up.

Both work in a classic session and in a session of Spark Connect.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from broker.errors import UnknownStreamError
from spark_jobs.clients import client_of
from spark_jobs.read import unified
from spark_jobs.read.held_reads import READS, HeldQuery, abandon, release
from spark_jobs.read.stream_names import refuse_alike, stream_named
from spark_jobs.sessions import is_connect

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
        """Note the views of a session; return its views from before."""
        with self._lock:
            before = self._views.get(spark, {})
            self._views[spark] = views
        return before

    def names(self, spark: SparkSession) -> list[str]:
        """Return the streams whose views :func:`register` made in a session."""
        with self._lock:
            return list(self._views.get(spark, {}))


_REGISTERED: Final = _Registered()


def sql(
    spark: SparkSession,
    statement: str,
    *,
    server: str | Client | None = None,
    certificate: unified.Proof = "counts",
) -> DataFrame:
    """Return the result of one SQL statement; streams are read as of now. Blocks.

    A table or view of the session hides a stream of the same name, unless :func:`register` made
    the view: such views are moved up to now first. The leases of the streams are renewed until
    ``headwater.release(result)``. When the result is garbage collected, the leases are no longer
    renewed but still hold until they expire, so that DataFrames derived from it can be finished.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`, or one of Spark Connect.
        statement: one statement of Spark SQL; names with a dash go in backticks.
        server: as for :func:`spark_jobs.read.unified.read`.
        certificate: as for :func:`spark_jobs.read.unified.read`.

    Raises:
        UnknownStreamError: the statement has a name that is neither a stream nor a table.
        InvalidRequestError: several streams have a name of the statement, or of a registered view,
            apart from case.
        HeadwaterError: a stream could not be read; see :func:`spark_jobs.read.unified.read_many`.
        pyspark.errors.AnalysisException: Spark found another error in the statement.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (importing this stays free)

    client = client_of(server)
    registered = _REGISTERED.names(spark)
    if registered:
        register(spark, registered, server=client, certificate=certificate)
    reads: dict[str, DataFrame] = {}
    try:
        while True:
            try:
                with _unlogged():
                    result = _run(spark, statement, reads)
            except AnalysisException as error:
                name = _missing_stream(error, client)
                if name is None or name in reads or name in registered:
                    raise
            else:
                held = {name: READS.of(rows) for name, rows in reads.items()}
                READS.remember_query(result, HeldQuery(reads=held))
                return result
            # Read all streams again, so that the statement in the end has one instant.
            names = [*reads, name]
            _release_all(reads)
            reads = {}
            every = unified.read_many(
                spark, [*registered, *names], certificate=certificate, server=client
            )
            reads = {name: every[name] for name in names}
            if registered:
                _show(spark, {name: every[name] for name in registered})
    except BaseException:
        _release_all(reads)
        raise


def register(
    spark: SparkSession,
    streams: Sequence[str] | None = None,
    *,
    server: str | Client | None = None,
    certificate: unified.Proof = "counts",
) -> dict[str, DataFrame]:
    """Make a temporary view of each stream, all as of one instant; return them by name. Blocks.

    A second call moves the views up to the present moment; the leases of the old views expire by
    themselves. Between two calls a view shows the same rows in every query.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`, or one of Spark Connect.
        streams: the streams' names; by default every stream of the broker.
        server: as for :func:`spark_jobs.read.unified.read`.
        certificate: as for :func:`spark_jobs.read.unified.read`.

    Raises:
        InvalidRequestError: another stream of the broker has a name that differs by case only.
        HeadwaterError: see :func:`spark_jobs.read.unified.read_many`; the views are as they were.
    """
    client = client_of(server)
    names = None if streams is None else list(streams)
    every = [] if names == [] else [stream.name for stream in client.streams()]
    names = every if names is None else names
    refuse_alike(names, every)
    views = unified.read_many(spark, names, certificate=certificate, server=client) if names else {}
    _show(spark, views)
    return views


def _show(spark: SparkSession, views: dict[str, DataFrame]) -> None:
    """Put these views in the place of those that :func:`register` made before."""
    for name, rows in views.items():
        rows.createOrReplaceTempView(f"`{name}`")
    for name, rows in _REGISTERED.swap(spark, views).items():
        abandon(READS.of(rows).cut)
        if name not in views:
            spark.catalog.dropTempView(name)


def _run(spark: SparkSession, statement: str, reads: Mapping[str, DataFrame]) -> DataFrame:
    """Analyze a statement with the streams as views; execute it if it is a command."""
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
    """Return the stream that the statement names; None if the error has another cause.

    Raises:
        UnknownStreamError: Spark does not know a name, and no stream has that name.
        InvalidRequestError: several streams have that name, apart from case.
    """
    wanted = _unresolved(error)
    if wanted is None:
        return None
    try:
        return stream_named(wanted, [stream.name for stream in client.streams()])
    except UnknownStreamError as unknown:
        raise unknown from error


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PySpark from logging analysis errors: we expect them, or raise them ourselves."""
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
    """Return the one-part name that the analyzer did not find; None for any other error."""
    if error.getCondition() != _NOT_FOUND:
        return None
    text = (error.getMessageParameters() or {}).get("relationName", "")
    quoted = text.startswith("`") and text.endswith("`") and "`.`" not in text
    return text[1:-1].replace("``", "`") if quoted else None
