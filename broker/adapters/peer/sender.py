"""The connection on which this broker sends to one other broker. It receives no messages.

If no message waits, a thread that sends a small message writes it directly. All other messages are
written by the sender's own thread, urgent lanes first. Only that thread waits for the socket. When
the other side closes the connection, the sender connects again at once, and then less and less
often. Messages that have waited for a second by then are dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from broker.adapters.peer.identity import PeerAddress, certified_number, certified_uris
from broker.adapters.peer.queue import SendQueue
from broker.adapters.tls.context import wrapped
from broker.codec.peer.frames import LaneKind

_log = structlog.get_logger(__name__)

_CONNECT_S: Final = 1.0
_HANDSHAKE_S: Final = 5.0
_STALL_S: Final = 10.0  # a connection without progress of a write for this long is closed
_RETRY_S: Final = 0.02
_RETRY_S_MAX: Final = 0.5
_KEEP_S: Final = 1.0  # a message that waited longer for a connection is dropped
_AT_ONCE_BYTES_MAX: Final = 8 * 1024  # a larger message is left to the sender's thread
_UNSENT_BYTES: Final = 256 * 1024  # in the kernel; an urgent message waits behind at most this
_UNACKNOWLEDGED_MS: Final = 4_000  # a connection without TCP acks for this long is closed
_HUNG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


@dataclass(slots=True)
class SenderCounters:
    """Counts since the start; plain numbers."""

    messages: int = 0
    bytes: int = 0
    connects: int = 0
    dropped_full: int = 0
    dropped_old: int = 0
    impostors: int = 0  # connections whose peer's identity is wrong


class PeerSender:
    """Sends to one broker. Any thread; :meth:`run` has its own thread."""

    def __init__(
        self, *, name: str, uri: str, address: PeerAddress, context: ssl.SSLContext
    ) -> None:
        """Prepare; :meth:`run` connects. The other broker's certificate must have ``uri``."""
        self.address = address
        self.counters = SenderCounters()
        self._name = name
        self._uri = uri
        self._context = context
        self._queue = SendQueue()
        self._pieces: deque[Any] = deque()  # taken from the queue, to write next
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)
        self._writing = False  # whether a thread uses the socket and `_pieces`
        self._asleep = False  # whether the sender's thread waits in poll
        self._secured: ssl.SSLSocket | None = None
        self._number = 0  # of the certificate of its other side
        self._revoked: frozenset[int] = frozenset()
        self._hang_up_poll = select.poll()
        self._failed = False
        self._stopping = threading.Event()
        self._wake_fd = -1
        self._dialling: socket.socket | None = None

    @property
    def is_connected(self) -> bool:
        """Tell whether there is a connection now."""
        return self._secured is not None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that wait to be sent."""
        return self._queue.waiting_bytes

    def send(self, lane: LaneKind, buffers: Sequence[Any]) -> bool:
        """Send a message; return False if it was dropped. Never waits."""
        with self._lock:
            idle = not self._queue and not self._pieces
            if not self._queue.put(lane, buffers, time.monotonic()):
                self.counters.dropped_full += 1
                return False
            self.counters.messages += 1
            if self._writing or self._secured is None:
                return True  # the thread that writes or connects checks the queue again
            if not idle or self._queue.waiting_bytes > _AT_ONCE_BYTES_MAX:
                self._wake()
                return True
            secured = self._secured
            self._writing = True
        failed = bool(self._hang_up_poll.poll(0))
        if not failed:
            try:
                self._write(secured)
            except OSError:
                failed = True
        with self._lock:
            self._writing = False
            self._failed |= failed
            if failed or self._queue or self._pieces:
                self._wake()
            if not self.is_connected:
                self._written.notify()
        return True

    def run(self) -> None:
        """Connect and send until :meth:`stop`; then close all."""
        retry_s = _RETRY_S
        with self._lock:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        while not self._stopping.is_set():
            try:
                with self._connect() as secured:
                    retry_s = _RETRY_S
                    self._serve(secured)
            except OSError as error:
                _log.debug("peer_connection_lost", peer=self._name, reason=str(error))
            self._stopping.wait(retry_s)
            retry_s = min(2 * retry_s, _RETRY_S_MAX)
        with self._lock:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def stop(self) -> None:
        """Let :meth:`run` end soon; does not wait."""
        with self._lock:
            self._stopping.set()
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
            if self._dialling is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._dialling, socket.SHUT_RDWR)

    def end_if_revoked(self, numbers: frozenset[int]) -> None:
        """Close the connection if the other side's certificate has one of these numbers."""
        with self._lock:
            self._revoked = numbers
            if self._secured is not None and self._number in numbers:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._secured, socket.SHUT_RDWR)

    # ------------------------------------------------------------------ the thread

    def _connect(self) -> ssl.SSLSocket:
        """Connect; raises OSError, also if the peer's identity is wrong."""
        try:
            plain = socket.create_connection((self.address.host, self.address.port), _CONNECT_S)
            with contextlib.ExitStack() as stack:
                stack.callback(plain.close)
                self._dialling = plain
                plain.settimeout(_HANDSHAKE_S)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
                secured = wrapped(self._context, plain, server_side=False)
                stack.pop_all()
                stack.callback(secured.close)
                self._dialling = secured
                secured.do_handshake()
                stack.pop_all()
            if self._uri not in certified_uris(secured):
                self.counters.impostors += 1
                secured.close()
                raise ConnectionRefusedError(
                    f"the peer's identity is wrong: its certificate does not have {self._uri}"
                )
        finally:
            with self._lock:
                self._dialling = None
                self.counters.dropped_old += self._queue.drop_older(time.monotonic() - _KEEP_S)
        secured.setblocking(False)
        self.counters.connects += 1
        return secured

    def _serve(self, secured: ssl.SSLSocket) -> None:
        """Send until :meth:`stop`; raises OSError if the other side closes the connection."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(secured, _HUNG_UP)
        self._hang_up_poll = select.poll()
        self._hang_up_poll.register(secured, _HUNG_UP)
        number = certified_number(secured)
        with self._lock:
            if number in self._revoked:
                raise ConnectionRefusedError("the peer's certificate is revoked")
            self._failed = False
            self._secured, self._number = secured, number
        try:
            while not self._stopping.is_set():
                blocked = self._write_all(secured)
                poller.modify(secured, _HUNG_UP | (select.POLLOUT if blocked else 0))
                events = poller.poll(_STALL_S * 1000 if blocked else None)
                if blocked and not events:
                    raise TimeoutError(f"nothing could be written for {_STALL_S} s")
                self._check(events)
        finally:
            with self._lock:
                self._secured = None
                while self._writing:
                    self._written.wait()
                self._pieces.clear()
                self._queue.connection_lost()

    def _write_all(self, secured: ssl.SSLSocket) -> bool:
        """Write the waiting messages; return whether the socket takes no more for now."""
        with self._lock:
            if self._failed:
                raise ConnectionResetError("a write failed")
            if self._writing:
                self._asleep = True  # the writing thread wakes this thread if a message is left
                return False
            self._writing = True
        try:
            while True:
                blocked = not self._write(secured)
                with self._lock:
                    if blocked or not self._queue:
                        self._writing, self._asleep = False, not blocked
                        return blocked
        except OSError:
            with self._lock:
                self._writing = False
            raise

    def _check(self, events: list[tuple[int, int]]) -> None:
        with self._lock:
            self._asleep = False
        for fd, what in events:
            if fd != self._wake_fd and what & _HUNG_UP:
                raise ConnectionResetError("the peer closed the connection")
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    # ------------------------------------------------------------------ writing

    def _write(self, secured: ssl.SSLSocket) -> bool:
        """Write the next pieces; return whether the socket took all of them.

        Unwritten bytes are kept, and must be written again unchanged: TLS requires this.
        """
        if not self._pieces:
            with self._lock:
                self._pieces = self._queue.pieces()
        while self._pieces:
            piece = self._pieces[0]
            try:
                size = secured.send(piece)
            except ssl.SSLWantWriteError:
                return False
            self.counters.bytes += size
            if size == len(piece):
                self._pieces.popleft()
            else:
                self._pieces[0] = memoryview(piece)[size:]
        return True

    def _wake(self) -> None:
        """Wake the sender's thread. The caller holds the lock."""
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake_fd, 1)
