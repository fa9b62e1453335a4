"""The connections between this broker and the others: all of Raft, control and replication.

One listening port, and at most two connections between two brokers whatever the number of
partitions: who sends, dials. TLS 1.3 with certificates on both sides. Several lanes share a
connection, the most urgent goes first. What cannot be sent is dropped and counted: everything
above repeats itself. docs/decisions/0011 says why this is not gRPC.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import structlog

from broker.adapters.peer.identity import PeerAddress, PeerTls, contexts
from broker.adapters.peer.receiver import PeerReceiver
from broker.adapters.peer.sender import PeerSender, SenderCounters
from broker.codec.peer.frames import LaneKind
from broker.errors import CorruptDataError
from broker.model.ids import BrokerId
from broker.model.member_uri import member_uri

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Lane(Generic[T]):
    """One kind of messages over a link. Any thread."""

    def __init__(self, link: PeerLink, kind: LaneKind) -> None:
        """Made by :meth:`PeerLink.lane`."""
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
        """Hear messages from now on. ``decode`` raises CorruptDataError for what is none.

        ``deliver`` is called on any thread, never twice at once for one sender. It is quick.
        """
        self._decode, self._deliver = decode, deliver
        self._link.start()

    def send(self, to: BrokerId, buffers: Sequence[Any]) -> bool:
        """Send the buffers as one message, or drop it and say so. They are not changed later."""
        return self._link.send(to, self._kind, buffers)

    def stop(self) -> None:
        """Hear nothing more; blocks until nothing is delivered."""
        self._deliver = None
        self._link.wait_delivered()

    def take(self, sender: BrokerId, message: memoryview) -> None:
        """Hand an arrived message over; the link calls this."""
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
    """All connections of this broker to the others. Any thread."""

    def __init__(
        self,
        *,
        cluster: str,
        me: BrokerId,
        listener: socket.socket,
        peers: Mapping[BrokerId, PeerAddress],
        tls: PeerTls,
        on_crash: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Take a listening socket and the other brokers' addresses; the first lane's start begins.

        ``on_crash`` hears of bugs only, those of whoever is delivered to among them.

        Raises:
            InvalidConfigError: the certificate, its key or the CA cannot be used.
        """
        self._cluster = cluster
        self._me = me
        self._on_crash = on_crash
        self._peers = {peer: address for peer, address in peers.items() if peer != me}
        server_context, self._client_context = contexts(tls)
        self._receiver = PeerReceiver(
            listener=listener,
            context=server_context,
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
    def refused(self) -> Counter[str]:
        """Why connections were ended, for metrics."""
        return self._receiver.refused

    @property
    def received_bytes(self) -> int:
        """Bytes heard since the start."""
        return self._receiver.received_bytes

    def counters(self) -> dict[BrokerId, SenderCounters]:
        """Return what was sent to each broker since it is known, for metrics."""
        with self._lock:
            return {peer: sender.counters for peer, sender in self._senders.items()}

    def connected(self) -> set[BrokerId]:
        """Return the brokers that messages can be sent to now."""
        with self._lock:
            return {peer for peer, sender in self._senders.items() if sender.is_connected}

    def callers(self) -> list[BrokerId]:
        """Return whose connections to this broker are open."""
        return self._receiver.connections()

    def lane(self, kind: LaneKind) -> Lane[Any]:
        """Return the link's lane of this kind; there is one."""
        return self._lanes[kind]

    def start(self) -> None:
        """Listen and connect; more than once is once."""
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True
            self._receiver.start()
            for peer, address in self._peers.items():
                self._dial(peer, address)

    def set_peers(self, peers: Mapping[BrokerId, PeerAddress]) -> None:
        """Change who the other brokers are and where; connections to the same ones stay."""
        with self._lock:
            self._peers = {peer: address for peer, address in peers.items() if peer != self._me}
            self._receiver.set_members(self._uris())
            if not self._started or self._closed:
                return
            for peer, sender in list(self._senders.items()):
                if self._peers.get(peer) != sender.address:
                    del self._senders[peer]
                    sender.stop()
            for peer, address in self._peers.items():
                if peer not in self._senders:
                    self._dial(peer, address)

    def send(self, to: BrokerId, kind: LaneKind, buffers: Sequence[Any]) -> bool:
        """See :meth:`Lane.send`; to a broker that is not known, it is dropped."""
        sender = self._senders.get(to)
        return sender is not None and sender.send(kind, buffers)

    def crashed(self, bug: BaseException) -> None:
        """Tell the owner: what one thread does no more, the process must not go on without."""
        if self._on_crash is not None:
            self._on_crash(bug)

    def wait_delivered(self) -> None:
        """Return when nothing is being delivered that was before the call."""
        self._receiver.wait_delivered()

    def close(self) -> None:
        """End all connections; blocks until nothing is delivered any more."""
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
            context=self._client_context,
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
