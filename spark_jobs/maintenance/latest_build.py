"""Builds and advances a key snapshot with Spark.

    files of touched buckets  ∪  history after the old cut  ->  newest row per key  ->  new files

Spark reads, hashes and sorts; tasks write Parquet with Arrow; the driver commits files and cut by
compare-and-set. A run that dies, or loses the compare-and-set, leaves files that no table version
names.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.codec.schema import FILE_SCHEMA
from broker.errors import HeadwaterError, InvalidRequestError
from broker.model.offsets import OffsetRange
from spark_jobs.failures import annotate, translated
from spark_jobs.maintenance.held_stream import StoreAddress
from spark_jobs.read.table_scan import files_of, table_at
from spark_jobs.sessions import parallelism
from spark_jobs.source.columns import ROW_COLUMNS
from tiering.keys.plan import BUCKET_BYTES, PartitionPlan, plan
from tiering.keys.snapshot import is_of_history, made_of, prove_latest
from tiering.keys.writer import BucketFile, write_buckets
from tiering.read.lake import Lake
from tiering.table.delta_log import commit_digest
from tiering.table.table import DataFile, TableSnapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tiering.store.object_store import ObjectStore
    from tiering.table.delta_table import DeltaStreamTable

_WRITTEN_DDL: Final = (
    "path string, partition int, bucket int, size_bytes long, records_count long, "
    "stats_json string, crc32c long, digest string"
)
_CHECKPOINT_COMMITS: Final = 20
_TASKS_MAX: Final = 1000

Progress = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The result of one advance."""

    version: int
    ranges: Mapping[int, OffsetRange]
    records_read: int  # offsets of the history that were read
    records_count: int  # rows of the key snapshot after the advance
    files_added: int
    files_removed: int
    files_kept: int
    bytes_added: int


def advance(
    spark: SparkSession,
    table: DeltaStreamTable,
    base: TableSnapshot,
    history: TableSnapshot,
    *,
    keys_from: int | None = None,
    progress: Progress = lambda *_, **__: None,
) -> Advance:
    """Bring a key snapshot from ``base`` to exactly the cold ends of ``history``.

    ``keys_from``: see ``Stream.keys_from``; from this partition on, tombstones are kept.

    The caller holds the cut of ``history``, and took that cut after it had read ``base``.

    Raises:
        StaleColdEndError, FilesReplacedError: another run was first; this one changed nothing.
        TableRolledBackError: the key snapshot is ahead of the history.
        TableMismatchError: a foreign writer changed the key snapshot.
        ForeignHistoryError: the stream's table was replaced by an older copy since the last build.
        CorruptDataError, UnavailableError: a table cannot be read.
    """
    if history.is_encrypted:
        raise InvalidRequestError(
            f"the table {history.uri} is encrypted, and a key snapshot would have its records in "
            "plaintext: read with latest=True, which takes the newest records from the history"
        )
    # Rows that no commit of ours has an account of are not used.
    distrusted = prove_latest(base, table.store)
    log = Lake.open(history.uri, cluster=history.cluster).table_at(history.uri).store
    if not is_of_history(base, table.store, log):
        distrusted = frozenset(base.ranges)
    plans = plan(base, history, _sizes(spark, base, history, distrusted), distrusted=distrusted)
    if not plans:
        return _outcome(base, base, [], (), 0)
    touched = _touched(spark, history, plans)
    removed = [file for one in plans for file in one.removed(touched.get(one.partition, ()))]
    records_read = sum(len(one.to_read) for one in plans)
    progress("rewriting", offsets=records_read, files=len(removed))
    with translated():
        rows = _rows(spark, base, history, plans, removed)
        written = _written(spark, rows, table.store, plans, keys_from)
    now_us = time.time_ns() // 1000
    version = table.replace_files(
        base,
        removed=removed,
        added=[file.new_file(modified_us=now_us) for file in written],
        moves={one.partition: one.new for one in plans},
        data_change=True,
        commit_id=uuid.uuid4().hex,
        made_of=made_of(history, commit_digest(log, history.version)),
    )
    if version % _CHECKPOINT_COMMITS == 0:
        table.checkpoint()
    now = table.snapshot(version)
    prove_latest(now, table.store)
    return _outcome(base, now, written, removed, records_read)


def bucket_column(plans: Sequence[PartitionPlan]) -> str:
    """Return the SQL expression of a row's bucket; it equals ``tiering.keys.plan.bucket_of``."""
    cases = " ".join(f"WHEN {one.partition} THEN {one.buckets_count}" for one in plans)
    return f"cast(pmod(crc32(`key`), CASE `partition` {cases} END) AS int)"


def history_rows(
    spark: SparkSession, history: TableSnapshot, ranges: Mapping[int, OffsetRange]
) -> DataFrame:
    """Return the records with a key in some ranges of the stream's table, at this version."""
    within = " OR ".join(
        f"(`partition` = {number} AND `offset` >= {wanted.start} AND `offset` < {wanted.end})"
        for number, wanted in ranges.items()
    )
    rows = table_at(spark, history.uri, history.version, snapshot=history)
    return rows.where(within or "false").where("`key` IS NOT NULL")


def _outcome(
    base: TableSnapshot,
    now: TableSnapshot,
    written: Sequence[BucketFile],
    removed: Sequence[DataFile],
    records_read: int,
) -> Advance:
    return Advance(
        version=now.version,
        ranges=now.ranges,
        records_read=records_read,
        records_count=sum(file.records_count or 0 for file in now.files),
        files_added=len(written),
        files_removed=len(removed),
        files_kept=len(base.files) - len(removed),
        bytes_added=sum(file.size_bytes for file in written),
    )


def _sizes(
    spark: SparkSession, base: TableSnapshot, history: TableSnapshot, distrusted: Collection[int]
) -> dict[int, int]:
    """Estimate, per partition, the bytes of the newest rows; a long history may have few keys."""
    from pyspark.sql import functions  # noqa: PLC0415  (importing this stays free)

    plans = plan(base, history, {}, distrusted=distrusted)
    ranges = {one.partition: one.to_read for one in plans}
    sizes = {number: _bytes_of(history.files, number, part) for number, part in ranges.items()}
    large = {number: ranges[number] for number, size in sizes.items() if size > BUCKET_BYTES}
    if large:
        counted = (
            history_rows(spark, history, large)
            .groupBy("partition")
            .agg(functions.approx_count_distinct("key").alias("keys"))
            .collect()
        )
        keys = {row["partition"]: row["keys"] for row in counted}
        for number, part in large.items():
            share = min(1.0, 1.1 * keys.get(number, 0) / max(1, len(part)))
            sizes[number] = int(sizes[number] * share)
    return sizes


def _bytes_of(files: Iterable[DataFile], partition: int, wanted: OffsetRange) -> int:
    total = 0.0
    for file in files:
        if file.partition != partition:
            continue
        if file.min_offset is None or file.end_offset is None:
            total += file.size_bytes
            continue
        shared = min(file.end_offset, wanted.end) - max(file.min_offset, wanted.start)
        total += file.size_bytes * max(0, shared) / max(1, file.end_offset - file.min_offset)
    return int(total)


def _touched(
    spark: SparkSession, history: TableSnapshot, plans: Sequence[PartitionPlan]
) -> dict[int, set[int]]:
    """Return the buckets of the new keys, for partitions that are not rewritten as a whole."""
    partial = [one for one in plans if not one.whole]
    touched = {one.partition: {0} for one in partial if one.buckets_count == 1}
    many = [one for one in partial if one.buckets_count > 1]
    if many:
        with translated():
            found = (
                history_rows(spark, history, {one.partition: one.to_read for one in many})
                .selectExpr("`partition`", f"{bucket_column(many)} AS bucket")
                .distinct()
                .collect()
            )
        for row in found:
            touched.setdefault(row["partition"], set()).add(row["bucket"])
    return touched


def _rows(
    spark: SparkSession,
    base: TableSnapshot,
    history: TableSnapshot,
    plans: Sequence[PartitionPlan],
    removed: Sequence[DataFile],
) -> DataFrame:
    """Return all rows from which the newest per key are chosen for the new files."""
    columns = list(ROW_COLUMNS)
    rows = history_rows(spark, history, {one.partition: one.to_read for one in plans})
    rows = rows.select(*columns)
    rebuilt = {one.partition for one in plans if one.rebuild}
    old = [file for file in removed if file.partition not in rebuilt]
    if old:
        kept = files_of(spark, base.uri, (file.path for file in old))
        rows = rows.union(kept.select(*columns))
    return rows


def _written(
    spark: SparkSession,
    rows: DataFrame,
    target: ObjectStore,
    plans: Sequence[PartitionPlan],
    keys_from: int | None,
) -> list[BucketFile]:
    """Distribute and sort the rows by bucket; the tasks write the files."""
    from pyspark.sql import functions  # noqa: PLC0415  (importing this stays free)

    buckets = {one.partition: one.buckets_count for one in plans}
    ends = {one.partition: int(one.new.end) for one in plans}
    store = StoreAddress.of(target)
    tasks = min(_TASKS_MAX, max(1, min(sum(buckets.values()), 4 * parallelism(spark))))

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_task(batches, store, buckets, ends, keys_from)

    found = (
        rows.withColumn("bucket", functions.expr(bucket_column(plans)))
        .repartition(tasks, "partition", "bucket")
        .sortWithinPartitions("partition", "bucket", "key", functions.desc("offset"))
        .select("partition", "bucket", *FILE_SCHEMA.names)
        .mapInArrow(write, _WRITTEN_DDL)
        .collect()
    )
    return [BucketFile(**row.asDict()) for row in found]


def write_task(
    batches: Iterator[pa.RecordBatch],
    address: StoreAddress,
    buckets: Mapping[int, int],
    ends: Mapping[int, int],
    keys_from: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Write the files of one task; runs on an executor."""
    import pyarrow as pa  # noqa: PLC0415  (importing this stays free)

    try:
        for file in write_buckets(
            batches, address.open(), buckets=buckets, ends=ends, keys_from=keys_from
        ):
            yield pa.RecordBatch.from_pylist([asdict(file)], schema=_written_schema())
    except HeadwaterError as error:
        raise annotate(error) from None


def _written_schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    types = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
    pairs = (item.split() for item in _WRITTEN_DDL.split(", "))
    return pa.schema([pa.field(name, types[kind]) for name, kind in pairs])
