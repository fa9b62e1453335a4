"""The latest record of every key, as a DataFrame over a held cut.

    latest = newest per (partition, key) of (key snapshot at E  ∪  records [E, end)), no tombstones

If keys have moved into partitions that were added to the stream (`Stream.keys_from`), it is the
newest per key: that of the highest offset in the highest partition that has one. The key snapshot
has the tombstones of such partitions.

The key snapshot is a table that a job keeps beside the stream's table: exactly the latest records
of the cut that ends at E. If none can serve the cut (tiering/keys/of_cut.py), all records from the
start are read instead; the result has the same rows. Newest means the greatest offset, whatever the
timestamps say. The result has no records without a key, and no key whose newest record is a
tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.model.cut import Cut
from spark_jobs.read.scans import rows_of
from spark_jobs.read.table_scan import table_at
from tiering.keys.snapshot import LatestTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.source.left import Counted
    from tiering.store.location import StoreConfig
    from tiering.table.table import TableSnapshot


def latest_rows(
    spark: SparkSession,
    cut: Cut,
    columns: Sequence[str],
    *,
    server: str,
    proved: bool,
    snapshot: LatestTable | None,
    table: TableSnapshot | None = None,
    location: StoreConfig | None = None,
    left: Sequence[Counted] | None = None,
) -> DataFrame:
    """Return one row per key (of a partition): its newest record, unless that is a tombstone."""
    from pyspark.sql import functions  # noqa: PLC0415  (importing this stays free)

    needed = list(dict.fromkeys(("partition", "key", "offset", "value", *columns)))
    above = None if snapshot is None else snapshot.ends
    rows = rows_of(
        spark,
        cut,
        needed,
        server=server,
        proved=proved,
        table=table,
        location=location,
        above=above,
        left=left,
    )
    rows = rows.where("`key` IS NOT NULL")
    if snapshot is not None:
        newest_at_end = table_at(spark, snapshot.uri, snapshot.version, snapshot=snapshot)
        gone = _below_start(cut)
        numbers = ", ".join(str(int(part.partition)) for part in cut.partitions)
        kept = newest_at_end.where(f"`partition` IN ({numbers})")
        kept = kept.where(f"NOT ({gone})") if gone else kept
        rows = kept.select(*needed).union(rows)
    moved = cut.keys_from is not None
    names = ("key",) if moved else ("partition", "key")
    order = functions.struct("partition", "offset") if moved else functions.col("offset")
    others = [name for name in needed if name not in names]
    newest = rows.groupBy(*names).agg(
        functions.max_by(functions.struct(*others), order).alias("newest")
    )
    flat = newest.select(*names, *(f"newest.{name}" for name in others))
    return flat.where("`value` IS NOT NULL").select(*columns)


def _below_start(cut: Cut) -> str:
    """Return the condition for rows of a key snapshot that the cut no longer has; empty: none."""
    return " OR ".join(
        f"(`partition` = {part.partition} AND `offset` < {part.start})"
        for part in cut.partitions
        if part.start
    )
