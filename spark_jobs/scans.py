"""The two scans that a unified read joins: the table's, which is Spark's own, and the log's.

Both take a cut that is held and, for the table, how far it was proved. Each partition is read from
an offset of the caller's choice, by default from its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.errors import InvalidConfigError
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import Offset
from spark_jobs.sessions import parallelism
from spark_jobs.source.options import positions_text
from tiering.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A user may have set these for other tables; with them Spark would drop rows without a word.
_LOSSY_SETTINGS: Final = (
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.files.ignoreCorruptFiles",
)
_TASK_RECORDS: Final = (100_000, 2_000_000)  # fewer are not worth a task, more are too many


def rows_of(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    *,
    server: str,
    proved: bool,
    above: Mapping[int, Offset] | None = None,
) -> DataFrame:
    """Return the cold rows, the hot rows, or both; always at least an empty DataFrame.

    Args:
        spark: any session.
        cut: what to read; its lease is held by the caller.
        columns: which columns, in order.
        server: the broker's address, for the executors.
        proved: whether the table's version is known to hold exactly the cut's cold ranges.
        above: per partition, the first offset wanted; the partition's start where none is given.
    """
    starts = {part.partition: part.start for part in cut.partitions} | dict(above or {})
    tiers = []
    if any(part.cold_stop > starts[part.partition] for part in cut.partitions):
        tiers.append(_cold(spark, cut, columns, starts, proved=proved))
    hot = {
        part.partition: (max(part.cold_end, starts[part.partition]), part.hot_stop)
        for part in cut.partitions
    }
    if not tiers or any(end > start for start, end in hot.values()):
        tiers.append(_hot(spark, cut, columns, hot, server=server))
    return tiers[0] if len(tiers) == 1 else tiers[0].union(tiers[1])


def table_path(table_uri: str) -> str:
    """Return a table's URI as Spark's file systems spell it: ``s3a://…`` or a plain path."""
    if table_uri.startswith("s3://"):
        return f"s3a://{table_uri.removeprefix('s3://')}"
    return str(StoreConfig(uri=table_uri).root)


def table_at(spark: SparkSession, table_uri: str, version: int) -> DataFrame:
    """Return Spark's own scan of a table at one version."""
    reader = spark.read.format("delta").option("versionAsOf", str(version))
    return reader.load(table_path(table_uri))


def refuse_lossy(spark: SparkSession) -> None:
    """Raise InvalidConfigError if the session is set to go on without files it cannot read."""
    for name in _LOSSY_SETTINGS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            raise InvalidConfigError(
                f"{name} is true in this session, so Spark would drop rows silently; unset it"
            )


def _cold(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    starts: Mapping[int, Offset],
    *,
    proved: bool,
) -> DataFrame:
    """Return the scan of the table at the cut's version.

    A proved version holds exactly the cut's cold ranges, so no filter is needed, and none is paid
    for. An unproved one, and one of which less is wanted, is held to the ranges by simple
    predicates that Delta turns into file skips.
    """
    assert cut.table_version is not None, "a cold range has a table"
    rows = table_at(spark, cut.table_uri, cut.table_version)
    whole = all(
        starts[part.partition] == part.start and part.cold_stop == part.cold_end
        for part in cut.partitions
    )
    if not (proved and whole):
        rows = rows.where(
            " OR ".join(
                _within(part, starts[part.partition])
                for part in cut.partitions
                if part.cold_stop > starts[part.partition]
            )
        )
    return rows.select(*columns)


def _within(part: PartitionCut, start: Offset) -> str:
    return f"(partition = {part.partition} AND offset >= {start} AND offset < {part.cold_stop})"


def _hot(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    ranges: Mapping[int, tuple[int, int]],
    *,
    server: str,
) -> DataFrame:
    """Return the log's ranges through the data source; planning asks no server."""
    wanted = {number: bounds for number, bounds in ranges.items() if bounds[1] > bounds[0]}
    if not wanted:
        number, (start, _) = next(iter(ranges.items()))
        wanted = {number: (start, start)}
    rows = (
        spark.read.format("headwater")
        .option("server", server)
        .option("stream", cut.stream)
        .option("streamUuid", cut.stream_uuid)
        .option("startingOffsets", positions_text({n: Offset(b[0]) for n, b in wanted.items()}))
        .option("endingOffsets", positions_text({n: Offset(b[1]) for n, b in wanted.items()}))
        .option("columns", ",".join(columns))
        .option(
            "maxRecordsPerPartition",
            str(_task_records(spark, sum(end - start for start, end in wanted.values()))),
        )
    )
    return rows.load()


def _task_records(spark: SparkSession, total: int) -> int:
    """Cut a large tail so that all cores share it; a small one is not worth a second task."""
    low, high = _TASK_RECORDS
    return min(high, max(low, -(-total // parallelism(spark))))
