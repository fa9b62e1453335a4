"""A real nats-server for tests: on the loopback, ended by its own handle, restartable on its port.

Also :class:`RawNats`, a publisher that speaks the protocol over a plain socket: it can send what a
client library refuses to (damaged header blocks, several values for one header).
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headwater.local.embedded import LOOPBACK, free_port, nats_server_binary

_START_TIMEOUT_S = 60.0
_START_POLL_S = 0.02


class NatsProcess:
    """One nats-server process, core NATS only. A context manager."""

    def __init__(self, folder: Path, *, settings: str = "") -> None:
        """Choose a port; ``settings`` is added to the server's configuration file."""
        self.port = free_port()
        self.url = f"nats://{LOOPBACK}:{self.port}"
        self._config = folder / f"nats-{self.port}.conf"
        self._log = folder / f"nats-{self.port}.log"
        self._write(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server and wait until it greets a connection."""
        self._process = subprocess.Popen(
            [nats_server_binary(), "-c", str(self._config), "-l", str(self._log)]
        )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with socket.create_connection((LOOPBACK, self.port), timeout=1) as probe:
                    if probe.recv(4) == b"INFO":
                        return self
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline_s, "nats-server does not start"
                time.sleep(_START_POLL_S)

    def _write(self, settings: str) -> None:
        self._config.write_text(f'listen: "{LOOPBACK}:{self.port}"\n{settings}\n')

    def reload(self, settings: str) -> None:
        """Let the running server read other settings; its connections go on."""
        assert self._process is not None, "the server does not run"
        self._write(settings)
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End the server at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class RawNats:
    """A blocking NATS client of a few lines. Reads only its subscriptions."""

    def __init__(self, port: int, *, timeout_s: float = 60.0) -> None:
        """Connect and wait for the first PONG."""
        self._socket = socket.create_connection((LOOPBACK, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.messages: list[tuple[str, bytes]] = []
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": False}
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self.flush()

    def send(self, data: bytes) -> None:
        """Write protocol bytes as they are."""
        self._socket.sendall(data)

    def subscribe(self, subject: str) -> None:
        """Subscribe, confirmed."""
        self.send(f"SUB {subject} 1\r\n".encode())
        self.flush()

    def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Iterable[tuple[str, str]] | bytes = (),
    ) -> None:
        """Publish; ``headers`` as bytes is a whole block, sent without a look at it."""
        self.send(pub(subject, payload, reply=reply, headers=headers))

    def flush(self) -> None:
        """Wait until the server has handled everything sent before."""
        self.send(b"PING\r\n")
        self._read_until(lambda op: op == b"PONG")

    def next_message(self) -> tuple[str, bytes]:
        """Return the next (subject, payload) of the subscriptions; raises TimeoutError."""
        if not self.messages:
            self._read_until(lambda op: op == b"MSG")
        return self.messages.pop(0)

    def next_json(self) -> dict[str, Any]:
        """Return the next message's payload, parsed."""
        body: dict[str, Any] = json.loads(self.next_message()[1])
        return body

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_until(self, wanted: Callable[[bytes], bool]) -> None:
        while True:
            line = self._line()
            op, *words = line.split()
            if op == b"MSG":
                payload = self._take(int(words[-1]) + 2)[:-2]
                self.messages.append((words[0].decode(), payload))
            if op == b"PING":
                self.send(b"PONG\r\n")
            assert op != b"-ERR", line
            if wanted(op):
                return

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._receive()
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _receive(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._buffer += data


def pub(
    subject: str,
    payload: bytes,
    *,
    reply: str = "",
    headers: Iterable[tuple[str, str]] | bytes = (),
) -> bytes:
    """Return the protocol bytes of one publish."""
    target = f"{subject} {reply}".rstrip().encode()
    if isinstance(headers, bytes):
        block = headers
    else:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        block = f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""
    if not block:
        return b"PUB %b %d\r\n%b\r\n" % (target, len(payload), payload)
    total = len(block) + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (target, len(block), total, block, payload)
