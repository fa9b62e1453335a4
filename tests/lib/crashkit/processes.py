"""The broker as a child process that may die at any time, and what it needs around it.

Every child is ended by its own handle, and by the kernel when this process dies. Ports stay the
same over restarts, as they do in a real deployment.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from broker.errors import HeadwaterError
from clusterkit import forked_brokers
from freezing import freeze
from headwater.client import Client
from headwater.local import embedded

_SHIM = Path(embedded.__file__).with_name("exec_with_parent.py")
# This process sets no limit of its own for its child: it may hold more files than that already.
_LIMITED = ("sh", "-c", 'ulimit -n "$0" && exec "$@"')
READY_TIMEOUT_S = 120.0  # on a busy machine; an end is noticed at once
_POLL_S = 0.02


class BrokerProcess:
    """One broker over many lives."""

    def __init__(
        self,
        folder: Path,
        *,
        nats_url: str,
        lake: str,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        data_dir: Path | None = None,
        forked: bool = True,
        descriptors_max: int | None = None,
    ) -> None:
        """Plan a broker. A forked one starts with less CPU than ``python -m broker``, its twin.

        With ``descriptors_max`` it may open so many files, from its first instruction on.
        """
        assert not (forked and descriptors_max), "a limit is set by a process of its own"
        self._forked = forked
        self._limit = [] if descriptors_max is None else [*_LIMITED, str(descriptors_max)]
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir or folder / "data"
        self.log_path = folder / "broker.log"
        self.flight_port, self.http_port = embedded.free_port(), embedded.free_port()
        self.url = f"grpc://127.0.0.1:{self.flight_port}"
        self._environment = dict(environment or {})
        self._config_path = folder / "broker.toml"
        self._process: subprocess.Popen[bytes] | None = None
        sections: dict[str, dict[str, Any]] = {
            "node": {"data_dir": str(self.data_dir)},
            "nats": {"url": nats_url},
            "flight": {"port": self.flight_port},
            "http": {"port": self.http_port},
            "lake": {"uri": lake, "check_interval_ms": 100, "expiry_interval_ms": 200},
            "log": {"level": "info", "format": "json"},
        }
        for name, values in (settings or {}).items():
            sections.setdefault(name, {}).update(values)
        self._config_path.write_text(_toml(sections))

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs. Negative: by that signal."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process; returns at once."""
        assert self._process is None or self._process.poll() is not None, "it is running"
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("HEADWATER_")
        }
        environment.update(self._environment)
        command = [sys.executable, "-m", "broker", "--config", str(self._config_path)]
        if self._forked:
            self._process = forked_brokers.start(command, self.log_path, environment)
            return
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid())]
        with self.log_path.open("ab") as sink:
            self._process = subprocess.Popen(
                [*self._limit, *shim, *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Block until the broker serves; return the seconds it took.

        Raises:
            RuntimeError: it ended, or is not ready in time; with the end of its log.
        """
        began_s = time.monotonic()
        while not self.ready():
            if self.exit_code is not None:
                raise RuntimeError(f"the broker ended with {self.exit_code}:\n{self.log_tail()}")
            if time.monotonic() > began_s + timeout_s:
                raise RuntimeError(f"not ready after {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def wait_answering(self, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Block until the broker answers, though a log of it may have failed, or has ended.

        Returns whether it answers.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self.exit_code is None:
            with suppress(HeadwaterError), Client(self.url) as client:
                client.streams()
                return True
            time.sleep(_POLL_S)
        assert self.exit_code is not None, f"no answer in {timeout_s:.0f} s:\n{self.log_tail()}"
        return False

    def ready(self) -> bool:
        """Tell whether the broker says that it serves."""
        return http_get(self.http_port, "/readyz")[0] == 200

    def wait_unready(self, reason: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Block until the broker says that it does not serve, for a reason with this word."""
        deadline_s = time.monotonic() + timeout_s
        told = ""
        while time.monotonic() < deadline_s:
            status, told = http_get(self.http_port, "/readyz")
            if status not in (200, None) and reason in told:
                return
            time.sleep(_POLL_S)
        raise AssertionError(f"no {reason!r} in {told!r}:\n{self.log_tail()}")

    def wait_ready_saying(self, *words: str, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Block until it is ready and names each of these as missing, or nothing; return it."""
        deadline_s = time.monotonic() + timeout_s
        told = ""
        while time.monotonic() < deadline_s:
            status, told = http_get(self.http_port, "/readyz")
            lines = told.splitlines()[1:]
            is_said = len(lines) == len(words) and all(map(str.__contains__, lines, words))
            if status == 200 and is_said:
                return told
            time.sleep(_POLL_S)
        raise AssertionError(f"not {words} in {told!r}:\n{self.log_tail()}")

    def kill(self) -> None:
        """End it as a power cut would, as far as the kernel lets us. Blocks until it is gone."""
        assert self._process is not None, "the broker was never started"
        self._process.kill()
        self._process.wait()

    def stop_within(self, timeout_s: float) -> bool:
        """Ask it to end, and kill it if it has not by then; tell whether it ended by itself."""
        assert self._process is not None, "the broker was never started"
        self._process.terminate()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        assert code == 0, f"asked to end, it ended with {code}:\n{self.log_tail()}"
        return True

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return the memory that the process has in RAM."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def log_events(self, name: str) -> list[dict[str, Any]]:
        """Return the structured log events of this name, oldest first."""
        found = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            if f'"{name}"' in line and line.startswith("{"):
                body = json.loads(line)
                if body.get("event") == name:
                    found.append(body)
        return found


def http_get(port: int, path: str, *, timeout_s: float = 60.0) -> tuple[int | None, str]:
    """Return status and text of one request to the loopback; status None when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with closing(connection):
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return None, ""


def _toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return TOML; JSON's strings, numbers and booleans are TOML's as well."""
    lines = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"
