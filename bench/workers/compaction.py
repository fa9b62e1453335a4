"""Compacts a log of its own, timed: ``bench.workers.compaction JSON``.

The process does nothing else, so its CPU time is the cost of key compaction: read and check the
segments twice, hash and compare keys, write and sync what is left.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.adapters.disk.files import DiskFiles
from broker.codec.record_batch import Preparer
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.storage.key_compaction.compaction_pass import ChosenSegment, CompactionPass
from broker.storage.log.partition_log import LogConfig, PartitionLog

_PARTITION: Final = PartitionId(
    StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(0)
)


def main(arguments: list[str]) -> int:
    """Fill a log, compact it, and print the result."""
    wanted = json.loads(arguments[0])
    with tempfile.TemporaryDirectory(dir=wanted["folder"]) as folder:
        files = DiskFiles(Path(folder))
        log = PartitionLog.open(files, "log", _PARTITION, LogConfig())
        _fill(log, wanted)
        print(json.dumps(_compact(log)), flush=True)
        log.close()
        files.close()
    return 0


def _fill(log: PartitionLog, wanted: dict[str, Any]) -> None:
    """Write batches of records with keys, most of which come often (Zipf)."""
    rng = np.random.default_rng(1)
    rows, size = wanted["rows"], wanted["size"]
    preparer = Preparer(pa.schema([("key", pa.binary()), ("value", pa.binary())]))
    names = [b"customer-%010d" % one for one in range(wanted["keys"])]
    for _ in range(wanted["batches"]):
        chosen = np.minimum(rng.zipf(1.2, rows) - 1, len(names) - 1)
        keys = (
            pa.array(names, pa.binary()).take(pa.array(chosen))
            if rows > 64
            else pa.array([names[one] for one in chosen.tolist()], pa.binary())
        )
        blob = rng.bytes(rows * size)
        values = pa.array([blob[at : at + size] for at in range(0, rows * size, size)], pa.binary())
        batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
        log.append([preparer.prepare(batch, now_us=1)], leader_epoch=LeaderEpoch(1), now_us=1)
    log.sync()
    log.seal_active(2)


def _compact(log: PartitionLog) -> dict[str, Any]:
    sealed = [one for one in log.segments() if one.sealed]
    chosen = [ChosenSegment(one.base_offset, one.end_offset, False) for one in sealed]
    work = CompactionPass(log, chosen, retried=())
    longest_s = 0.0
    start, start_cpu = time.perf_counter(), time.process_time()
    steps = work.steps()
    while True:
        began = time.perf_counter()
        try:
            made = next(steps)
        except StopIteration:
            break
        if made is not None:
            log.replace_segment(made)
        longest_s = max(longest_s, time.perf_counter() - began)
    took_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    return {
        "log_bytes": sum(one.size_bytes for one in sealed),
        "records": sealed[-1].end_offset,
        "left_bytes": sum(one.size_bytes for one in log.segments()),
        "removed": work.counts.removed_count,
        "parts": work.counts.parts,
        "longest_step_ms": longest_s * 1000,
        "seconds": took_s,
        "cpu_s": cpu_s,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
