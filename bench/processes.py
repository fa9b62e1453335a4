"""The child processes of a run: servers and load generators, each with a handle that ends it.

The kernel kills every child when the run dies (headwater/local/exec_with_parent.py), so even an
interrupted benchmark leaves no processes behind. Logs are kept in the run's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from headwater.local import exec_with_parent
from headwater.local.embedded import http_status

_SHIM: Final = exec_with_parent.__file__
_STOP_TIMEOUT_S: Final = 60.0
_LOAD_TIMEOUT_S: Final = 1800.0
_TAIL_BYTES: Final = 1500


class BenchError(Exception):
    """A program did not start, did not answer, or gave an unexpected result."""


class Child:
    """A server of ours or of a peer. A context manager that stops the server."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Start ``command``; its output goes to ``log``."""
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                with_shim(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise BenchError if the process has ended."""
        if self.process.poll() is not None:
            raise BenchError(f"{self.name} ended with {self.process.returncode}: {self.tail()}")

    def rss_bytes(self) -> int:
        """Return the resident memory of the process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """Return the user and system CPU time of the process."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """Send SIGTERM and wait; after a minute kill the process."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait."""
        self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """Return the end of the log."""
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def wait_http(child: Child, port: int, path: str, *, timeout_s: float = 60.0) -> None:
    """Wait until ``path`` answers 200; raises BenchError at the timeout or if the child ends."""
    deadline = time.monotonic() + timeout_s
    while http_status(port, "GET", path) != 200:
        child.check()
        if time.monotonic() > deadline:
            raise BenchError(f"{child.name} was not ready after {timeout_s} s: {child.tail()}")
        time.sleep(0.005)


def run_json(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = _LOAD_TIMEOUT_S,
) -> dict[str, Any]:
    """Run a program to its end and return the JSON object in its last line."""
    done = _run(command, env, timeout_s)
    if done.returncode:
        raise _failed(command, done.stderr or done.stdout)
    return _last_object(command, done.stdout)


def run_text(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 600.0
) -> str:
    """Run a program to its end and return its stdout and stderr."""
    done = _run(command, env, timeout_s)
    if done.returncode:
        raise _failed(command, done.stdout + done.stderr)
    return done.stdout + done.stderr


def _run(
    command: Sequence[str], env: Mapping[str, str] | None, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        with_shim(command),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
        check=False,
    )


def _failed(command: Sequence[str], printed: str) -> BenchError:
    return BenchError(f"{' '.join(command)} failed: {printed[-_TAIL_BYTES:]}")


class Load:
    """A load generator (bench/workers/load.py) that is ready and waits for :meth:`go`."""

    def __init__(
        self, kind: str, *, env: Mapping[str, str] | None = None, **arguments: Any
    ) -> None:
        """Start the process and wait until it has prepared its data and its connection.

        ``env`` is added to its environment; its command line is for everybody to see.
        """
        command = [sys.executable, "-m", "bench.workers.load", kind, json.dumps(arguments)]
        self._command = command
        self._process = subprocess.Popen(
            with_shim(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            _, errors = self._process.communicate()
            raise BenchError(f"load {kind} did not get ready: {errors[-_TAIL_BYTES:]}")

    def go(self) -> None:
        """Start the load."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self, timeout_s: float = _LOAD_TIMEOUT_S) -> dict[str, Any]:
        """Wait for the end of the load and return its result."""
        try:
            printed, errors = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        if self._process.returncode:
            raise BenchError(f"load failed: {errors[-_TAIL_BYTES:]}")
        return _last_object(self._command, printed)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


def run_loads(loads: Sequence[Load]) -> list[dict[str, Any]]:
    """Start all loads at once and return their results."""
    with _killed_on_error(loads):
        for load in loads:
            load.go()
        return [load.result() for load in loads]


@contextlib.contextmanager
def _killed_on_error(loads: Sequence[Load]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for load in loads:
            load.kill()
        raise


def span_s(results: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds from the first start to the last end of several loads.

    Their times are of the monotonic clock, which all processes of one machine share.
    """
    start = min(one["start_ns"] for one in results)
    return float(max(one["end_ns"] for one in results) - start) / 1e9


def with_shim(command: Sequence[str]) -> list[str]:
    """Return the command of a child that the kernel kills when this process ends."""
    program = shutil.which(command[0])
    if program is None:
        raise BenchError(f"{command[0]} is not on PATH; install it")
    return [sys.executable, "-I", "-S", _SHIM, str(os.getpid()), program, *command[1:]]


def _last_object(command: Sequence[str], printed: str) -> dict[str, Any]:
    lines = printed.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError) as cause:
        raise BenchError(f"{' '.join(command)} printed no result: {printed[-300:]}") from cause
    if not isinstance(found, dict):
        raise BenchError(f"{' '.join(command)} printed {found!r}")
    return found
