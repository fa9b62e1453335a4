"""One streaming query of a campaign: how it is started, where it writes, how its copy is read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from crashkit import copies
from crashkit.running import count
from crashkit.stream_driver import MASTER, jvm_options, lean_settings
from crashkit.tier_watch import Checkpoint
from spark_jobs.jobs.job import EXIT_TRY_LATER

_ROW_COLUMNS: Final = (
    "partition,offset,timestamp,key,headers,subject,leader_epoch,reply_subject,correlation_id"
)


class StreamQuery:
    """One query with a folder, a checkpoint and a copy of its own."""

    def __init__(
        self, folder: Path, *, sink: str, server: str, stream: str, records_per_trigger: int
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self._copy = folder / "copy"
        self._sink, self._server, self._stream = sink, server, stream
        self._records_per_trigger = records_per_trigger

    def command(self, archive: Path, *, make: bool = False) -> list[str]:
        """Return the program to start, again and again."""
        if self._sink == "ingest":
            return self._ingest(jvm_options(str(archive), make=make))
        wanted = {
            "sink": self._sink,
            "server": self._server,
            "stream": self._stream,
            "archive": str(archive),
            "make_archive": make,
        }
        program = Path(__file__).with_name("stream_driver.py")
        return [sys.executable, str(program), json.dumps(wanted)]

    @property
    def has_spares(self) -> bool:
        """Whether the program waits to be told which query it runs."""
        return self._sink != "ingest"

    def go(self) -> str:
        """Return what a driver is told when it is to run this query."""
        return json.dumps(
            {
                "copy": str(self._copy),
                "checkpoint": str(self.checkpoint.folder),
                "records_per_trigger": self._records_per_trigger,
            }
        )

    def read(self) -> copies.Copied:
        """Return the committed rows, in commit order."""
        of = copies.files_of_sink if self._sink == "files" else copies.files_of_table
        return copies.read_copy(of(self._copy))

    def may_end(self, code: int, tail: str) -> str | None:
        """Say why a program may have ended by itself; None when it may not have."""
        if self._sink != "ingest":
            return None
        last = tail.splitlines()[-1][:120] if tail else ""
        return f"exit {code}: {last}" if code in {EXIT_TRY_LATER, 1} else None

    def _ingest(self, java_options: str) -> list[str]:
        settings = lean_settings(java_options)
        return [
            sys.executable, "-m", "headwater.cli.main", "job", "ingest",
            "--server", self._server, "--stream", self._stream, "--table", str(self._copy),
            "--format", "raw", "--row-columns", _ROW_COLUMNS,
            "--checkpoint", str(self.checkpoint.folder), "--trigger", "100ms",
            "--max-records-per-trigger", str(self._records_per_trigger), "--master", MASTER,
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        ]  # fmt: skip


def failures_in(log: Path) -> dict[str, int]:
    """Count the failures that drivers have told, by what Spark said."""
    counts: dict[str, int] = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"event": "failed"'):
            count(counts, _kind(json.loads(line)["error"]))
    return counts


def _kind(error: str) -> str:
    """Return what a message of Spark's says, without the numbers of the run."""
    text = error.rpartition("terminated with exception: ")[2].strip()
    return text.splitlines()[0][:120] if text else error[:120]
