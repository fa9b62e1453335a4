"""The accepting side: connections of other brokers, each read on its own thread.

No message is decoded before TLS has verified a member's certificate. A handshake, and a frame that
has begun, have a deadline. Connections without a verified certificate are few: a new one replaces
the oldest one. A member's newest connection closes its older connection.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker.adapters.first_bytes import defer_silent, has_hung_up
from broker.adapters.peer.identity import certified_number, certified_uris
from broker.adapters.tls.context import wrapped
from broker.codec.peer.frames import FrameAssembler, LaneKind
from broker.errors import EnvelopeError
from broker.model.ids import BrokerId

_log = structlog.get_logger(__name__)

Deliver = Callable[[BrokerId, LaneKind, memoryview], None]

_HANDSHAKE_S: Final = 5.0
_FRAME_S: Final = 10.0  # the longest pause within a frame
_CHECK_INTERVAL_S: Final = 1.0  # between two checks for slow connections
_ACCEPT_RETRY_S: Final = 0.2
_UNVERIFIED_MAX: Final = 64  # connections whose certificate is not verified yet


@dataclass(slots=True, eq=False)
class _Connection:
    """One accepted connection; ``sender`` is None until its certificate is verified."""

    raw: socket.socket
    sender: BrokerId | None = None
    number: int = 0  # of that certificate
    within_frame_s: float | None = None  # time since which the rest of a frame is missing
    delivering: threading.RLock = field(default_factory=threading.RLock)

    def hang_up(self) -> None:
        """Close the connection; its thread notices."""
        with contextlib.suppress(OSError):
            # Shut the socket down, not TLS: after TLS's own shutdown the thread would read plain
            # bytes.
            socket.socket.shutdown(self.raw, socket.SHUT_RDWR)


class PeerReceiver:
    """Accepts connections of the other brokers of the cluster. Any thread."""

    def __init__(
        self,
        *,
        listener: socket.socket,
        context: ssl.SSLContext,
        members: Mapping[str, BrokerId],
        deliver: Deliver,
    ) -> None:
        """Take a listening socket and the members by URI; ``start`` begins to accept."""
        self.refused: Counter[str] = Counter()  # closed connections by reason
        self.received_bytes = 0
        self._listener = listener
        self._context = context
        self._members = dict(members)
        self._deliver = deliver
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []  # oldest first
        self._threads: list[threading.Thread] = []
        self._revoked: frozenset[int] = frozenset()
        self._stopping = threading.Event()
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Accept from now on."""
        defer_silent(self._listener)
        self._listener.settimeout(_CHECK_INTERVAL_S)
        self._spawn("peer-accept", self._accept)

    def connections(self) -> list[BrokerId]:
        """Return the members with an open connection; one may be there twice for a short time."""
        with self._lock:
            return [one.sender for one in self._connections if one.sender is not None]

    def end_revoked(self, numbers: frozenset[int]) -> None:
        """Close connections whose certificates have these numbers, now and when they begin."""
        with self._lock:
            self._revoked = numbers
            for one in self._connections:
                if one.sender is not None and one.number in numbers:
                    self.refused["revoked"] += 1
                    one.hang_up()

    def wait_delivered(self) -> None:
        """Return when the deliveries that ran before this call have ended."""
        with self._lock:
            connections = list(self._connections)
        for one in connections:
            with one.delivering:
                pass

    def close(self) -> None:
        """Close all connections; block until no more message is delivered."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._connections:
                one.hang_up()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # ------------------------------------------------------------------ accepting

    def _spawn(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                raw, _ = self._listener.accept()
            except TimeoutError:
                self._close_slow()
                continue
            except OSError:
                if self._listener.fileno() < 0:
                    return
                self._stopping.wait(_ACCEPT_RETRY_S)  # for example no free descriptor: try again
                continue
            if has_hung_up(raw):
                self.refused["connection"] += 1
                raw.close()
                self._close_slow()
                continue
            connection = _Connection(raw)
            with self._lock:
                unverified = [one for one in self._connections if one.sender is None]
                if len(unverified) >= _UNVERIFIED_MAX:
                    self.refused["too many"] += 1
                    unverified[0].hang_up()
                self._connections.append(connection)
                crowded = len(unverified) >= 2 * _UNVERIFIED_MAX  # the old ones have not ended yet
            if crowded or self._stopping.is_set():
                connection.hang_up()
            try:
                self._spawn(f"peer-from-{next(self._numbers)}", self._serve, connection)
            except RuntimeError:  # the system gives no thread: the peer tries again
                self.refused["no thread"] += 1
                self._forget(connection)
                self._stopping.wait(_ACCEPT_RETRY_S)
            self._close_slow()

    def _close_slow(self) -> None:
        limit = time.monotonic() - _FRAME_S
        with self._lock:
            for one in self._connections:
                if one.within_frame_s is not None and one.within_frame_s < limit:
                    self.refused["slow"] += 1
                    one.within_frame_s = None
                    one.hang_up()

    # ------------------------------------------------------------------ reading

    def _serve(self, connection: _Connection) -> None:
        try:
            raw = connection.raw
            raw.settimeout(_HANDSHAKE_S)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with wrapped(self._context, raw, server_side=True) as secured:
                connection.raw = secured
                secured.do_handshake()
                if not self._identify(connection, secured):
                    self.refused["not a member"] += 1
                    return
                _keep_alive(secured)
                secured.settimeout(None)  # a member may send nothing for days
                self._read(connection, secured)
        except EnvelopeError as error:
            self.refused["malformed"] += 1
            _log.warning("peer_refused", peer=connection.sender, reason=error.message)
        except OSError as error:
            self.refused["tls" if isinstance(error, ssl.SSLError) else "connection"] += 1
        finally:
            self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.remove(connection)
        connection.raw.close()

    def _identify(self, connection: _Connection, secured: ssl.SSLSocket) -> bool:
        """Set the sender from the certificate; close the member's older connection."""
        uris, number = certified_uris(secured), certified_number(secured)
        with self._lock:
            sender = next((self._members[uri] for uri in uris if uri in self._members), None)
            if sender is None or number in self._revoked or self._stopping.is_set():
                return False
            for other in self._connections:
                if other.sender == sender:
                    other.hang_up()
            connection.sender, connection.number = sender, number
            return True

    def _read(self, connection: _Connection, secured: ssl.SSLSocket) -> None:
        assembler = FrameAssembler()
        sender = connection.sender
        assert sender is not None, "the sender must be known before its messages are read"
        while size := secured.recv_into(assembler.target):
            self.received_bytes += size
            with connection.delivering:
                for lane, message in assembler.received(size):
                    self._deliver(sender, lane, message)
            within = assembler.is_within_frame
            connection.within_frame_s = time.monotonic() if within else None


def _keep_alive(secured: ssl.SSLSocket) -> None:
    """Let the kernel detect that a silent peer's machine is gone."""
    secured.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # Linux has all three options
            secured.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
