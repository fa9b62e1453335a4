"""The latest record of every key, as a DataFrame over a held cut.

    latest = newest per (partition, key) of (key snapshot at E  ∪  records [E, end)), no tombstones

If keys have moved into partitions that were added to the stream (`Stream.keys_from`), it is the
newest per key: that of the highest offset in the highest partition that has one. The key snapshot
has the tombstones of such partitions.

The key snapshot is a table that a job keeps beside the stream's table: exactly the latest records
of the cut that ends at E. If there is no key snapshot, or it is newer than the cut, all records
from the start are read instead; the result has the same rows. Newest means the greatest offset,
whatever the timestamps say. The result has no records without a key, and no key whose newest record
is a tombstone. If remote retention removes records from the history, a key snapshot that was built
before still has them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.model.cut import Cut
from broker.model.offsets import Offset
from spark_jobs.read.scans import rows_of
from spark_jobs.read.table_scan import table_at
from tiering.keys.snapshot import LatestTable, open_latest
from tiering.read.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.source.left import Counted
    from tiering.table.table import TableSnapshot

_log = logging.getLogger("headwater.read")


def usable_snapshot(cut: Cut) -> LatestTable | None:
    """Return the key snapshot that a read of this cut can use, or None.

    It has to belong to the same incarnation of the stream, and must not be newer than the cut in
    any partition.

    Raises:
        TableMismatchError: a foreign writer changed it.
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
        end = found.ends.get(part.partition, Offset(0))  # absent: added since it was built
        if not part.start <= end <= part.end:
            _log.info(
                "key_snapshot_passed_over stream=%s partition=%d end=%s cut=[%d, %d)",
                cut.stream,
                part.partition,
                end,
                part.start,
                part.end,
            )
            return None
    ends = {part.partition: found.ends.get(part.partition, Offset(0)) for part in cut.partitions}
    return replace(found, ends=ends)


def latest_rows(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    *,
    server: str,
    proved: bool,
    snapshot: LatestTable | None,
    table: TableSnapshot | None = None,
    left: Sequence[Counted] | None = None,
) -> DataFrame:
    """Return one row per key (of a partition): its newest record, unless that is a tombstone."""
    from pyspark.sql import functions  # noqa: PLC0415  (importing this stays free)

    needed = list(dict.fromkeys(("partition", "key", "offset", "value", *columns)))
    above = None if snapshot is None else snapshot.ends
    rows = rows_of(
        spark, cut, needed, server=server, proved=proved, table=table, above=above, left=left
    )
    rows = rows.where("`key` IS NOT NULL")
    if snapshot is not None:
        newest_at_end = table_at(
            spark, snapshot.uri, snapshot.version, cluster=cut.cluster, snapshot=snapshot
        )
        rows = newest_at_end.select(*needed).union(rows)
    moved = cut.keys_from is not None
    names = ("key",) if moved else ("partition", "key")
    order = functions.struct("partition", "offset") if moved else functions.col("offset")
    others = [name for name in needed if name not in names]
    newest = rows.groupBy(*names).agg(
        functions.max_by(functions.struct(*others), order).alias("newest")
    )
    flat = newest.select(*names, *(f"newest.{name}" for name in others))
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
