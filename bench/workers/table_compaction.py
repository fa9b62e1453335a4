"""Compacts a table of its own by keys, timed: ``bench.workers.table_compaction JSON``.

The process does nothing else, so its CPU time is the cost of one pass: read the keys, then read all
rows, compare them with their digests, and write and check what is left. The table is in a folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.codec.schema import FILE_SCHEMA
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream, StreamConfig
from tiering.read.lake import Lake
from tiering.ship.key_compaction.compaction_plan import plan_key_compaction
from tiering.ship.key_compaction.table_pass import KeyCompactionPass
from tiering.ship.segment_writer import SegmentPlace, write_rows
from tiering.store.location import StoreConfig
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.ledger import Ledger, encode_ranges
from tiering.table.table import NewFile

_UUID: Final = StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10")
_OBJECT_BYTES: Final = 128 * 2**20


def main(arguments: list[str]) -> int:
    """Fill a table, compact it, and print the result."""
    wanted = json.loads(arguments[0])
    with tempfile.TemporaryDirectory(dir=wanted["folder"]) as folder:
        stream = Stream(
            name="s",
            uuid=_UUID,
            config=StreamConfig(subject="s", history="compact"),
            created_us=1,
            table_name="s",
        )
        table = Lake.open(StoreConfig.from_env(folder), cluster="bench").table(stream)
        table.create()
        rows_bytes = sum(_ship(table, number, wanted) for number in range(wanted["files"] + 1))
        print(json.dumps(_compact(table, rows_bytes)), flush=True)
    return 0


def _ship(table: DeltaStreamTable, number: int, wanted: dict[str, Any]) -> int:
    """Add a file, as a shipper does; return the bytes of its rows."""
    count, snapshot = wanted["rows"], table.snapshot()
    moved = OffsetRange(Offset(number * count), Offset((number + 1) * count))
    rows = _rows(number, moved, wanted)
    place = SegmentPlace(
        cluster="bench",
        partition=PartitionId(_UUID, PartitionNumber(0)),
        subject="s",
        path=f"partition=0/{number}.parquet",
    )
    written = write_rows(iter(rows.to_batches(64 * 1024)), moved, place)
    entry = written.entry
    table.store.put_if_absent(entry.path, written.body, crc32c=entry.crc32c)
    file = NewFile(
        path=entry.path,
        size_bytes=entry.size_bytes,
        partition=0,
        modified_us=1,
        stats_json=written.stats_json,
    )
    version = table.commit(
        snapshot, [file], {0: moved}, commit_id=entry.path, ranges_json=encode_ranges([entry])
    )
    Ledger(table.store).put(entry.at_version(version))
    return int(rows.nbytes)


def _rows(seed: int, offsets: OffsetRange, wanted: dict[str, Any]) -> pa.Table:
    """Return records with keys, most of which come often (Zipf)."""
    rng, count, size = np.random.default_rng(seed), len(offsets), wanted["size"]
    chosen = np.minimum(rng.zipf(1.2, count) - 1, wanted["keys"] - 1)
    blob = rng.bytes(count * size)
    known = {
        "offset": pa.array(np.arange(offsets.start, offsets.end)),
        "partition": pa.array(np.zeros(count, np.int32)),
        "timestamp": pa.array(np.full(count, 1, np.int64)).cast(
            FILE_SCHEMA.field("timestamp").type
        ),
        "leader_epoch": pa.array(np.ones(count, np.int64)),
        "subject": pa.array(["s"] * count),
        "key": pa.array([b"customer-%010d" % one for one in chosen.tolist()], pa.binary()),
        "value": pa.array([blob[at : at + size] for at in range(0, count * size, size)]),
    }
    columns = [
        known[field.name].cast(field.type) if field.name in known else pa.nulls(count, field.type)
        for field in FILE_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)


def _compact(table: DeltaStreamTable, rows_bytes: int) -> dict[str, Any]:
    snapshot = table.snapshot()
    plan = plan_key_compaction(snapshot, 0, limit=snapshot.cold_end(0), dirty_percent=1)
    assert plan is not None, "all of it is new"
    work = KeyCompactionPass(
        snapshot, table.store, plan, tombstones_end=Offset(0), object_bytes=_OBJECT_BYTES
    )
    start, start_cpu, longest_s = time.perf_counter(), time.process_time(), 0.0
    for took_s in _timed(work.steps()):
        longest_s = max(longest_s, took_s)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    share = plan.rows_count / int(snapshot.cold_end(0))
    return {
        "rows_bytes": int(rows_bytes * share),
        "file_bytes": sum(file.size_bytes for file in plan.files),
        "records": plan.rows_count,
        "left": work.left_count,
        "longest_step_ms": longest_s * 1000,
        "seconds": seconds,
        "cpu_s": cpu_s,
    }


def _timed(steps: Iterator[None]) -> Iterator[float]:
    """Yield how long each step took."""
    while True:
        began = time.perf_counter()
        try:
            next(steps)
        except StopIteration:
            return
        yield time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
