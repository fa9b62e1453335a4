"""Brokers as forked children: each starts in milliseconds, for its program is loaded already.

A case forks its spawner before it has a thread, and lets it fork every broker that it needs. A
broker is a process of its own, in the case's process group: it can be killed at any moment, and
ends with its case. What it prints is in its log.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.config import (
    BrokerConfig,
    FlightConfig,
    HttpConfig,
    LakeConfig,
    LoggingConfig,
    NatsConfig,
    NodeConfig,
)
from broker.process import daemon
from freezing import freeze

_PR_SET_PDEATHSIG: Final = 1
_LINE_BYTES_MAX: Final = 64 * 1024
_WAIT_S: Final = 60.0  # for a start or an end, on a busy machine


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a broker: its exit code, negative for a signal, and its last log line."""

    code: int
    error: str  # class of the error that kept it from starting; "" if none
    reason: str
    traceback: str  # the last one in its log; "" if none

    @property
    def is_crash(self) -> bool:
        """Tell whether it ended by a bug: neither asked, nor refusing by name."""
        return bool(self.traceback) or (self.code not in (0, -signal.SIGKILL) and not self.error)


class Spawner:
    """Forks brokers on request; one for each case, made while the case has a single thread."""

    def __init__(self) -> None:
        ask_read, self._ask = os.pipe()
        self._answer, answer_write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            os.close(self._answer)
            _die_with_parent()
            _serve(ask_read, answer_write)
        os.close(ask_read)
        os.close(answer_write)

    def start(self, data: Path, lake: Path, log: Path, *, nats_url: str = "") -> Broker:
        """Start a broker; returns at once. Blocks only for the fork."""
        ready = log.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        os.mkfifo(ready)
        ready_read = os.open(ready, os.O_RDONLY | os.O_NONBLOCK)
        asked = {"data": str(data), "lake": str(lake), "log": str(log), "nats": nats_url}
        log_start = log.stat().st_size if log.exists() else 0  # before the broker can write to it
        os.write(self._ask, json.dumps({**asked, "ready": str(ready)}).encode() + b"\n")
        pid = int(_line(self._answer))
        return Broker(self, pid, ready_read, log, log_start)

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return a broker's exit code once it has ended, None when it has not in time. Blocks."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            pass
        else:
            try:
                if not select.select([handle], [], [], timeout_s)[0]:
                    return None
            finally:
                os.close(handle)
        os.write(self._ask, json.dumps({"wait": pid}).encode() + b"\n")
        return int(_line(self._answer))


class Broker:
    """One life of one broker."""

    def __init__(self, spawner: Spawner, pid: int, ready: int, log: Path, log_start: int) -> None:
        self._spawner, self.pid, self._ready, self.log = spawner, pid, ready, log
        self._log_start = log_start
        self._code: int | None = None
        self.url = ""

    def wait_ready(self, timeout_s: float = _WAIT_S) -> bool:
        """Return True once it serves, False when it has ended, and raise TimeoutError else."""
        deadline_s = time.monotonic() + timeout_s
        text = b""
        while time.monotonic() < deadline_s:
            if select.select([self._ready], [], [], 0.01)[0]:
                got = os.read(self._ready, 100)
                text += got
                if text.endswith(b"\n"):
                    self.url = f"grpc://127.0.0.1:{int(text)}"
                    return True
            if self.has_ended():
                return False
        raise TimeoutError(f"the broker did not start within {timeout_s:.0f} s")

    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        if self._code is None:
            self._code = self._spawner.wait(self.pid, 0)
        return self._code is not None

    def kill(self) -> Ended:
        """End it at once. Blocks."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self._ended(_WAIT_S)

    def stop(self, timeout_s: float = _WAIT_S) -> Ended:
        """Ask it to end; raises TimeoutError when it does not."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return self._ended(timeout_s)

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def ended(self) -> Ended:
        """Return how it ended; only once it has."""
        return self._ended(_WAIT_S)

    def _ended(self, timeout_s: float) -> Ended:
        if self._code is None:
            self._code = self._spawner.wait(self.pid, timeout_s)
        if self._code is None:
            raise TimeoutError(f"the broker did not end within {timeout_s:.0f} s")
        return _read_log(self._code, self.events_text())

    def events_text(self) -> str:
        """Return what this life has written to its log so far."""
        with self.log.open("rb") as source:
            source.seek(self._log_start)
            return source.read().decode(errors="replace")

    def tracebacks(self) -> list[str]:
        """Return the untyped errors that its log shows so far."""
        return _tracebacks(self.events_text())


def _read_log(code: int, text: str) -> Ended:
    error = reason = ""
    for line in text.splitlines():
        if '"start_failed"' in line:
            body = _json(line)
            error, reason = str(body.get("error", "")), str(body.get("reason", ""))
    found = _tracebacks(text)
    return Ended(code, error, reason, found[-1] if found else "")


def _tracebacks(text: str) -> list[str]:
    """Return tracebacks in a log, as structured events and as Python prints them."""
    found = []
    for line in text.splitlines():
        if line.startswith("{") and "Traceback (most recent call last)" in line:
            body = _json(line)
            told = str(body.get("exception", "")).strip().splitlines()
            found.append(f"{body.get('event')}: {told[-1] if told else ''}")
    plain = [line for line in text.splitlines() if not line.startswith("{")]
    joined = "\n".join(plain)
    if "Traceback (most recent call last)" in joined:
        found.append(joined[joined.rindex("Traceback") :][-2000:])
    return found


def _json(line: str) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


# ---------------------------------------------------------------------------- in the spawner


def _serve(ask: int, answer: int) -> None:
    """Fork brokers and say how they ended, until the case closes its pipe. Never returns."""
    codes: dict[int, int] = {}
    while line := _line(ask):
        body = json.loads(line)
        if "wait" in body:
            pid = body["wait"]
            if pid not in codes:
                codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(answer, b"%d\n" % codes[pid])
            continue
        pid = os.fork()
        if pid == 0:
            os.close(ask)
            os.close(answer)
            _be_broker(body)
        os.write(answer, b"%d\n" % pid)
    os._exit(0)


def _be_broker(asked: dict[str, Any]) -> None:
    """Be a broker, and end as one. Never returns."""
    code = 71
    _die_with_parent()
    sink = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    try:
        code = daemon.run(config_of(asked), on_ready=lambda at: _tell(asked["ready"], at))
    except BaseException:  # noqa: BLE001  # what Python would print
        traceback.print_exc()
        code = 1
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _tell(ready: str, at: daemon.ServingAddresses) -> None:
    descriptor = os.open(ready, os.O_WRONLY)
    os.write(descriptor, b"%d\n" % at.flight_port)
    os.close(descriptor)


def config_of(asked: dict[str, Any]) -> BrokerConfig:
    """Return the configuration of a broker of a case."""
    return BrokerConfig(
        node=NodeConfig(data_dir=asked["data"], commit_threads=2),
        nats=NatsConfig(url=asked["nats"]),
        flight=FlightConfig(port=0),
        http=HttpConfig(port=0),
        lake=LakeConfig(uri=asked["lake"], check_interval_ms=100, upload_timeout_ms=10_000),
        log=LoggingConfig(level="info", format="json"),
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _line(descriptor: int) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        got = os.read(descriptor, _LINE_BYTES_MAX)
        if not got:
            return b""
        text += got
    return text
