"""Messages between replicas over the link: all partitions of two brokers share one connection."""

from __future__ import annotations

from collections.abc import Callable

from broker.adapters.peer.link import PeerLink
from broker.codec.peer.frames import LaneKind
from broker.codec.peer.replica_messages import decode, encode
from broker.model.ids import BrokerId, PartitionId
from broker.model.replica_messages import ReplicaMessage
from broker.ports.cluster import ReplicaAddress
from broker.ports.partition import StoredBatch


class PeerReplicaTransport:
    """Implements ``ReplicaTransport`` over a link that other transports share. Any thread.

    Requests for all partitions are delivered, even if this broker does not lead the partition: the
    receiver of the request decides.
    """

    def __init__(self, link: PeerLink) -> None:
        """Use the link's lane for replicas."""
        self._lane = link.lane(LaneKind.REPLICA)

    @property
    def malformed_count(self) -> int:
        """Messages dropped because they did not decode, damaged batches among them."""
        return self._lane.malformed_count

    def start(self, deliver: Callable[[BrokerId, PartitionId, ReplicaMessage], None]) -> None:
        """See ``ReplicaTransport.start``."""
        self._lane.start(
            lambda sender, data: decode(data, sender=sender, batch=StoredBatch),
            lambda sender, found: deliver(sender, *found),
        )

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """See ``ReplicaTransport.send``. Batches are sent without a copy."""
        self._lane.send(to, encode(address.partition_id, message))

    def serve(self, address: ReplicaAddress) -> None:
        """See ``ReplicaTransport.serve``."""

    def stop_serving(self, address: ReplicaAddress) -> None:
        """See ``ReplicaTransport.stop_serving``."""

    def close(self) -> None:
        """Deliver no more messages; the link stays open for other transports."""
        self._lane.stop()
