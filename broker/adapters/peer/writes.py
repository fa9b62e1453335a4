"""Writes for the leaders of partitions, over the link between brokers."""

from __future__ import annotations

from collections.abc import Callable

from broker.adapters.peer.link import PeerLink
from broker.codec.peer.forwarded_writes import decode, encode
from broker.codec.peer.frames import LANE_BYTES_MAX, LaneKind
from broker.model.forwarded_writes import ForwardingMessage
from broker.model.ids import BrokerId


class PeerWriteTransport:
    """Implements ``WriteTransport`` over a link that other transports share. Any thread."""

    def __init__(self, link: PeerLink) -> None:
        """Use the link's lane for writes."""
        self._lane = link.lane(LaneKind.WRITES)

    def start(self, deliver: Callable[[BrokerId, ForwardingMessage], None]) -> None:
        """See ``WriteTransport.start``."""
        self._lane.start(lambda _, data: decode(data), deliver)

    def send(self, to: BrokerId, message: ForwardingMessage) -> bool:
        """See ``WriteTransport.send``; a message above the lane's limit is dropped, too."""
        pieces = encode(message)
        if sum(map(len, pieces)) > LANE_BYTES_MAX[LaneKind.WRITES]:
            return False
        return self._lane.send(to, pieces)

    def close(self) -> None:
        """Deliver no more messages; the link stays open for other transports."""
        self._lane.stop()
