"""Proves that a key snapshot holds exactly the newest record of each key of the full history.

Spark computes both sides and compares them row by row, in all columns. The proof uses nothing from
the build of the table: neither the names of its files nor its statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.errors import CompactedRangeError, TableMismatchError, TableRolledBackError
from broker.model.offsets import OffsetRange
from spark_jobs.failures import translated
from spark_jobs.maintenance.latest_build import history_rows
from spark_jobs.read.table_scan import table_at
from spark_jobs.source.columns import ROW_COLUMNS
from tiering.table.table import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestProof:
    """The numbers of rows that were compared and found equal."""

    records_count: int  # rows of the key snapshot
    history_count: int  # records of the history from which these rows follow


def check_latest(
    spark: SparkSession,
    latest: TableSnapshot,
    history: TableSnapshot,
    *,
    keys_from: int | None = None,
) -> LatestProof:
    """Compare a key snapshot with the history that it covers. Reads both as a whole.

    ``keys_from``: see ``Stream.keys_from``; from this partition on, tombstones are rows.

    Raises:
        TableMismatchError: with the facts ``missing``, ``surplus`` (counts) and ``examples``.
        TableRolledBackError: the history no longer reaches as far as the key snapshot.
        CompactedRangeError: key compaction has removed records that were the newest at the key
            snapshot's end.
    """
    ranges: dict[int, OffsetRange] = {}
    for number, covered in latest.ranges.items():
        held = history.range_of(number)
        if covered and not held.start <= covered.start <= covered.end <= held.end:
            raise TableRolledBackError(
                f"the key snapshot {latest.uri} covers {covered} of partition {number}, but the "
                f"history {history.uri} holds {held}",
                uri=history.uri,
                partition=number,
                expected=int(covered.end),
                found=int(held.end),
            )
        if covered and covered.end < history.whole_start(number):
            raise CompactedRangeError(
                f"the key snapshot {latest.uri} covers {covered} of partition {number}, and key "
                f"compaction has removed records below {history.whole_start(number)}, which were "
                "perhaps the newest at its end: advance it with 'headwater job snapshot', then "
                "verify",
                partition=number,
                start=int(covered.start),
                end=int(history.whole_start(number)),
            )
        if covered:
            ranges[number] = covered
    expected = _newest(history_rows(spark, history, ranges), keys_from)
    found = table_at(spark, latest.uri, latest.version, snapshot=latest).select(*ROW_COLUMNS)
    with translated():
        missing, examples = _difference(expected, found)
        surplus, more = _difference(found, expected)
        if missing or surplus:
            raise TableMismatchError(
                f"{latest.uri} version {latest.version} lacks {missing} newest records and has "
                f"{surplus} records that are not the newest of their keys; move its folder away "
                "and build a new one with 'headwater job snapshot'",
                uri=latest.uri,
                missing=missing,
                surplus=surplus,
                examples=[*examples, *more],
            )
        return LatestProof(
            records_count=found.count(),
            history_count=sum(len(one) - history.gone_count(n) for n, one in ranges.items()),
        )


def _newest(rows: DataFrame, keys_from: int | None) -> DataFrame:
    from pyspark.sql import functions  # noqa: PLC0415  (importing this stays free)

    record = functions.struct(*ROW_COLUMNS)
    newest = rows.groupBy("partition", "key").agg(
        functions.max_by(record, functions.col("offset")).alias("newest")
    )
    kept = "" if keys_from is None else f" OR `partition` >= {keys_from}"
    return newest.select("newest.*").where(f"`value` IS NOT NULL{kept}")


def _difference(left: DataFrame, right: DataFrame) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of rows that only ``left`` has, and some examples."""
    only = left.exceptAll(right)
    count = only.count()
    some = only.select("partition", "offset").limit(_SHOWN).collect() if count else []
    return count, [row.asDict() for row in some]
