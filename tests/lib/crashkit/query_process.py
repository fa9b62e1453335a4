"""A Spark driver as a child process that may die at any time, with its JVM and its workers.

A spare may wait beside it, its JVM up and no query in it: the next life begins sooner with it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from headwater.local import embedded

_SHIM: Final = Path(embedded.__file__).with_name("exec_with_parent.py")
_WORKER_SITE: Final = Path(__file__).with_name("worker_site")
_WORKER: Final = "pyspark.worker"
_PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class QueryProcess:
    """The query's driver with its JVM and workers, over many lives."""

    def __init__(self, log_path: Path, environment: Mapping[str, str]) -> None:
        self.log_path = log_path
        self._environment = {**os.environ, **environment}
        paths = [str(_WORKER_SITE), self._environment.get("PYTHONPATH", "")]
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._process: subprocess.Popen[bytes] | None = None
        self._spare: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """How the driver ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self, command: list[str], go: str = "") -> None:
        """Start the spare, or a new one, with one line on its standard input. Returns at once."""
        spare, self._spare = self._spare, None
        fresh = spare is None or spare.poll() is not None
        self._process = self._spawn(command) if fresh or spare is None else spare
        assert self._process.stdin is not None, "it was made with a pipe"
        with suppress(OSError), self._process.stdin as pipe:
            pipe.write(f"{go}\n".encode())

    def keep_spare(self, command: list[str]) -> None:
        """Start a driver that waits for its line, unless one does."""
        if self._spare is None or self._spare.poll() is not None:
            self._spare = self._spawn(command)

    @property
    def spare_ready(self) -> bool:
        """Whether a spare waits for its line."""
        spare = self._spare
        if spare is None or spare.poll() is not None:
            return False
        return f'{{"event": "ready", "pid": {spare.pid}}}' in self.log_path.read_text()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a driver in a session of its own, so that all of it can be killed."""
        with self.log_path.open("ab") as sink:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *command],
                stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the driver, its JVM and every worker at once; wait until they are gone."""
        assert self._process is not None, "the query was never started"
        _kill_all(self._process)

    def kill_workers(self, dice: random.Random) -> bool:
        """Kill the Python processes that tasks run in, or one of them; tell whether one was."""
        return self._kill_some(_WORKER, dice)

    def kill_planner(self, dice: random.Random) -> bool:
        """Kill the Python process that plans the query's batches; tell whether there was one."""
        return self._kill_some(_PLANNER, dice)

    def stop(self, *, patience_s: float = 30.0) -> None:
        """Ask it to end, wait for all of it, and see to it that it does; the spare ends at once."""
        if self._spare is not None:
            _kill_all(self._spare)
            self._spare = None
        if self._process is None or self._process.poll() is not None:
            return
        family = _family(self._process)
        self._process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + patience_s
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        psutil.wait_procs(family, timeout=max(0.0, deadline_s - time.monotonic()))
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        _kill_all(self._process)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines it printed."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _kill_some(self, module: str, dice: random.Random) -> bool:
        assert self._process is not None, "the query was never started"
        found = [one for one in _family(self._process) if _runs(one, module)]
        if found and dice.random() < 0.5:
            found = [dice.choice(found)]
        for one in found:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        return bool(found)


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    family = _family(process)
    process.kill()
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=30)
    process.wait(30)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return all of its session: workers whose daemon was killed are nobody's children any more."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(pid) == process.pid != pid:
                found.append(psutil.Process(pid))
    return found


def _runs(process: psutil.Process, module: str) -> bool:
    with suppress(psutil.NoSuchProcess):
        return module in process.cmdline()
    return False
