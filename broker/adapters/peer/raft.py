"""Raft's messages over a link between brokers that other lanes share, or over a link of its own.

A message that cannot be sent at once is dropped: Raft repeats its messages.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping

from broker.adapters.peer.identity import PeerAddress
from broker.adapters.peer.link import PeerLink
from broker.adapters.tls.context import TlsFiles as RaftTls
from broker.codec.peer.frames import LaneKind
from broker.codec.peer.raft_messages import decode, encode, other_leader
from broker.errors import InvalidConfigError
from broker.model.ids import BrokerId
from broker.model.member_uri import member_uri
from broker.model.raft import MESSAGE_BYTES_MAX, NodeId, RaftName
from broker.model.raft_messages import Message

__all__ = ["PeerAddress", "PeerRaftTransport", "RaftTls", "TlsRaftTransport", "member_uri"]


class PeerRaftTransport:
    """Implements ``RaftTransport`` over a link that other transports share. Any thread."""

    def __init__(
        self,
        link: PeerLink,
        *,
        raft: RaftName = "own",
        on_other: Callable[[InvalidConfigError], None] | None = None,
    ) -> None:
        """Use the link's Raft lane; a member of the group is the broker of the same name.

        ``on_other`` gets an error if the group's elected leader runs another implementation of Raft
        than ``raft``: this member cannot take part in such a group.
        """
        self._lane = link.lane(LaneKind.RAFT)
        self._raft: RaftName = raft
        self._on_other = on_other

    def start(self, deliver: Callable[[NodeId, Message], None]) -> None:
        """See ``RaftTransport.start``."""
        self._lane.start(
            self._decode,
            lambda sender, message: deliver(NodeId(sender), message),
        )

    def send(self, target: NodeId, message: Message) -> None:
        """See ``RaftTransport.send``."""
        data = encode(message, raft=self._raft)
        assert len(data) <= MESSAGE_BYTES_MAX, f"a message of {len(data)} bytes"
        self._lane.send(BrokerId(target), (data,))

    def close(self) -> None:
        """Deliver no more messages; the link stays open for other transports."""
        self._lane.stop()

    def _decode(self, sender: BrokerId, message: memoryview) -> Message:
        data = bytes(message)
        other = other_leader(data, raft=self._raft)
        if other is not None and self._on_other is not None:
            self._on_other(
                InvalidConfigError(
                    f"the controllers of this cluster run cluster.raft = {other} (their leader is "
                    f"{sender}), but this broker is set to {self._raft}: set cluster.raft = "
                    f"{other} here. To change the whole cluster, stop all brokers, change the "
                    "setting of each, and start them",
                    expected=other,
                    found=self._raft,
                )
            )
        return decode(data, raft=self._raft)


class TlsRaftTransport(PeerRaftTransport):
    """Implements ``RaftTransport`` over a link of its own, for a group without brokers."""

    def __init__(
        self,
        *,
        cluster: str,
        me: NodeId,
        listener: socket.socket,
        peers: Mapping[NodeId, PeerAddress],
        tls: RaftTls,
        raft: RaftName = "own",
        on_other: Callable[[InvalidConfigError], None] | None = None,
    ) -> None:
        """Take a listening socket and the other members' addresses; connect on `start`.

        Raises:
            InvalidConfigError: the certificate, its key or the CA cannot be used.
        """
        self._link = PeerLink(
            cluster=cluster,
            me=BrokerId(me),
            listener=listener,
            peers={BrokerId(peer): address for peer, address in peers.items()},
            tls=tls,
        )
        super().__init__(self._link, raft=raft, on_other=on_other)

    @property
    def refused(self) -> Counter[str]:
        """Number of connections that this member closed, by reason, for metrics."""
        return self._link.refused

    def close(self) -> None:
        """See ``RaftTransport.close``. Blocks until the threads have ended."""
        super().close()
        self._link.close()
