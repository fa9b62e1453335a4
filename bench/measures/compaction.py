"""Key compaction of a local log, and of a table: how many bytes a core compacts in a second.

A process of its own writes a log of keyed records, most keys often, and compacts it: most
records are superseded. MiB count the bytes of the log before. The batches are those
of a busy producer, and of a quiet stream with one record each. Of a table they count the bytes of
its rows.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from bench.processes import run_json
from bench.session import Session

_LOG_BYTES: Final = 512 * 2**20
_TABLE_ROWS: Final = 200_000  # of each of the table's files
_CASES: Final = {  # records of a batch, bytes of a value, keys, bytes of a record in the log
    "100B": (1024, 100, 1_000_000, 140),
    "1KiB": (256, 1024, 200_000, 1100),
    "100B-single": (1, 100, 100_000, 450),
}


def run(session: Session) -> None:
    """Measure each case in turns."""

    def turn(_: int) -> None:
        for case, (rows, size, keys, record_bytes) in _CASES.items():
            batches = session.count(_LOG_BYTES // record_bytes, multiple=rows) // rows
            wanted = {
                "folder": str(session.work), "rows": rows, "size": size, "keys": keys,
                "batches": batches,
            }  # fmt: skip
            command = [sys.executable, "-m", "bench.workers.compaction", json.dumps(wanted)]
            found = run_json(command)
            mib = found["log_bytes"] / 2**20
            add = session.recorder.add
            add(f"compact/{case}/mib_per_core_s", mib / found["cpu_s"], "MiB/s", **found)
            add(f"compact/{case}/longest_step_ms", found["longest_step_ms"], "ms")
        rows = session.count(_TABLE_ROWS)
        wanted = {
            "folder": str(session.work), "rows": rows, "size": 100, "keys": 1_000_000, "files": 8,
        }  # fmt: skip
        command = [sys.executable, "-m", "bench.workers.table_compaction", json.dumps(wanted)]
        found = run_json(command)
        mib = found["rows_bytes"] / 2**20
        session.recorder.add(
            "compact_table/100B/mib_per_core_s", mib / found["cpu_s"], "MiB/s", **found
        )

    session.work.mkdir(parents=True, exist_ok=True)
    session.rounds({"ours": turn})
