"""Spark's own scan of a table version; strict, whatever the session's settings are.

By default Spark does not check the checksum of a Parquet page, and settings can make it skip files
that it cannot read. Any code may change the settings of a session, even after the DataFrame was
made. Options of the scan override the settings at every action, but Delta 4.4 passes only options
that begin with ``fs.`` to its scan. So the options are set without Delta:

- In a classic session they are added to the scan that Delta planned. Delta's statistics still skip
  files.
- In Spark Connect this process has no plan to change. There the files that our own reader found in
  the log are passed to Spark's Parquet reader. The same happens in a session that reserves SQL's
  keywords: Delta writes the type of its statistics without backticks, and then cannot plan a filter
  on a table with a column ``offset``.

A page's header and a file's footer have no checksum. They are proved with the whole object, before
the DataFrame exists (tiering/read/certify.py). The list of files that Spark has for the version is
compared with ours here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from broker.errors import TableMismatchError
from spark_jobs.sessions import is_connect
from spark_jobs.source.columns import ROW_COLUMNS, ddl
from spark_jobs.source.partitions import table_path
from tiering.read.lake import kept_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiering.keys.snapshot import LatestTable
    from tiering.table.table import TableSnapshot

STRICT: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}

_log = logging.getLogger("headwater.read")


def table_at(
    spark: SparkSession,
    table_uri: str,
    version: int,
    *,
    snapshot: TableSnapshot | LatestTable | None = None,
) -> DataFrame:
    """Return Spark's own strict scan of a table at one version. Blocks on the table's log.

    Args:
        spark: any session.
        table_uri: the table's URI.
        version: the table's version.
        snapshot: that version as our own reader sees it, if the caller has it; required for a key
            snapshot.

    Raises:
        TableMismatchError: Spark's list of files differs from ours.
        UnavailableError, ObjectMissingError: this process cannot read the log.
    """
    if not is_connect(spark) and not _reserves_words(spark):
        reader = spark.read.format("delta").option("versionAsOf", str(version))
        strict = _planned_strictly(reader.load(table_path(table_uri)), snapshot)
        if strict is not None:
            return strict
    if snapshot is None:
        snapshot = kept_table(table_uri).snapshot(version)
    return files_of(spark, table_uri, (file.path for file in snapshot.files))


def files_of(spark: SparkSession, table_uri: str, paths: Iterable[str]) -> DataFrame:
    """Return Spark's own strict scan of some files of a table; without files, no rows."""
    root = table_path(table_uri)
    schema = ddl(ROW_COLUMNS)
    named = [f"{root}/{path}" for path in paths]
    if not named:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(basePath=root, **STRICT).parquet(*named)


def _reserves_words(spark: SparkSession) -> bool:
    return spark.conf.get("spark.sql.ansi.enforceReservedKeywords", "false") == "true"


def _planned_strictly(
    rows: DataFrame, snapshot: TableSnapshot | LatestTable | None
) -> DataFrame | None:
    """Return Delta's DataFrame with our options in its scan; None if its plan looks different.

    Spark has no public interface for this, so the options in effect are read back and compared.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  (importing stays free)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame  # noqa: PLC0415

    session = rows.sparkSession
    try:
        plan: Any = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
        scan = plan.relation()
        options = scan.options()
        for name, value in STRICT.items():
            options = options.updated(name, value)
        strict = scan.copy(
            scan.location(),
            scan.partitionSchema(),
            scan.dataSchema(),
            scan.bucketSpec(),
            scan.fileFormat(),
            options,
            scan.sparkSession(),
        )
        relation = plan.copy(
            strict, plan.output(), plan.catalogTable(), plan.isStreaming(), plan.stream()
        )
        datasets = session.sparkContext._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]  # noqa: SLF001
        made = datasets.ofRows(rows._jdf.sparkSession(), relation)  # noqa: SLF001
        in_effect = made.queryExecution().analyzed().relation().options()
        if any(in_effect.apply(name) != value for name, value in STRICT.items()):
            return None
        known = scan.location().snapshotAtAnalysis()
        found = int(known.version()), int(known.numOfFiles()), int(known.sizeInBytes())
    except (Py4JError, TypeError) as cause:  # a Spark or Delta whose plans look different
        _log.info("plan_not_strict, naming the files instead: %s", str(cause).split("\n")[0])
        return None
    if snapshot is not None:
        listed = snapshot.files
        expected = snapshot.version, len(listed), sum(file.size_bytes for file in listed)
        if found != expected:
            raise TableMismatchError(
                f"Spark reads version {found[0]} of {snapshot.uri} as {found[1]} files with "
                f"{found[2]} bytes, but our own reader finds version {expected[0]}, "
                f"{expected[1]} files with {expected[2]} bytes",
                uri=snapshot.uri,
                version=snapshot.version,
                expected=expected[1],
                found=found[1],
            )
    return ClassicDataFrame(made, session)
