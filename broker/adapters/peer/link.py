"""The connections between this broker and the other brokers: for Raft, control and replication.

A broker has one listening port. Two brokers have at most two connections, for any number of
partitions: each broker connects for the messages that it sends. TLS 1.3 with certificates on both
sides. Several lanes (priority classes) share a connection; the most urgent lane is sent first. A
message that cannot be sent is dropped and counted: the protocols above repeat their messages.
docs/decisions/0011 explains why this is not gRPC.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import structlog

from broker.adapters.peer.identity import PeerAddress, contexts
from broker.adapters.peer.receiver import PeerReceiver
from broker.adapters.peer.sender import PeerSender, SenderCounters
from broker.adapters.tls.context import LiveContext, TlsFiles
from broker.codec.peer.frames import LaneKind
from broker.errors import CorruptDataError
from broker.model.ids import BrokerId
from broker.model.member_uri import member_uri

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Lane(Generic[T]):
    """One kind of message over a link. Any thread."""

    def __init__(self, link: PeerLink, kind: LaneKind) -> None:
        """Only :meth:`PeerLink.lane` makes lanes."""
        self.malformed_count = 0  # messages that did not decode; they are dropped
        self._link = link
        self._kind = kind
        self._decode: Callable[[BrokerId, memoryview], T] | None = None
        self._deliver: Callable[[BrokerId, T], None] | None = None

    def start(
        self,
        decode: Callable[[BrokerId, memoryview], T],
        deliver: Callable[[BrokerId, T], None],
    ) -> None:
        """Deliver messages from now on. ``decode`` raises CorruptDataError for other bytes.

        ``deliver`` is called on any thread, but by one thread at a time for a sender. It must be
        quick.
        """
        self._decode, self._deliver = decode, deliver
        self._link.start()

    def send(self, to: BrokerId, buffers: Sequence[Any]) -> bool:
        """Send the buffers as one message; return False if it was dropped.

        The caller must not change the buffers afterwards.
        """
        return self._link.send(to, self._kind, buffers)

    def stop(self) -> None:
        """Deliver no more messages; block until no delivery runs."""
        self._deliver = None
        self._link.wait_delivered()

    def take(self, sender: BrokerId, message: memoryview) -> None:
        """Deliver a message that has arrived; the link calls this."""
        decode, deliver = self._decode, self._deliver
        if decode is None or deliver is None:
            return
        try:
            decoded = decode(sender, message)
        except CorruptDataError as error:
            self.malformed_count += 1
            if self.malformed_count.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...
                _log.warning(
                    "peer_message_malformed",
                    peer=sender,
                    lane=self._kind.name,
                    reason=error.message,
                    count=self.malformed_count,
                )
            return
        try:
            deliver(sender, decoded)
        except Exception as bug:
            self._link.crashed(bug)
            raise


class PeerLink:
    """All connections of this broker to other brokers. Any thread."""

    def __init__(
        self,
        *,
        cluster: str,
        me: BrokerId,
        listener: socket.socket,
        peers: Mapping[BrokerId, PeerAddress],
        tls: TlsFiles,
        on_crash: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Take a listening socket and the other brokers' addresses; the first lane starts the link.

        ``on_crash`` is called for bugs only, also for bugs in a ``deliver`` function.

        Raises:
            InvalidConfigError: the certificate, its key or the CA cannot be used.
        """
        self._cluster = cluster
        self._me = me
        self._on_crash = on_crash
        self._peers = {peer: address for peer, address in peers.items() if peer != me}
        self._contexts = accepting, _ = contexts(tls)
        self._receiver = PeerReceiver(
            listener=listener,
            context=accepting,
            members=self._uris(),
            deliver=lambda sender, lane, message: self._lanes[lane].take(sender, message),
        )
        self._lanes: dict[LaneKind, Lane[Any]] = {kind: Lane(self, kind) for kind in LaneKind}
        self._senders: dict[BrokerId, PeerSender] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._started = self._closed = False

    @property
    def me(self) -> BrokerId:
        """This broker."""
        return self._me

    @property
    def contexts(self) -> tuple[LiveContext, LiveContext]:
        """The TLS contexts of the accepting and of the connecting side."""
        return self._contexts

    @property
    def refused(self) -> Counter[str]:
        """Number of connections that this broker closed, by reason, for metrics."""
        return self._receiver.refused

    @property
    def received_bytes(self) -> int:
        """Bytes received since the start."""
        return self._receiver.received_bytes

    def counters(self) -> dict[BrokerId, SenderCounters]:
        """Return the counters of sending to each broker, for metrics."""
        with self._lock:
            return {peer: sender.counters for peer, sender in self._senders.items()}

    def connected(self) -> set[BrokerId]:
        """Return the brokers to which this broker is connected now."""
        with self._lock:
            return {peer for peer, sender in self._senders.items() if sender.is_connected}

    def callers(self) -> list[BrokerId]:
        """Return the brokers that are connected to this broker now."""
        return self._receiver.connections()

    def lane(self, kind: LaneKind) -> Lane[Any]:
        """Return the link's only lane of this kind."""
        return self._lanes[kind]

    def start(self) -> None:
        """Listen and connect; further calls do nothing."""
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True
            self._receiver.start()
            for peer, address in self._peers.items():
                self._dial(peer, address)

    def send(self, to: BrokerId, kind: LaneKind, buffers: Sequence[Any]) -> bool:
        """See :meth:`Lane.send`; a message to an unknown broker is dropped."""
        sender = self._senders.get(to)
        return sender is not None and sender.send(kind, buffers)

    def crashed(self, bug: BaseException) -> None:
        """Report a bug to the owner: the process must not go on if one of these threads ended."""
        if self._on_crash is not None:
            self._on_crash(bug)

    def end_revoked(self, numbers: frozenset[int]) -> None:
        """End connections to brokers whose certificates have these numbers."""
        self._receiver.end_revoked(numbers)
        with self._lock:
            senders = list(self._senders.values())
        for one in senders:
            one.end_if_revoked(numbers)

    def wait_delivered(self) -> None:
        """Return when the deliveries that ran before this call have ended."""
        self._receiver.wait_delivered()

    def close(self) -> None:
        """Close all connections; block until no more message is delivered."""
        with self._lock:
            self._closed = True
            for sender in self._senders.values():
                sender.stop()
            threads = list(self._threads)
        self._receiver.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _uris(self) -> dict[str, BrokerId]:
        return {member_uri(self._cluster, peer): peer for peer in self._peers}

    def _dial(self, peer: BrokerId, address: PeerAddress) -> None:
        sender = self._senders[peer] = PeerSender(
            name=peer,
            uri=member_uri(self._cluster, peer),
            address=address,
            context=self._contexts[1],
        )
        thread = threading.Thread(
            target=self._run, args=(sender,), name=f"peer-to-{peer}", daemon=True
        )
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _run(self, sender: PeerSender) -> None:
        try:
            sender.run()
        except Exception as bug:
            self.crashed(bug)
            raise
