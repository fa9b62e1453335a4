"""Plans a unified read of a table of N files: ``python -m bench.workers.planning JSON``.

The table is real, but its files are links to one small Parquet file, because planning uses names,
sizes and statistics and does not open files. Each step of a read before the first row is timed
separately: cold (the first read of this table) and warm. The session has read another table before,
because the time of a JVM's first query is not part of planning.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import headwater as hw
from broker.codec.checksum import crc32c
from broker.codec.schema import ROW_SCHEMA
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream, StreamConfig
from spark_jobs.read.scans import rows_of
from tiering.read.certify import certify_counts
from tiering.read.lake import Lake, kept_table
from tiering.ship.segment_writer import stats_json
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.ledger import LedgerEntry, encode_ranges
from tiering.table.table import NewFile, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UUID: Final = StreamUuid("7d5f7c0e-7b0a-4b8e-9a51-4a3c6a1f0001")
_FILES_PER_COMMIT: Final = 10_000
_WARM_UPS: Final = 5
_LINKS_MAX: Final = 30_000  # file systems allow about 65,000 links to a file
_STAMP_US: Final = 1_767_225_600_000_000


@dataclass(slots=True)
class Steps:
    """The seconds of each step of one read."""

    seconds: dict[str, float] = field(default_factory=dict)
    _at: float = field(default_factory=time.perf_counter)

    def done(self, step: str) -> None:
        """Note the end of a step."""
        now = time.perf_counter()
        self.seconds[step] = now - self._at
        self._at = now


def main(arguments: Sequence[str]) -> int:
    """Build the table, plan reads of it, and print one line of JSON."""
    wanted = json.loads(arguments[0])
    count, folder = int(wanted["files"]), Path(wanted["folder"])
    stream = Stream(
        name="plan",
        uuid=_UUID,
        namespace="default",
        table_name="plan",
        config=StreamConfig(subject="plan", partitions=1),
        created_us=1,
    )
    lake = Lake.open(folder / "lake", cluster="bench")
    folder_of_table = Path(lake.table_uri(stream).removeprefix("file://"))
    version = _build(lake.table(stream), folder_of_table, count)
    spark = hw.session("planning", "local[2]")
    _warm_up(spark, folder / "other")
    reads = []
    for _ in range(int(wanted["repeat"]) + 1):
        steps = Steps()
        table = kept_table(lake.table_uri(stream))
        snapshot = table.snapshot(version)
        steps.done("open")
        cut = _cut(snapshot, stream)
        steps.done("cut")
        certify_counts(snapshot, cut, table.store)
        steps.done("certify")
        rows = rows_of(
            spark, cut, ("partition", "offset", "value"), server="grpc://127.0.0.1:1", proved=True
        )
        rows._jdf.queryExecution().executedPlan()  # noqa: SLF001  (what an action does first)
        steps.done("plan")
        reads.append(steps.seconds)
    gateway: Any = spark.sparkContext._jvm  # noqa: SLF001
    jvm = gateway.java.lang.Runtime.getRuntime()
    jvm.gc()
    found = {
        "cold": reads[0],
        "warm": reads[1:],
        "python_mib": psutil.Process(os.getpid()).memory_info().rss / 2**20,
        "jvm_heap_mib": (jvm.totalMemory() - jvm.freeMemory()) / 2**20,
    }
    print(json.dumps(found), flush=True)
    spark.stop()
    return 0


def _warm_up(spark: SparkSession, path: Path) -> None:
    """Read a small table several times, because a session's first reads are not measured."""
    spark.range(1).write.format("delta").save(str(path))
    for _ in range(_WARM_UPS):
        spark.read.format("delta").option("versionAsOf", "0").load(str(path)).collect()


def _build(table: DeltaStreamTable, folder: Path, count: int) -> int:
    """Make the table; return its newest version."""
    snapshot = table.create()
    (folder / "partition=0").mkdir(parents=True, exist_ok=True)
    original = folder / "partition=0" / "0.parquet"
    links_left = _LINKS_MAX
    names = [field.name for field in ROW_SCHEMA if field.name != "partition"]
    schema = pa.schema([ROW_SCHEMA.field(name) for name in names])
    pq.write_table(schema.empty_table(), original)
    size, checksum = original.stat().st_size, crc32c(original.read_bytes())
    for first in range(0, count, _FILES_PER_COMMIT):
        end = min(count, first + _FILES_PER_COMMIT)
        files, entries = [], []
        for number in range(first, end):
            path = folder / "partition=0" / f"{number}.parquet"
            if number and links_left == 0:
                original, links_left = Path(shutil.copy(original, path)), _LINKS_MAX
            elif number:
                os.link(original, path)
                links_left -= 1
            entry = _entry(number, size, checksum)
            entries.append(entry)
            files.append(
                NewFile(
                    path=entry.path,
                    size_bytes=size,
                    partition=0,
                    modified_us=1_700_000_000_000_000,
                    stats_json=stats_json(entry),
                )
            )
        moves = {0: OffsetRange(Offset(first), Offset(end))}
        account = encode_ranges(entries)
        table.commit(snapshot, files, moves, commit_id=f"c{first}", ranges_json=account)
        snapshot = table.snapshot()
    table.checkpoint()
    return snapshot.version


def _entry(number: int, size: int, checksum: int) -> LedgerEntry:
    """Return the ledger entry of a file with one record."""
    return LedgerEntry(
        partition=0,
        start=Offset(number),
        end=Offset(number + 1),
        records_count=1,
        digest="0" * 64,
        first_leader_epoch=1,
        last_leader_epoch=1,
        min_timestamp_us=_STAMP_US,
        max_timestamp_us=_STAMP_US,
        path=f"partition=0/{number}.parquet",
        size_bytes=size,
        crc32c=checksum,
    )


def _cut(snapshot: TableSnapshot, stream: Stream) -> Cut:
    held = snapshot.ranges[0]
    part = PartitionCut(
        partition=0,
        start=held.start,
        cold_end=held.end,
        hot_end=held.end,
        leader_epoch=LeaderEpoch(1),
    )
    return Cut(
        cluster=snapshot.cluster,
        stream=stream.name,
        stream_uuid=stream.uuid,
        subject=stream.config.subject,
        table_uri=snapshot.uri,
        table_version=snapshot.version,
        partitions=(part,),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("bench"), expires_us=2),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
