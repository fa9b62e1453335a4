"""A Spark driver as a child process that may die at any time, with its JVM and its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from headwater import embedded

_SHIM: Final = Path(embedded.__file__).with_name("exec_with_parent.py")


class QueryProcess:
    """The query's driver with its JVM and workers, over many lives."""

    def __init__(self, folder: Path, command: list[str], environment: Mapping[str, str]) -> None:
        self.log_path = folder / "query.log"
        self._command = command
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """How the driver ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it in a session of its own, so that all of it can be killed."""
        with self.log_path.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the driver, its JVM and every worker at once; wait until they are gone."""
        assert self._process is not None, "the query was never started"
        family = self._family()
        self._process.kill()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=30)
        self._process.wait(30)

    def kill_workers(self) -> bool:
        """Kill the Python processes that tasks run in; tell whether there were any."""
        killed = False
        for one in self._family():
            with suppress(psutil.NoSuchProcess):
                words = one.cmdline()
                if "pyspark.daemon" in words and "pyspark.worker" in words:
                    one.kill()
                    killed = True
        return killed

    def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            self.kill()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines it printed."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None, "the query was never started"
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []
