"""Planning: the time of a unified read before its first row, by the number of files of its table.

Each size runs in a separate process, so that the memory belongs to that size. Cold is the first
read of a session, which loads the table's log; warm is every later read.
"""

from __future__ import annotations

import json
import shutil
import sys
from statistics import median
from typing import Final

from bench.processes import run_json
from bench.session import Session

_FILES: Final = (10, 1_000, 100_000)


def run(session: Session) -> None:
    """Build one table per size and plan reads of it."""
    add = session.recorder.add
    for files in _FILES:
        folder = session.work / f"planning-{files}"
        wanted = {"files": files, "folder": str(folder), "repeat": session.repeat}
        found = run_json([sys.executable, "-m", "bench.workers.planning", json.dumps(wanted)])
        case = f"planning/{files}"
        add(f"{case}/cold", sum(found["cold"].values()), "s", **found["cold"])
        for steps in found["warm"]:
            add(f"{case}/warm", sum(steps.values()), "s", **steps)
        for step in found["cold"]:
            add(f"{case}/{step}", median(steps[step] for steps in found["warm"]), "s")
        add(f"{case}/python_mib", found["python_mib"], "MiB")
        add(f"{case}/jvm_heap_mib", found["jvm_heap_mib"], "MiB")
        shutil.rmtree(folder, ignore_errors=True)
