"""The socket under the NATS connection, in the shape of nats-py's transport.

asyncio's streams copy every byte three times on its way to the parser; here a read hands over the
very bytes that the operating system filled in. What nobody has read yet is bounded: beyond the
limit the socket is left alone, the server feels it, and cuts us off if it lasts.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final
from urllib.parse import ParseResult

from nats.aio.transport import Transport

READ_BYTES: Final = 1024 * 1024
_UNREAD_BYTES_MAX: Final = 2 * READ_BYTES
_LINE_BYTES_MAX: Final = 64 * 1024  # the greeting names every server of a cluster
_TLS_SHUTDOWN_S: Final = 2.0


class NatsSocket(Transport, asyncio.Protocol):
    """One TCP connection, with or without TLS. Owner: one event loop; one reader at a time."""

    def __init__(self) -> None:
        """Make an unconnected socket."""
        self._socket: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()

    # ------------------------------------------------------------------ what nats-py calls

    def __bool__(self) -> bool:
        """Say yes, also before it is connected, else nats-py puts its own in our place."""
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect; raises OSError, TimeoutError."""
        del buffer_size  # nats-py's 32 KiB would cost a wake-up every 300 small messages
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            await loop.create_connection(lambda: self, uri.hostname or "", uri.port or 4222)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Encrypt the connection from here on; raises OSError (also ssl.SSLError), TimeoutError."""
        del buffer_size
        assert self._socket is not None, "connect first"
        async with asyncio.timeout(connect_timeout):
            encrypted = await asyncio.get_running_loop().start_tls(
                self._socket,
                self,
                ssl_context,
                server_hostname=uri if isinstance(uri, str) else uri.hostname,
                ssl_handshake_timeout=connect_timeout,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
            )
        if encrypted is None:
            raise ConnectionResetError("the connection ended during the TLS handshake")
        self._socket = encrypted
        # What came unencrypted behind the greeting may be anyone's: it is not part of this talk.
        self._chunks.clear()
        self._unread_bytes = 0

    def write(self, payload: bytes) -> None:
        """Queue bytes for the operating system; never waits."""
        assert self._socket is not None, "connect first"
        if not self._socket.is_closing():
            self._socket.write(payload)

    def writelines(self, payload: Iterable[bytes]) -> None:
        """Queue several pieces as one."""
        self.write(b"".join(payload))

    async def read(self, buffer_size: int = READ_BYTES) -> bytes:
        """Return everything that has arrived, waiting for the first byte; empty at the end."""
        del buffer_size
        await self._wait_unread()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._keep(b"")
        return data

    async def readline(self) -> bytes:
        """Return one line of the greeting; raises ConnectionError when it is too long."""
        while True:
            data = b"".join(self._chunks)
            line, end, rest = data.partition(b"\n")
            if end or self._ended:
                self._keep(rest)
                return line + end
            if len(data) > _LINE_BYTES_MAX:
                raise ConnectionError(f"the greeting is longer than {_LINE_BYTES_MAX} bytes")
            self._arrived.clear()
            await self._arrived.wait()

    async def drain(self) -> None:
        """Wait while too much is unsent; raises ConnectionResetError at the end."""
        if self._lost.is_set():
            raise ConnectionResetError("the connection is lost")
        await self._writable.wait()

    async def wait_closed(self) -> None:
        """Wait until the operating system has taken leave of the connection."""
        if self._socket is not None:
            await self._lost.wait()

    def close(self) -> None:
        """Close once everything queued is written."""
        if self._socket is not None:
            self._socket.close()

    def at_eof(self) -> bool:
        """Tell whether nothing more can be read."""
        return self._ended and not self._chunks

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self._writable.set()
        if hasattr(transport, "max_size"):  # asyncio's own loop; others choose for themselves
            transport.max_size = READ_BYTES

    def data_received(self, data: bytes) -> None:
        """Keep what arrived for the next read."""
        self._chunks.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_BYTES_MAX and self._socket is not None:
            self._paused = True
            self._socket.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool | None:
        """Note that the server has ended the talk; the loop then closes our side."""
        self._ended = True
        self._arrived.set()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end, and wake everyone who waits for anything."""
        self._ended = True
        self._error = exc
        for event in (self._arrived, self._writable, self._lost):
            event.set()

    def pause_writing(self) -> None:
        """Let :meth:`drain` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let :meth:`drain` return."""
        self._writable.set()

    # ------------------------------------------------------------------ what we call

    @property
    def unread_bytes(self) -> int:
        """Bytes received and not yet read; bounded by 2 MiB and one read."""
        return self._unread_bytes

    @property
    def backlog_bytes(self) -> int:
        """Bytes written but not yet taken by the operating system."""
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    async def drained(self) -> None:
        """Wait until everything written has left for the operating system, or all is lost."""
        if self._socket is not None and not self._lost.is_set():
            self._socket.set_write_buffer_limits(high=0)
            await self._writable.wait()

    def abort(self) -> None:
        """Close without waiting for anything. Safe at any time, any number of times."""
        if self._socket is not None:
            self._socket.abort()

    async def _wait_unread(self) -> None:
        while not self._chunks and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._chunks and isinstance(self._error, OSError):
            raise self._error

    def _keep(self, rest: bytes) -> None:
        self._chunks = [rest] if rest else []
        self._unread_bytes = len(rest)
        if self._paused and self._socket is not None and not self._ended:
            self._paused = False
            self._socket.resume_reading()
