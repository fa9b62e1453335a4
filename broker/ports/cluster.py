"""Transports that carry messages between the brokers of a cluster.

Only code of the broker uses them, so their messages are the values that the cores use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker.model.control_messages import ControlMessage
from broker.model.forwarded_writes import ForwardingMessage
from broker.model.ids import BrokerId, PartitionId
from broker.model.replica_messages import ReplicaMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAddress:
    """The names of a partition that a transport may need."""

    partition_id: PartitionId
    stream: str


class ReplicaTransport(Protocol):
    """Carries messages between replicas. Any thread.

    A transport never delays its caller. It may lose a message.
    """

    def start(self, deliver: Callable[[BrokerId, PartitionId, ReplicaMessage], None]) -> None:
        """Start. ``deliver`` must be quick; it gets an authenticated sender, on any thread."""

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """Send, or lose, a message. The messages of one partition arrive in order."""

    def serve(self, address: ReplicaAddress) -> None:
        """Take requests for this partition, because this broker leads it now. Does not block."""

    def stop_serving(self, address: ReplicaAddress) -> None:
        """Take no more requests: this broker leads the partition no longer. Does not block."""

    def close(self) -> None:
        """Close all connections; block until ``deliver`` is called no more."""


class ControlTransport(Protocol):
    """Carries control messages between brokers, also from a broker to itself.

    Otherwise the rules of :class:`ReplicaTransport` hold.
    """

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """Start. ``deliver`` must be quick; it gets an authenticated sender, on any thread."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Send, or lose, a message. The receiver may be this broker."""

    def close(self) -> None:
        """Stop; call ``deliver`` no more."""


class WriteTransport(Protocol):
    """Carries writes to the leaders of their partitions, and the outcomes back. Any thread.

    It may lose a message on the way; it never delays its caller.
    """

    def start(self, deliver: Callable[[BrokerId, ForwardingMessage], None]) -> None:
        """Start. ``deliver`` must be quick; it gets an authenticated sender, on any thread."""

    def send(self, to: BrokerId, message: ForwardingMessage) -> bool:
        """Send a message; return False if it was dropped here."""

    def close(self) -> None:
        """Stop; call ``deliver`` no more."""
