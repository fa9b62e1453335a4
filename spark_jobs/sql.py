"""SQL over streams: every stream that a statement names is a view of its full history.

Spark's own analyzer says which names it cannot resolve; no text is searched, so a name in a string,
an alias or a common table expression is never mistaken for a stream. Each stream is cut once per
statement, so all mentions of it see the same rows. The views exist only while the statement is
analyzed: its result needs them no longer, and the next statement looks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from broker.errors import UnknownStreamError
from spark_jobs import unified
from spark_jobs.source.columns import nearest

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

    from headwater.client import Client

_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"


def query(
    spark: SparkSession, statement: str, client: Client, *, certificate: unified.Proof = "counts"
) -> DataFrame:
    """Return the result of one SQL statement; streams are read as of now. Blocks.

    A table or view of the session hides a stream of the same name. The leases of the streams are
    held until ``headwater.release_all()``, the end of the session or of the process.

    Args:
        spark: a session of :func:`spark_jobs.session.build_session`.
        statement: one statement of Spark SQL; names with a dash go in backticks.
        client: how to reach the broker.
        certificate: as for :func:`spark_jobs.unified.read`.

    Raises:
        UnknownStreamError: the statement names something that is neither a stream nor a table.
        HeadwaterError: a stream could not be read; see :func:`spark_jobs.unified.read`.
        pyspark.errors.AnalysisException: what else Spark finds wrong with the statement.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (importing this stays free)

    views: list[str] = []
    try:
        with _unlogged():
            while True:
                try:
                    return spark.sql(statement)
                except AnalysisException as error:
                    name = _missing_stream(error, client)
                    if name is None or name in views:
                        raise
                rows = unified.read(spark, name, certificate=certificate, client=client)
                rows.createTempView(f"`{name}`")
                views.append(name)
    finally:
        for name in views:
            spark.catalog.dropTempView(name)


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

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


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
