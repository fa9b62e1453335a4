"""The server's side of NATS for tests that decide when it answers: on the test's own event loop.

It confirms, keeps the subscriptions of its newest connection, and notes what is published. It
passes nothing on: a test says each message. While ``silent`` is set, it handles commands and holds
back its confirmations. With ``falls_silent`` the next subscription begins that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from broker.model.subjects import matches
from headwater.local.embedded import LOOPBACK


@dataclass(frozen=True, slots=True)
class Noted:
    """A message that a client has published; ``total_bytes`` counts headers, as a server does."""

    subject: str
    payload: bytes
    total_bytes: int


class ScriptedNats:
    """One server for one client at a time. Owner: the event loop. A context manager."""

    def __init__(self, *, max_payload_bytes: int = 1024 * 1024) -> None:
        """Prepare a server whose greeting tells the largest payload."""
        self.commands: list[str] = []  # of all connections; without PUB
        self.published: list[Noted] = []
        self.subscriptions: dict[str, str] = {}  # id -> subject, of the newest connection
        self.connects = 0
        self.url = ""
        self.silent = False
        self.falls_silent = False
        info = {"server_id": "x", "version": "2.11.0", "headers": True}
        self._info = json.dumps({**info, "max_payload": max_payload_bytes}).encode()
        self._held = 0  # confirmations
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.url = f"nats://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None, "not entered"
        self._server.close()
        self.hang_up()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is asked after each command."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def say(self, subject: str, payload: bytes) -> None:
        """Send a message to each subscription that its subject reaches."""
        for sid, pattern in self.subscriptions.items():
            if matches(pattern, subject):
                self._write(f"MSG {subject} {sid} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def speak(self) -> None:
        """Send the confirmations that were held back, and hold back no more."""
        self.silent = self.falls_silent = False
        self._write(b"PONG\r\n" * self._held)
        self._held = 0

    def hang_up(self) -> None:
        """End the connection."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, data: bytes) -> None:
        assert self._writer is not None, "nobody has connected"
        self._writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.subscriptions.clear()
        self.connects += 1
        self._held = 0
        writer.write(b"INFO " + self._info + b"\r\n")
        try:
            while line := await reader.readline():
                await self._handle(line.decode().split(), reader)
                self._changed.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _handle(self, words: list[str], reader: asyncio.StreamReader) -> None:
        match words:
            case ["PUB", subject, *_, size]:
                payload = await reader.readexactly(int(size) + 2)
                self.published.append(Noted(subject, payload[:-2], int(size)))
                return
            case ["HPUB", subject, *_, head, total]:
                payload = await reader.readexactly(int(total) + 2)
                self.published.append(Noted(subject, payload[int(head) : -2], int(total)))
                return
            case ["PING"] if self.silent:
                self._held += 1
            case ["PING"]:
                self._write(b"PONG\r\n")
            case ["SUB", subject, *_, sid]:
                self.subscriptions[sid] = subject
                self.silent = self.silent or self.falls_silent
            case ["UNSUB", sid]:
                self.subscriptions.pop(sid, None)
        self.commands.append(" ".join(words))
