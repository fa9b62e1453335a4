"""The other parts of the tour: a streaming query, a curated table, the latest view, the DAGs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_BATCH_RECORDS: Final = 120_000  # several batches, so that one of them begins in the table
_WAIT_S: Final = 120.0
_JOB_TIMEOUT_S: Final = 600
JOBS: Final = ("ingest", "backfill", "compact", "snapshot", "verify")
AIRFLOW_VARIABLE: Final = "DEMO_AIRFLOW"  # Airflow's command; `make demo` sets it


@dataclass(slots=True)
class StreamingSeam:
    """The batches of a streaming query, and the first batch that was not contiguous, if any."""

    batches: list[tuple[int, int]] = field(default_factory=list)  # [first, end) offsets
    records: int = 0
    broken: str | None = None

    @property
    def end(self) -> int:
        """First offset that was not read yet."""
        return self.batches[-1][1] if self.batches else 0


class PipelineError(Exception):
    """A step failed, or took too long."""


def stream_until(spark: Any, server: str, stream: str, end: int, scratch: Path) -> StreamingSeam:
    """Read a stream of one partition from earliest with Structured Streaming, up to ``end``.

    Counts every batch; a batch must begin where the one before ended.
    """
    seam, reached = StreamingSeam(), threading.Event()

    def count(rows: Any, _batch: int) -> None:
        found = rows.selectExpr("count(*)", "min(offset)", "max(offset)").collect()[0]
        if found[0] == 0:
            return
        first, last = int(found[1]), int(found[2])
        if first != seam.end or last - first + 1 != found[0]:
            seam.broken = f"a batch has {found[0]} rows of [{first}, {last}] after {seam.end}"
        seam.batches.append((first, last + 1))
        seam.records += int(found[0])
        if seam.end >= end:
            reached.set()

    query = (
        spark.readStream.format("headwater")
        .option("server", server)
        .option("subscribe", stream)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(_BATCH_RECORDS))
        .option("columns", "partition,offset")
        .load()
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(scratch / "streaming-checkpoint"))
        .start()
    )
    deadline_s = time.monotonic() + _WAIT_S
    try:
        while not reached.wait(0.2):
            if query.exception() is not None:
                raise PipelineError(f"the streaming query ended: {query.exception()}")
            if time.monotonic() > deadline_s:
                raise PipelineError(f"the streaming query reached only offset {seam.end}")
    finally:
        query.stop()
    if seam.broken is not None:
        raise PipelineError(seam.broken)
    return seam


def run_job(words: Sequence[str]) -> dict[str, Any]:
    """Run ``headwater job …`` as a child, as Airflow does; return its result."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater.cli.main", "job", *words, "--json"],
        capture_output=True, text=True, timeout=_JOB_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise PipelineError(f"headwater job {words[0]}: {done.stderr.strip()[-600:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def airflow_dags(scratch: Path) -> list[tuple[str, str]] | None:
    """Return id and file of every DAG that Airflow finds; None if Airflow is not installed."""
    command = os.environ.get(AIRFLOW_VARIABLE)
    if command is None:
        return None
    folder = Path(__file__).parents[2] / "airflow_dags"
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(scratch / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }

    def airflow(*words: str) -> str:
        done = subprocess.run(
            [command, *words], env=environment, capture_output=True, text=True,
            timeout=_JOB_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise PipelineError(f"airflow {' '.join(words)}: {done.stderr.strip()[-600:]}")
        return done.stdout

    airflow("db", "migrate")
    airflow("dags", "reserialize")
    listed = airflow("dags", "list", "--output", "json")
    found = json.loads(listed[listed.index("[") :])
    return sorted((dag["dag_id"], Path(dag["fileloc"]).name) for dag in found)
