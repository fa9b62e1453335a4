"""The broker's NATS connection: nats-py connects, authenticates and encrypts; we read and write.

Each connection has a new nats-py client, which a loop in this module makes while the transport is
open. nats-py's own reconnecting is not used: after most server errors it gives up for ever, and it
sends old publishes late. Two attributes of the client are replaced: its parser and its socket. Both
are checked at start against the pinned release. Messages arrive in batches at a ``MessageSink``.
While the sink waits, the socket is not read. So memory is bounded, and the server notices a slow
broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import nats.errors
import structlog
from nats.aio.client import Client

from broker.adapters.nats.hooks import (
    BatchParser,
    ServerErrors,
    check_hooks,
    connect_options,
    replace_hooks,
    server_urls,
)
from broker.adapters.nats.socket import NatsSocket
from broker.codec.nats.stream import MessageBatch, NatsStream
from broker.config import NatsConfig
from broker.errors import InvalidStreamError, UnavailableError

_BACKOFF_S: Final = 0.05
_BACKOFF_S_MAX: Final = 2.0
_STEADY_S: Final = 1.0  # a connection that lasted longer is followed by the next at once
_FLUSH_TIMEOUT_S: Final = 10.0
_CLOSE_TIMEOUT_S: Final = 5.0
SEND_BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024  # unsent answers; more are dropped and counted

_log = structlog.get_logger(__name__)


def own_inbox() -> str:
    """Return a new beginning for inboxes of a broker; nobody else needs to hear below the prefix.

    docs/security.md names the prefix, because NATS servers have permissions by it.
    """
    return f"_INBOX.headwater.{secrets.token_hex(12)}"


class MessageSink(Protocol):
    """The receiver of messages. Both methods run on the connection's event loop."""

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Take the batches of one socket read; the socket is not read until the future is done."""

    def connection_lost(self, *, slow_consumer: bool) -> None:
        """Note a gap: messages that are published before the next connection are not received."""


@dataclass(slots=True)
class TransportCounters:
    """Counts of the connection's events since the start; plain numbers."""

    connects: int = 0
    disconnects: int = 0
    slow_consumer_events: int = 0
    server_errors: dict[str, int] = field(default_factory=dict)
    dropped_sends: int = 0  # answers that were not sent: no connection, or too many unsent


@dataclass(frozen=True, slots=True)
class _Subscription:
    sid: int
    subject: str
    queue_group: str | None

    def command(self) -> bytes:
        queue = f" {self.queue_group}" if self.queue_group else ""
        return f"SUB {self.subject}{queue} {self.sid}\r\n".encode()


@dataclass(slots=True)
class _Session:
    """One connection, from CONNECT to its end."""

    client: Client
    socket: NatsSocket
    parser: BatchParser
    errors: ServerErrors
    closed: asyncio.Event
    sids: set[int] = field(default_factory=set)

    def leave(self, sids: Iterable[int]) -> bool:
        """End those of these subscriptions that the session has; return whether it has any."""
        gone = self.sids.intersection(sids)
        self.sids -= gone
        if gone:
            self.socket.write(b"".join([b"UNSUB %d\r\n" % sid for sid in gone]))
        return bool(gone)


class NatsTransport:
    """Keeps one connection to NATS and the subscriptions on it. Owner: one event loop."""

    def __init__(
        self,
        config: NatsConfig,
        *,
        client_name: str,
        sink: MessageSink,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Prepare; :meth:`start` connects. ``on_crash`` is called for bugs only."""
        self.counters = TransportCounters()
        self.max_payload_bytes = 0  # largest payload that the present server accepts
        self.last_error: str | None = None
        self._config = config
        self._client_name = client_name
        self._sink = sink
        self._on_crash = on_crash
        self._subscriptions: dict[int, _Subscription] = {}
        self._stream = NatsStream()
        self._session: _Session | None = None
        self._connected = asyncio.Event()
        self._closing = asyncio.Event()
        self._urls = server_urls(config)
        self._task: asyncio.Task[None] | None = None
        self._lost_s = 0.0  # when the last connection ended, or :meth:`start` was called

    # ------------------------------------------------------------------ life

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection on which every subscription is active."""
        return self._session is not None

    @property
    def complaint(self) -> str | None:
        """Why there is no connection; None if there is one. Any thread."""
        if self.connected:
            return None
        urls = ", ".join(self._config.url.split(","))
        return f"NATS at {urls} cannot be reached: {self.last_error or 'no answer'}"

    async def start(self, *, must_connect: bool = True) -> None:
        """Connect; reconnect from then on until :meth:`close`.

        Without ``must_connect`` the call succeeds without a server; the transport keeps trying.

        Raises:
            InvalidConfigError: nats-py has another release than the pinned one, or bad TLS files.
            UnavailableError: no connection within ``connect_timeout_ms``; names the last reason.
        """
        check_hooks()
        connect_options(self._config, self._client_name)  # raises now if a file is bad
        self._lost_s = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="nats-connection")
        try:
            await self._wait_connected()
        except UnavailableError as error:
            if must_connect:
                await self.close()
                raise
            _log.warning(
                "nats_unreachable",
                reason=error.message,
                effect="nothing is recorded from NATS until it answers; the broker keeps trying",
            )

    async def close(self) -> None:
        """Close the connection for good. Answers that were sent before are written first."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled() and (crash := self._task.exception()) is not None:
                raise crash

    # ------------------------------------------------------------------ subscriptions

    async def subscribe(self, subjects: Mapping[int, str], queue_group: str | None) -> None:
        """Subscribe under these ids and wait for the server's confirmation.

        Those that :meth:`unsubscribe` ends meanwhile are not subscribed.

        Raises:
            InvalidStreamError: the server does not allow one of the subjects; none is subscribed.
            UnavailableError: no connection in time. The next connection subscribes, unless
                :meth:`unsubscribe` is called before.
        """
        wanted = [_Subscription(sid, subject, queue_group) for sid, subject in subjects.items()]
        for one in wanted:
            self._subscriptions[one.sid] = one
            self._stream.add_hot(one.sid)
        while True:
            await self._wait_connected()
            session = self._session
            if session is None:
                continue
            # During the wait, some may have been ended by :meth:`unsubscribe`.
            wanted = [one for one in wanted if self._subscriptions.get(one.sid) is one]
            is_open = session.sids.issuperset([one.sid for one in wanted])
            if not is_open and not await self._open(session, wanted):
                await self._first_of(session.closed, self._closing)
                continue
            denied = [one.subject for one in wanted if session.errors.denied(one.subject)]
            if not denied:
                return
            await self.unsubscribe(list(subjects))
            raise InvalidStreamError(
                f"the NATS server does not allow this broker to subscribe to {denied[0]!r}: grant "
                "the permission or choose another subject",
                subject=denied[0],
            )

    async def unsubscribe(self, sids: Sequence[int]) -> None:
        """End subscriptions; messages that the server sent before are still delivered."""
        gone = [sid for sid in sids if self._subscriptions.pop(sid, None) is not None]
        session = self._session
        if session is not None and session.leave(gone):
            await self._flush(session)
        for sid in gone:
            self._stream.remove_hot(sid)

    async def flush(self) -> bool:
        """Wait until the server has handled all sent commands; False if the connection is lost.

        All messages that the server had sent before are then delivered to the sink.
        """
        session = self._session
        return session is not None and await self._flush(session)

    # ------------------------------------------------------------------ sending

    def send(self, data: bytes, messages_count: int) -> bool:
        """Write whole protocol commands; return False if they were dropped. Never waits.

        Dropping an answer is safe: a publisher without an answer publishes again, with its id.
        """
        session = self._session
        if session is None or session.socket.backlog_bytes > SEND_BACKLOG_BYTES_MAX:
            self.counters.dropped_sends += messages_count
            return False
        session.socket.write(data)
        return True

    async def drain(self) -> None:
        """Wait while the operating system takes no more sent bytes. Does not wait to reconnect."""
        session = self._session
        if session is not None:
            with contextlib.suppress(ConnectionResetError):
                await session.socket.drain()

    # ------------------------------------------------------------------ the connection's loop

    async def _run(self) -> None:
        backoff_s = _BACKOFF_S
        while not self._closing.is_set():
            session = await self._connect()
            if session is None:
                await self._sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)
                continue
            began_s = time.monotonic()
            self._established(session)
            await self._first_of(session.closed, self._closing)
            await self._end(session)
            if time.monotonic() - began_s > _STEADY_S:
                backoff_s = _BACKOFF_S
            else:  # a server that lets us in and breaks at once must not keep us busy
                await self._sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    async def _connect(self) -> _Session | None:
        """Open one connection with all subscriptions; None if it failed."""
        closed = asyncio.Event()
        errors = ServerErrors(self.counters.server_errors)
        client = Client()
        self._stream.reset()
        try:
            options = connect_options(self._config, self._client_name)
        except Exception as error:  # noqa: BLE001 - a file of keys that is being replaced, e.g.
            self.last_error = str(error) or type(error).__name__
            return None
        socket = NatsSocket(encrypts="tls" in options)
        parser = BatchParser(client, self._stream, self._sink.received, errors, self._on_crash)
        replace_hooks(client, parser, socket)
        session = _Session(client, socket, parser, errors, closed)

        async def on_closed() -> None:
            closed.set()

        async def on_error(error: Exception) -> None:
            self.last_error = str(error) or type(error).__name__

        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                await client.connect(
                    servers=list(self._urls), closed_cb=on_closed, error_cb=on_error, **options
                )
            if await self._open(session, list(self._subscriptions.values())):
                return session
        # After a malformed greeting nats-py raises any exception of its parsing, and for a file
        # with half a seed one of nkeys. Whatever it is, the next attempt may succeed.
        except Exception as error:  # noqa: BLE001
            self.last_error = str(error) or type(error).__name__
        socket.abort()
        return None

    def _established(self, session: _Session) -> None:
        self.counters.connects += 1
        self.max_payload_bytes = session.client.max_payload
        self._urls = server_urls(self._config, session.client.discovered_servers)
        # While this session subscribed, :meth:`unsubscribe` did not know it.
        session.leave(session.sids - self._subscriptions.keys())
        self._session = session
        self._connected.set()
        again = self.counters.connects > 1
        _log.info(
            "nats_reconnected" if again else "nats_connected", connects=self.counters.connects
        )

    async def _end(self, session: _Session) -> None:
        self._session = None
        self._lost_s = time.monotonic()
        self._connected.clear()
        if not self._closing.is_set():
            self.counters.disconnects += 1
            # The server gives no reason when it disconnects a slow consumer: look for a stall.
            slow = session.errors.slow_consumer or session.parser.stalled_lately()
            if slow:
                self.counters.slow_consumer_events += 1
            self._sink.connection_lost(slow_consumer=slow)
            _log.warning(
                "nats_connection_lost",
                cause=session.errors.last or self.last_error,
                slow_consumer=slow,
                disconnects=self.counters.disconnects,
                effect="messages published without waiting for an ack may be missing",
            )
        with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                if self._closing.is_set():
                    await session.socket.drained()
                await session.client.close()
        session.socket.abort()

    async def _open(self, session: _Session, subscriptions: list[_Subscription]) -> bool:
        """Subscribe on a session, wait for the server's confirmation; False if it is lost."""
        session.sids.update(one.sid for one in subscriptions)
        session.socket.write(b"".join([one.command() for one in subscriptions]))
        return await self._flush(session)

    async def _flush(self, session: _Session) -> bool:
        """Wait for one PING and PONG; False if the session ends instead."""
        flush = asyncio.ensure_future(session.client.flush(timeout=int(_FLUSH_TIMEOUT_S)))
        closed = asyncio.ensure_future(session.closed.wait())
        try:
            await asyncio.wait({flush, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not flush.done() or session.closed.is_set():
                return False
            flush.result()
        except (OSError, nats.errors.Error) as error:
            self.last_error = str(error) or type(error).__name__
            session.socket.abort()  # the server does not answer: make a new connection
            return False
        finally:
            flush.cancel()
            closed.cancel()
        return True

    async def _wait_connected(self) -> None:
        """Wait for a connection.

        The time-out counts from the end of the last connection, so that calls one after another do
        not each wait for the whole time.

        Raises:
            UnavailableError: there was no connection for ``connect_timeout_ms``.
        """
        if not self._connected.is_set():
            left_s = self._lost_s + self._config.connect_timeout_ms / 1000 - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._first_of(self._connected, self._closing)
            except TimeoutError as cause:
                raise UnavailableError(str(self.complaint), url=self._config.url) from cause
        if self._closing.is_set():
            raise UnavailableError("the NATS transport is closing")

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    @staticmethod
    async def _first_of(*events: asyncio.Event) -> None:
        tasks = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
