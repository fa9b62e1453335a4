"""Messages between Raft members over TLS 1.3, each side with a certificate of the cluster's CA.

A connection carries messages one way: who sends, dials. Both sides check that the other's
certificate names the member that it should be, as the URI ``headwater://CLUSTER/controller/NODE``;
nothing that a peer sends is decoded before that. A frame is a length (u32, little-endian, bounded)
and a message. What cannot be sent at once is dropped: Raft repeats itself.

Threads: one that accepts, one for each accepted connection, one for each other member. A handshake
and a half frame have a deadline; a new connection of a member ends its older one.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import structlog

from broker.codec.raft_messages import decode, encode
from broker.errors import EnvelopeError, InvalidConfigError
from broker.model.raft import MESSAGE_BYTES_MAX, NodeId
from broker.model.raft_messages import Message

_log = structlog.get_logger(__name__)

_LENGTH: Final = struct.Struct("<I")
_QUEUE_MAX: Final = 256
_HANDSHAKE_S: Final = 5.0
_FRAME_S: Final = 10.0  # a frame that has begun ends within this
_IDLE_S: Final = 1.0  # then a sender looks whether its peer is still there
_RETRY_S: Final = 0.2
_AGAIN_S: Final = 0.02
_CONNECTIONS_PER_MEMBER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTls:
    """PEM files: the cluster's CA, this member's certificate and its key."""

    ca_file: Path
    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class Address:
    """Where a member listens."""

    host: str
    port: int


class TlsRaftTransport:
    """Implements ``RaftTransport``. Any thread."""

    def __init__(
        self,
        *,
        cluster: str,
        me: NodeId,
        listener: socket.socket,
        peers: Mapping[NodeId, Address],
        tls: RaftTls,
    ) -> None:
        """Take a listening socket and the other members' addresses; connect on `start`.

        Raises:
            InvalidConfigError: the certificate, its key or the CA cannot be used.
        """
        self._cluster = cluster
        self._me = me
        self._listener = listener
        self._peers = dict(peers)
        try:
            self._server_context = _context(ssl.PROTOCOL_TLS_SERVER, tls)
            self._client_context = _context(ssl.PROTOCOL_TLS_CLIENT, tls)
        except (OSError, ssl.SSLError) as cause:
            raise InvalidConfigError(f"the Raft certificates cannot be used: {cause}") from cause
        self._members = {member_uri(cluster, peer): peer for peer in peers}
        self._queues: dict[NodeId, queue.Queue[bytes | None]] = {
            peer: queue.Queue(_QUEUE_MAX) for peer in peers
        }
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._accepted: dict[socket.socket, NodeId | None] = {}
        self._threads: list[threading.Thread] = []
        self.refused: Counter[str] = Counter()  # why connections were ended, for metrics

    def start(self, deliver: Callable[[NodeId, Message], None]) -> None:
        """See ``RaftTransport.start``."""
        self._deliver = deliver
        self._spawn("raft-accept", self._accept)
        for peer in self._peers:
            self._spawn(f"raft-to-{peer}", self._send_to, peer)

    def send(self, target: NodeId, message: Message) -> None:
        """See ``RaftTransport.send``."""
        data = encode(message)
        assert len(data) <= MESSAGE_BYTES_MAX, f"a message of {len(data)} bytes"
        with contextlib.suppress(queue.Full):  # lost, as on any network
            self._queues[target].put_nowait(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """See ``RaftTransport.close``. Blocks until the threads have ended."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._accepted:
                _break(connection)
        for waiting in self._queues.values():
            with contextlib.suppress(queue.Full):
                waiting.put_nowait(None)
        for thread in list(self._threads):
            thread.join(_HANDSHAKE_S + 1)

    def _spawn(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # ------------------------------------------------------------------ receiving

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                self._stopping.wait(_RETRY_S)  # out of descriptors: the listener itself is fine
                continue
            with self._lock:
                full = len(self._accepted) >= _CONNECTIONS_PER_MEMBER * len(self._peers)
                if not full:
                    self._accepted[connection] = None
            if full or self._stopping.is_set():
                self.refused["too many"] += 1
                connection.close()
                continue
            self._threads = [one for one in self._threads if one.is_alive()]
            self._spawn("raft-from", self._receive, connection)

    def _receive(self, connection: socket.socket) -> None:
        raw = connection
        try:
            connection.settimeout(_HANDSHAKE_S)
            with self._server_context.wrap_socket(connection, server_side=True) as secured:
                sender = self._identify(secured)
                if sender is None:
                    self.refused["not a member"] += 1
                    return
                self._supersede(sender, raw, secured)
                raw = secured
                _keep_alive(secured)
                while not self._stopping.is_set():
                    self._deliver(sender, decode(self._frame(secured)))
        except EnvelopeError as error:
            self.refused["malformed"] += 1
            _log.warning("raft_peer_refused", reason=error.message)
        except OSError as error:
            self.refused["tls" if isinstance(error, ssl.SSLError) else "connection"] += 1
        finally:
            with self._lock:
                self._accepted.pop(raw, None)
            connection.close()

    def _supersede(self, sender: NodeId, raw: socket.socket, secured: socket.socket) -> None:
        """Let a member's newest connection be its only one."""
        with self._lock:
            self._accepted.pop(raw, None)
            for other, owner in self._accepted.items():
                if owner == sender:
                    _break(other)
            self._accepted[secured] = sender

    def _identify(self, secured: ssl.SSLSocket) -> NodeId | None:
        return next((self._members[uri] for uri in _uris(secured) if uri in self._members), None)

    def _frame(self, secured: ssl.SSLSocket) -> bytes:
        secured.settimeout(None)  # members may have nothing to say for days
        first = _read(secured, 1)
        secured.settimeout(_FRAME_S)
        (length,) = _LENGTH.unpack(first + _read(secured, _LENGTH.size - 1))
        if not 0 < length <= MESSAGE_BYTES_MAX:
            raise EnvelopeError(f"a frame of {length} bytes is out of bounds")
        return _read(secured, length)

    # ------------------------------------------------------------------ sending

    def _send_to(self, peer: NodeId) -> None:
        frame: bytes | None = None
        while not self._stopping.is_set():
            try:
                frame = self._serve(peer, frame)
            except OSError as error:
                _log.debug("raft_connection_lost", peer=peer, reason=str(error))
                frame = None
                _empty(self._queues[peer])  # what is old by now is only a burden
            self._stopping.wait(_RETRY_S if frame is None else _AGAIN_S)

    def _serve(self, peer: NodeId, first: bytes | None) -> bytes | None:
        """Connect and send; return a frame that found the peer gone, to be sent to its successor.

        A peer that restarted is noticed before a frame is sent, not by losing it: the first frame
        after a long silence is the one that asks for a vote.
        """
        address = self._peers[peer]
        with (
            socket.create_connection((address.host, address.port), _HANDSHAKE_S) as plain,
            self._client_context.wrap_socket(plain, server_hostname=None) as secured,
        ):
            if member_uri(self._cluster, peer) not in _uris(secured):
                self.refused["not who it should be"] += 1
                return None
            secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frame = first
            while not self._stopping.is_set():
                if frame is not None:
                    if _has_hung_up(secured):
                        return frame
                    secured.settimeout(_FRAME_S)
                    secured.sendall(frame)
                try:
                    frame = self._queues[peer].get(timeout=_IDLE_S)
                except queue.Empty:
                    frame = None
                    if _has_hung_up(secured):
                        return None
        return None


def member_uri(cluster: str, node: NodeId) -> str:
    """Return what a member's certificate has to name (subject alternative name, URI)."""
    return f"headwater://{quote(cluster, safe='')}/controller/{quote(node, safe='')}"


def _context(protocol: int, tls: RaftTls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # who it is stands in the URI, which is checked instead
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(tls.ca_file)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def _uris(secured: ssl.SSLSocket) -> list[str]:
    certificate = secured.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    return [str(value) for kind, value in names if kind == "URI"]  # type: ignore[str-unpack]


def _read(secured: ssl.SSLSocket, size: int) -> bytes:
    parts = []
    while size:
        part = secured.recv(min(size, 64 * 1024))
        if not part:
            raise ConnectionResetError("the peer hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _has_hung_up(secured: ssl.SSLSocket) -> bool:
    """Tell whether the other side, which never says anything, has closed the connection."""
    secured.settimeout(0)
    try:
        secured.recv(1)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    return True


def _keep_alive(secured: ssl.SSLSocket) -> None:
    """Let the kernel find out when a silent peer's machine has gone."""
    secured.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # Linux has all of them
            secured.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _empty(waiting: queue.Queue[bytes | None]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
