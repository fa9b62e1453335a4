"""The latest record of every key, as a DataFrame over a held cut.

    latest = newest per (partition, key) of (key snapshot at E  ∪  records [E, end)), no tombstones

The key snapshot is a table that a job keeps beside the stream's: exactly the latest records of the
cut that ends at E. Where there is none, or it is newer than the cut, the records from the start
take its place; the rows are the same. Newest means the greatest offset, whatever the timestamps
say. Records without a key have no latest, and a key whose newest record is a tombstone has none.
What remote retention has removed from the history stays in a key snapshot that was built before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.model.cut import Cut
from spark_jobs.read.scans import rows_of
from spark_jobs.read.table_scan import table_at
from tiering.keys.snapshot import LatestTable, open_latest
from tiering.read.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiering.table.table import TableSnapshot

_log = logging.getLogger("headwater.read")


def usable_snapshot(cut: Cut) -> LatestTable | None:
    """Return the key snapshot that a read of this cut may begin with, None without one.

    It has to be of this very stream and not newer than the cut, in any partition.

    Raises:
        TableMismatchError: somebody else changed it.
        CorruptDataError, UnavailableError: it is damaged, or cannot be reached.
    """
    found = _open_latest(cut)
    if found is None:
        return None
    if found.distrusted:
        _log.info(
            "key_snapshot_passed_over stream=%s partitions=%s rewritten_by=others",
            cut.stream,
            sorted(found.distrusted),
        )
        return None
    for part in cut.partitions:
        end = found.ends.get(part.partition)
        if end is None or not part.start <= end <= part.end:
            _log.info(
                "key_snapshot_passed_over stream=%s partition=%d end=%s cut=[%d, %d)",
                cut.stream,
                part.partition,
                end,
                part.start,
                part.end,
            )
            return None
    return found


def latest_rows(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    *,
    server: str,
    proved: bool,
    snapshot: LatestTable | None,
    table: TableSnapshot | None = None,
) -> DataFrame:
    """Return one row per (partition, key): its newest record, unless that is a tombstone."""
    from pyspark.sql import functions  # noqa: PLC0415  (importing this stays free)

    needed = list(dict.fromkeys(("partition", "key", "offset", "value", *columns)))
    above = None if snapshot is None else snapshot.ends
    rows = rows_of(spark, cut, needed, server=server, proved=proved, table=table, above=above)
    rows = rows.where("`key` IS NOT NULL")
    if snapshot is not None:
        newest_at_end = table_at(
            spark, snapshot.uri, snapshot.version, cluster=cut.cluster, snapshot=snapshot
        )
        rows = newest_at_end.select(*needed).union(rows)
    others = [name for name in needed if name not in ("partition", "key")]
    newest = rows.groupBy("partition", "key").agg(
        functions.max_by(functions.struct(*others), functions.col("offset")).alias("newest")
    )
    flat = newest.select("partition", "key", *(f"newest.{name}" for name in others))
    return flat.where("`value` IS NOT NULL").select(*columns)


def _open_latest(cut: Cut) -> LatestTable | None:
    if cut.table_version is None:
        return None
    root, namespace, table_name = cut.table_uri.rsplit("/", 2)
    return open_latest(
        Lake.open(root, cluster=cut.cluster),
        cut.stream,
        stream_uuid=cut.stream_uuid,
        table_name=table_name,
        namespace=namespace,
    )
