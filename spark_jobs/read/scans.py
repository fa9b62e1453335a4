"""The two scans that a unified read joins: Spark's own scan of the table, and the log's.

Both take a held cut and whether its table version was proved. The caller may choose the first
offset of each partition; the default is the partition's start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import InvalidConfigError, ObjectMissingError, UnavailableError
from broker.model.cut import Cut
from broker.model.offsets import Offset, OffsetRange
from spark_jobs import jvm
from spark_jobs.read.table_scan import table_at
from spark_jobs.sessions import is_connect, parallelism
from spark_jobs.source import task_history
from spark_jobs.source.left import Counted, count_left, may_lack_records, to_text
from spark_jobs.source.options import positions_text
from spark_jobs.source.partitions import plan
from tiering.read.lake import kept_table
from tiering.read.reader import require_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.client import Client
    from tiering.store.location import StoreConfig
    from tiering.table.table import TableSnapshot

_log = logging.getLogger("headwater.read")

# A user may have set these for other tables; with them Spark would drop rows without an error.
_LOSSY_SETTINGS: Final = (
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.files.ignoreCorruptFiles",
)
_TASK_RECORDS: Final = (100_000, 2_000_000)  # fewest and most records per task of a tail


@dataclass(frozen=True, slots=True)
class Seam:
    """The range of one partition that is read from the table, and the range from the log."""

    partition: int
    cold: OffsetRange
    hot: OffsetRange


def seams(cut: Cut, above: Mapping[int, Offset] | None = None) -> list[Seam]:
    """Return the two ranges of each partition of a cut; ``above`` as in :func:`rows_of`."""
    found = []
    for part in cut.partitions:
        start = (above or {}).get(part.partition, part.start)
        hot = max(part.cold_end, start)
        cold = OffsetRange(start, max(start, part.cold_stop))
        found.append(Seam(part.partition, cold, OffsetRange(hot, max(hot, part.hot_stop))))
    return found


def left_in(spark: SparkSession, cut: Cut, client: Client) -> tuple[Counted, ...] | None:
    """Count what key compaction has left of a held cut; None if it has a record for each offset.

    Only of a stream without a table records may be gone. Reads their offsets from the broker.
    """
    if cut.table_version is not None or not may_lack_records(client.stream(cut.stream)):
        return None
    ranges = {part.partition: part.hot for part in seams(cut)}
    records_max = _task_records(spark, sum(map(len, ranges.values())))
    return tuple(
        count_left(client, cut.stream, cut.stream_uuid, piece)
        for piece in plan(ranges, partitions_min=0, records_max=records_max)
    )


def rows_of(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    *,
    server: str,
    proved: bool,
    table: TableSnapshot | None = None,
    location: StoreConfig | None = None,
    above: Mapping[int, Offset] | None = None,
    left: Sequence[Counted] | None = None,
) -> DataFrame:
    """Return the cold rows, the hot rows, or both; if there are none, an empty DataFrame.

    Args:
        spark: any session.
        cut: the cut to read; the caller holds its lease.
        columns: the columns, in order.
        server: the broker's address, for the executors.
        proved: whether the table version was proved to hold exactly the cut's cold ranges.
        table: that version as our own reader sees it, if known; Spark must see the same files.
        location: that of the table, with the settings to reach it; None: from the environment.
        above: per partition, the first offset wanted; default: the partition's start.
        left: what :func:`left_in` has returned; then the read has exactly these records.
    """
    parts = seams(cut, above)
    tiers = []
    if any(part.cold for part in parts):
        tiers.append(
            _cold(
                spark,
                cut,
                columns,
                parts,
                server=server,
                proved=proved,
                table=table,
                location=location,
            )
        )
    if not tiers or any(part.hot for part in parts):
        hot = {part.partition: part.hot for part in parts}
        tiers.append(_by_source(spark, cut, columns, hot, server=server, left=left))
    return tiers[0] if len(tiers) == 1 else tiers[0].union(tiers[1])


def refuse_lossy(spark: SparkSession) -> None:
    """Raise InvalidConfigError if the session's settings let Spark skip unreadable files."""
    for name in _LOSSY_SETTINGS:
        if str(spark.conf.get(name, "false")).lower() == "true":
            raise InvalidConfigError(
                f"{name} is true in this session, so Spark would drop rows without an error; "
                "unset it"
            )


def cold_predicate(cut: Cut, parts: Sequence[Seam], *, proved: bool) -> str | None:
    """Return the filter for a scan of the cut's table version; None if no filter is needed.

    A proved version holds exactly the cut's cold ranges, so it needs no filter. If the version is
    not proved, or only a part of it is wanted, the filter has simple predicates for the ranges,
    by which Delta can skip files.
    """
    held = {part.partition: OffsetRange(part.start, part.cold_end) for part in cut.partitions}
    if proved and all(part.cold == held[part.partition] for part in parts):
        return None
    return " OR ".join(
        f"(`partition` = {part.partition} AND `offset` >= {part.cold.start} "
        f"AND `offset` < {part.cold.end})"
        for part in parts
        if part.cold
    )


def log_options(
    cut: Cut, columns: Sequence[str], ranges: Mapping[int, OffsetRange], *, server: str
) -> dict[str, str]:
    """Return our source's options for some ranges of a cut; planning then makes no request."""
    wanted = {number: span for number, span in ranges.items() if span}
    if not wanted:
        number, span = next(iter(ranges.items()))
        wanted = {number: OffsetRange(span.start, span.start)}
    positions = task_history.of_cut(cut)
    history = {} if positions is None else {"historyPositions": task_history.to_text(positions)}
    return {
        "server": server,
        "stream": cut.stream,
        "streamUuid": cut.stream_uuid,
        "lease": cut.lease.lease_id,  # held by the caller
        "startingOffsets": positions_text({n: span.start for n, span in wanted.items()}),
        "endingOffsets": positions_text({n: span.end for n, span in wanted.items()}),
        "columns": ",".join(columns),
        **history,
    }


def _cold(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    parts: Sequence[Seam],
    *,
    server: str,
    proved: bool,
    table: TableSnapshot | None,
    location: StoreConfig | None,
) -> DataFrame:
    """Return the scan of the table at the cut's version.

    An encrypted table is read by our data source: its tasks decrypt the files, or ask the broker.
    So is a table for which the broker gives out keys: they are one stream's, and a file system of
    the JVM has one key for a whole bucket.
    A client of Spark Connect may be unable to reach the store, while the executors can. Then our
    data source reads the same offsets on the executors; it is slower, and it proves them itself.
    """
    assert cut.table_version is not None, "a cut with a cold range has a table version"
    cold = {part.partition: part.cold for part in parts}
    try:
        if table is None:
            table = kept_table(location or cut.table_uri).snapshot(cut.table_version)
        vended = location is not None and location.vended is not None
        if table.is_encrypted or vended:  # Spark's own scan has no keys
            return _by_source(spark, cut, columns, cold, server=server)
        if not proved:  # only a certificate says how many records key compaction has removed
            for part in parts:
                require_whole(table, part.partition, part.cold)
        rows = table_at(spark, cut.table_uri, cut.table_version, snapshot=table)
    except (UnavailableError, InvalidConfigError, ObjectMissingError) as error:
        if proved or not is_connect(spark):
            raise
        _log.info("table_not_reached stream=%s, executors read it: %s", cut.stream, error)
        return _by_source(spark, cut, columns, cold, server=server)
    predicate = cold_predicate(cut, parts, proved=proved)
    return (rows if predicate is None else rows.where(predicate)).select(*columns)


def _by_source(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    ranges: Mapping[int, OffsetRange],
    *,
    server: str,
    left: Sequence[Counted] | None = None,
) -> DataFrame:
    """Return ranges through the data source; each task reads from the table or the broker.

    Where our jar is, Spark tells the source which columns and offsets an action needs.
    """
    records = _task_records(spark, sum(map(len, ranges.values())))
    options = log_options(cut, columns, ranges, server=server)
    if left is not None:
        options["compactedRows"] = to_text(left)
    has_jar = spark.conf.get(jvm.CATALOG_SETTING, "") == jvm.CATALOG_CLASS
    source = jvm.SOURCE_CLASS if has_jar else "headwater"
    reader = spark.read.format(source).options(**options)
    return reader.option("maxRecordsPerPartition", str(records)).load()


def _task_records(spark: SparkSession, total: int) -> int:
    """Return the records per task: a large tail is shared by all cores, a small one is one task."""
    low, high = _TASK_RECORDS
    return min(high, max(low, -(-total // parallelism(spark))))
