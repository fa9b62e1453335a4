"""A NATS publisher that never gives up: raw sockets, so that headers may repeat and nothing hides.

Each message has its own reply subject and message id. What is not answered in time, or was in
flight when the connection broke, goes again under the same id, until the broker has acked it.
"""

from __future__ import annotations

import json
import random
import secrets
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from crashkit.recorder import Recorder
from crashkit.records import RecordMaker, TestRecord

_RETRY_AFTER_S = 0.6
_POLL_S = (0.005, 0.05)  # at least, at most; half the time between two records
_READ_BYTES = 256 * 1024
_UNAVAILABLE = 503  # of a PubAck: somebody else leads, or soon will
_DISK_FULL = 10047  # of a PubAck: until there is room again


@dataclass(slots=True)
class _Waiting:
    record: TestRecord
    sent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLoadConfig:
    """How one publisher behaves."""

    port: int
    partition: int
    subject: str
    window: int
    records_per_s: int
    unanswered_share: float = 0.05  # messages without a reply subject: nobody hears of them
    absences_per_s: float = 0.1  # the publisher vanishes with messages in flight
    away_s_max: float = 4.0  # and comes back: segments roll, ship and are freed meanwhile


class NatsLoad:
    """One publisher in a thread of its own."""

    def __init__(
        self, config: NatsLoadConfig, maker: RecordMaker, recorder: Recorder, *, seed: str
    ) -> None:
        self._config = config
        self._maker = maker
        self._recorder = recorder
        self._random = random.Random(seed)
        self._inbox = f"_INBOX.{secrets.token_hex(8)}."
        self._waiting: dict[str, _Waiting] = {}  # oldest sending first
        self._producing = threading.Event()
        self._producing.set()
        self._ending = threading.Event()
        self._buffer = b""
        self._next_s = 0.0
        self._poll_s = min(max(0.5 / config.records_per_s, _POLL_S[0]), _POLL_S[1])
        self.failure: str | None = None
        self.absences = 0
        self._thread = threading.Thread(target=self._run, name=maker.producer, daemon=True)

    @property
    def unanswered(self) -> int:
        """Messages whose fate is not known yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def pause(self) -> None:
        """Publish nothing new; what is unanswered goes on being retried."""
        self._producing.clear()

    def resume(self) -> None:
        """Publish again."""
        self._producing.set()

    def stop(self) -> None:
        """End the thread, whatever is unanswered. Blocks."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            with (
                suppress(OSError),  # nats-server is being restarted: connect again
                socket.create_connection(("127.0.0.1", self._config.port), 1.0) as link,
            ):
                self._talk(link)
                self.absences += 1
                self._ending.wait(self._random.uniform(0, self._config.away_s_max))
            self._ending.wait(0.05)

    def _talk(self, link: socket.socket) -> None:
        """Publish until told to end, or until it is time to vanish; OSError: the server did."""
        link.settimeout(5.0)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        hello = f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox}* 1\r\nPING\r\n"
        link.sendall(hello.encode())
        self._buffer = b""
        for waiting in list(self._waiting.values()):
            self._send_again(link, waiting)
        vanish_s = time.monotonic() + self._random.expovariate(self._config.absences_per_s)
        readable = select.poll()  # select.select() is blind above descriptor 1023
        readable.register(link, select.POLLIN)
        while not self._ending.is_set():
            out = b"".join(self._due())
            if out:
                link.sendall(out)
                if time.monotonic() > vanish_s:
                    return
            if readable.poll(self._poll_s * 1000):
                data = link.recv(_READ_BYTES)
                if not data:
                    raise ConnectionError("nats-server closed the connection")
                self._buffer += data
                self._parse(link)
            self._resend_overdue(link)

    def _due(self) -> list[bytes]:
        """Return new messages as far as rate and window allow."""
        out: list[bytes] = []
        now_s = time.monotonic()
        self._next_s = max(self._next_s, now_s - 0.1)
        while (
            self._producing.is_set()
            and len(self._waiting) < self._config.window
            and self._next_s <= now_s
        ):
            self._next_s += 1 / self._config.records_per_s
            record = self._maker.for_nats()
            self._recorder.send(self._maker.producer, self._config.partition, [record])
            if self._random.random() < self._config.unanswered_share:
                out.append(self._encode(record, ""))
                continue
            self._waiting[record.name] = _Waiting(record, now_s)
            out.append(self._encode(record, self._inbox + record.name))
        return out

    def _encode(self, record: TestRecord, reply: str) -> bytes:
        block = b"NATS/1.0\r\n" + b"".join(
            b"%b:%b%b\r\n" % (name.encode(), b" " if text else b"", text or b"")
            for name, text in record.headers or ()
        )
        block += b"\r\n"
        value = record.value or b""
        command = f"HPUB {self._config.subject} {reply + ' ' if reply else ''}"
        sizes = f"{len(block)} {len(block) + len(value)}\r\n"
        return command.encode() + sizes.encode() + block + value + b"\r\n"

    def _send_again(self, link: socket.socket, waiting: _Waiting) -> None:
        name = waiting.record.name
        del self._waiting[name]
        waiting.sent_s = time.monotonic()
        self._waiting[name] = waiting
        self._recorder.retry(name)
        link.sendall(self._encode(waiting.record, self._inbox + name))

    def _resend_overdue(self, link: socket.socket) -> None:
        horizon_s = time.monotonic() - _RETRY_AFTER_S
        overdue = [one for one in self._waiting.values() if one.sent_s < horizon_s]
        for waiting in overdue:
            self._send_again(link, waiting)

    def _parse(self, link: socket.socket) -> None:
        """Take whole protocol messages off the buffer."""
        while (end := self._buffer.find(b"\r\n")) >= 0:
            words = self._buffer[:end].split()
            start = end + 2
            if words and words[0] in {b"MSG", b"HMSG"}:
                stop = start + int(words[-1])
                if len(self._buffer) < stop + 2:
                    return
                payload = self._buffer[start:stop]
                self._buffer = self._buffer[stop + 2 :]
                if words[0] == b"MSG":
                    self._answered(words[1].decode().removeprefix(self._inbox), payload)
                continue  # an HMSG is "503 no responders": the broker is away, it goes again
            if words and words[0] == b"PING":
                link.sendall(b"PONG\r\n")
            self._buffer = self._buffer[start:]

    def _answered(self, name: str, payload: bytes) -> None:
        answer = json.loads(payload)
        error = answer.get("error")
        if error is None:
            self._recorder.ack(
                name,
                partition=answer["partition"],
                offset=answer["offset"],
                leader_epoch=answer["leader_epoch"],
                duplicate=answer.get("duplicate", False),
            )
            self._waiting.pop(name, None)
        elif not _passes(error):
            self._recorder.refuse(name, str(error))
            self._waiting.pop(name, None)
            self.failure = f"{name} was refused: {error}"


def _passes(error: dict[str, Any]) -> bool:
    """Tell whether the broker may take the same message later."""
    passing = error.get("code") == _UNAVAILABLE or error.get("err_code") == _DISK_FULL
    return passing or bool(error.get("retriable"))
