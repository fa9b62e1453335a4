"""A raw NATS connection over a blocking socket, so that the publisher never limits a figure.

Frames are built before the clock starts and are sent as large buffers. The client has only the
features that the measures need: no TLS, no authentication, one connection, one thread.
"""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

_READ_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 512 * 1024
_TIMEOUT_S: Final = 120.0


class RawNats:
    """One connection. Raises OSError, or ValueError for an unexpected answer."""

    def __init__(self, url: str) -> None:
        """Connect to a server; if ``url`` is a list with commas, to the first."""
        parts = urlsplit(url.partition(",")[0])
        assert parts.hostname is not None, f"no host: {url}"
        assert parts.port is not None, f"no port: {url}"
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        if not self.line().startswith(b"INFO "):
            raise ValueError(f"there is no NATS server at {url}")
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self.socket.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self.flush()

    def line(self) -> bytes:
        """Return the next line, without its end."""
        while b"\r\n" not in self._rest:
            self._rest += self.read()
        found, _, self._rest = self._rest.partition(b"\r\n")
        return found

    def exactly(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        while len(self._rest) < size:
            self._rest += self.read()
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def flush(self) -> None:
        """Wait until the server has received all data sent so far."""
        self.socket.sendall(b"PING\r\n")
        while (line := self.line()) != b"PONG":
            if line == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ValueError(line.decode(errors="replace"))

    def message(self) -> bytes:
        """Return the payload of the next message, of any subscription."""
        while True:
            line = self.line()
            if line.startswith(b"MSG "):
                size = int(line.rpartition(b" ")[2])
                return self.exactly(size + 2)[:size]
            if line.startswith(b"HMSG "):
                *_, head, whole = line.split()
                return self.exactly(int(whole) + 2)[int(head) : int(whole)]
            if line == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ValueError(line.decode(errors="replace"))

    def request(self, subject: str, body: bytes = b"") -> dict[str, Any]:
        """Send a request and return its answer, a JSON object."""
        self.socket.sendall(b"SUB _bench.answer 9\r\nUNSUB 9 1\r\n")
        head = f"PUB {subject} _bench.answer {len(body)}\r\n".encode()
        self.socket.sendall(head + body + b"\r\n")
        answer = json.loads(self.message())
        if not isinstance(answer, dict):
            raise ValueError(f"{subject} answered {answer!r}")  # noqa: TRY004 - the server, not our caller
        return answer

    def read(self) -> bytes:
        """Return the available bytes of the socket, at least one; blocks."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the NATS server closed the connection")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()


def frame(subject: str, payload: bytes, reply: str | None = None) -> bytes:
    """Return one PUB frame."""
    answer = "" if reply is None else f"{reply} "
    return f"PUB {subject} {answer}{len(payload)}\r\n".encode() + payload + b"\r\n"


class PlainWriter:
    """Sends the same message ``count`` times, as fast as the server accepts it."""

    def __init__(self, connection: RawNats, one: bytes, count: int) -> None:
        self._connection = connection
        each = max(1, _CHUNK_BYTES // len(one))
        self._whole = one * each
        self._chunks_count, left = divmod(count, each)
        self._last = one * left

    def run(self) -> None:
        """Send all messages; returns when the server has them."""
        send = self._connection.socket.sendall
        for _ in range(self._chunks_count):
            send(self._whole)
        send(self._last)
        self._connection.flush()


def publish_acknowledged(
    connection: RawNats, subject: str, payload: bytes, *, count: int, window: int
) -> None:
    """Publish with at most ``window`` unanswered messages; returns after the last answer.

    All messages have one reply subject. So this does less work per message than any client
    library, and is not slower than one.
    """
    connection.socket.sendall(b"SUB _bench.acks 1\r\n")
    one = frame(subject, payload, "_bench.acks")
    step = max(1, window // 2)
    sent = answered = 0
    while answered < count:
        room = min(window - (sent - answered), count - sent)
        if room >= min(step, count - sent) and room:
            connection.socket.sendall(one * room)
            sent += room
        if b'"error"' in connection.message():
            raise ValueError(f"message {answered} was refused")
        answered += 1


def consume(connection: RawNats, stream: str, count: int) -> None:
    """Let JetStream push ``count`` messages from the first on, without acks, and count them.

    The stream's only subject must be its name.
    """
    connection.socket.sendall(b"SUB _bench.push 2\r\n")
    config = {
        "deliver_subject": "_bench.push",
        "deliver_policy": "all",
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
    }
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    connection.socket.sendall(frame(f"$JS.API.CONSUMER.CREATE.{stream}", body, "_bench.created"))
    mark = f"\r\nMSG {stream} 2 ".encode()  # messages keep the subject they were published to
    seen, rest = 0, b"\r\n"
    while seen < count:
        data = rest + connection.read()
        seen += data.count(mark)
        rest = data[-(len(mark) - 1) :]
