"""Raft's messages over the link between brokers; alone, or beside the other lanes.

What cannot be sent at once is dropped: Raft repeats itself.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping

from broker.adapters.peer.identity import Address
from broker.adapters.peer.identity import PeerTls as RaftTls
from broker.adapters.peer.link import PeerLink
from broker.codec.peer.frames import LaneKind
from broker.codec.peer.raft_messages import decode, encode
from broker.model.ids import BrokerId
from broker.model.member_uri import member_uri
from broker.model.raft import MESSAGE_BYTES_MAX, NodeId
from broker.model.raft_messages import Message

__all__ = ["Address", "PeerRaftTransport", "RaftTls", "TlsRaftTransport", "member_uri"]


class PeerRaftTransport:
    """Implements ``RaftTransport`` over a link that others share. Any thread."""

    def __init__(self, link: PeerLink) -> None:
        """Use the link's Raft lane; a member of the group is the broker of the same name."""
        self._lane = link.lane(LaneKind.RAFT)

    def start(self, deliver: Callable[[NodeId, Message], None]) -> None:
        """See ``RaftTransport.start``."""
        self._lane.start(
            lambda _, data: decode(bytes(data)),
            lambda sender, message: deliver(NodeId(sender), message),
        )

    def send(self, target: NodeId, message: Message) -> None:
        """See ``RaftTransport.send``."""
        data = encode(message)
        assert len(data) <= MESSAGE_BYTES_MAX, f"a message of {len(data)} bytes"
        self._lane.send(BrokerId(target), (data,))

    def close(self) -> None:
        """Hear nothing more; the link stays open for the others."""
        self._lane.stop()


class TlsRaftTransport(PeerRaftTransport):
    """The same over a link of its own: for a group whose members are no brokers."""

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
        self._link = PeerLink(
            cluster=cluster,
            me=BrokerId(me),
            listener=listener,
            peers={BrokerId(peer): address for peer, address in peers.items()},
            tls=tls,
        )
        super().__init__(self._link)

    @property
    def refused(self) -> Counter[str]:
        """Why connections were ended, for metrics."""
        return self._link.refused

    def close(self) -> None:
        """See ``RaftTransport.close``. Blocks until the threads have ended."""
        super().close()
        self._link.close()
