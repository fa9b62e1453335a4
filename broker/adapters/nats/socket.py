"""The socket under the NATS connection, in the shape of nats-py's transport.

asyncio's streams copy every byte three times on its way to the parser. Here a read returns the
buffer that the operating system has filled. Unread bytes are bounded: above the limit this socket
is not read any more. Then the server cannot write, and disconnects us if this lasts.
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

    def __init__(self, *, encrypts: bool = False) -> None:
        """Make an unconnected socket, which with ``encrypts`` sends nothing before TLS."""
        self._encrypts = encrypts
        self._encrypted = False
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
        """Return true even before it is connected: else nats-py would replace it by its own."""
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect; raises OSError, TimeoutError."""
        del buffer_size  # nats-py's 32 KiB would need a wake-up every 300 small messages
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
        """Encrypt the connection; raises OSError (also ssl.SSLError), TimeoutError."""
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
        self._encrypted = True
        # Unencrypted bytes after the greeting may come from anyone: they are dropped.
        self._chunks.clear()
        self._unread_bytes = 0

    def write(self, payload: bytes) -> None:
        """Queue bytes for the operating system; never waits.

        Raises ConnectionError if they would leave unencrypted and must not. The server chooses by
        its greeting whether nats-py begins TLS, and the first bytes of ours are the login.
        """
        assert self._socket is not None, "connect first"
        if self._encrypts and not self._encrypted:
            raise ConnectionRefusedError(
                "the NATS server does not offer TLS, which tls:// or nats.tls_... asks for"
            )
        if not self._socket.is_closing():
            self._socket.write(payload)

    def writelines(self, payload: Iterable[bytes]) -> None:
        """Queue several pieces as one."""
        self.write(b"".join(payload))

    async def read(self, buffer_size: int = READ_BYTES) -> bytes:
        """Return all bytes that have arrived; wait for the first byte. Empty at the end."""
        del buffer_size
        await self._wait_unread()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._keep(b"")
        return data

    async def readline(self) -> bytes:
        """Return one line of the server's greeting; raises ConnectionError if it is too long."""
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
        """Wait while too many bytes are unsent; raises ConnectionResetError after the end."""
        if self._lost.is_set():
            raise ConnectionResetError("the connection is lost")
        await self._writable.wait()

    async def wait_closed(self) -> None:
        """Wait until the operating system has closed the connection."""
        if self._socket is not None:
            await self._lost.wait()

    def close(self) -> None:
        """Close when all queued bytes are written."""
        if self._socket is not None:
            self._socket.close()

    def at_eof(self) -> bool:
        """Tell whether no more bytes can be read."""
        return self._ended and not self._chunks

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self._writable.set()
        if hasattr(transport, "max_size"):  # only asyncio's own loop has this setting
            transport.max_size = READ_BYTES

    def data_received(self, data: bytes) -> None:
        """Keep the bytes for the next read."""
        self._chunks.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_BYTES_MAX and self._socket is not None:
            self._paused = True
            self._socket.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool | None:
        """Note that the server has closed its side; the event loop then closes ours."""
        self._ended = True
        self._arrived.set()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection, and wake all waiting tasks."""
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
        """Bytes received and not yet read; at most 2 MiB and one read."""
        return self._unread_bytes

    @property
    def backlog_bytes(self) -> int:
        """Bytes written but not yet taken by the operating system."""
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    async def drained(self) -> None:
        """Wait until the operating system has taken all written bytes, or the connection ends."""
        if self._socket is not None and not self._lost.is_set():
            self._socket.set_write_buffer_limits(high=0)
            await self._writable.wait()

    def abort(self) -> None:
        """Close at once, without waiting. May be called at any time and more than once."""
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
