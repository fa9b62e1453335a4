"""Brokers' processes that start without loading their modules: forked by one that has them.

Starting Python and loading the broker is most of the CPU of a test that starts brokers again and
again. What runs afterwards is the same program with the same file. Tests of the command and whole
campaigns (``make crash``, ``make chaos``) start brokers with ``python -m broker``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from headwater.local import embedded

_PROGRAM: Final = Path(__file__).with_name("fork_server.py")


def spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start ``python -m broker …`` as ``headwater.local.embedded.spawn`` does, but by a fork."""
    return start(command, log, os.environ)


def start(command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start ``python -m broker …`` in this environment; its output is appended to a file."""
    assert command[:3] == [sys.executable, "-m", "broker"], command
    server = _server(_python_settings(environment))
    process = ForkedProcess(server, command[3:], log, environment)
    return cast("subprocess.Popen[bytes]", process)


def _python_settings(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what Python takes from the environment as it starts: another server for another."""
    names = ("PYTHON", "LD_", "PLANTED_")
    return tuple(sorted(one for one in environment.items() if one[0].startswith(names)))


@functools.cache
def _server(settings: tuple[tuple[str, str], ...]) -> _ForkServer:
    return _ForkServer(dict(settings))


class _ForkServer:
    """The process that forks; it ends with this one."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._link, other = socket.socketpair()
        with other:
            os.set_inheritable(other.fileno(), True)
            shim = Path(embedded.__file__).with_name("exec_with_parent.py")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(shim), str(os.getpid()),
                 sys.executable, str(_PROGRAM), str(other.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], start_new_session=True,
                env={**os.environ, **settings},
            )  # fmt: skip
        self._lines = self._link.makefile("r")
        self._asking = threading.Lock()
        atexit.register(self._end)

    def ask(self, request: dict[str, Any]) -> int:
        """Return the server's answer. Blocks."""
        with self._asking:
            self._link.sendall(json.dumps(request).encode() + b"\n")
            return int(self._lines.readline())

    def _end(self) -> None:
        self._lines.close()
        self._link.close()
        self._process.kill()
        self._process.wait()


class ForkedProcess:
    """A broker's process: what tests use of ``subprocess.Popen``."""

    def __init__(
        self, server: _ForkServer, arguments: list[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        asked = {
            "arguments": arguments,
            "log": str(log.absolute()),
            "environment": dict(environment),
            "folder": str(Path.cwd()),
        }
        self._server = server
        self.pid = server.ask(asked)
        self.returncode: int | None = None
        self._handle = os.pidfd_open(self.pid)  # its pid stays its own until it is reaped
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Blocks.

        Raises:
            subprocess.TimeoutExpired: it has not ended in time.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("broker", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens once it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], timeout)[0]:
            with self._reaping:
                if self.returncode is None:
                    self.returncode = self._server.ask({"reap": self.pid})
        return self.returncode

    def __del__(self) -> None:
        os.close(self._handle)
