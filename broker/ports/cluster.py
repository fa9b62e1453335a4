"""What a broker of a cluster needs of the others. See :mod:`broker.ports` for the rest.

Nobody outside the broker's own rooms uses these, so they may speak of the cores' messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker.model.control_messages import ControlMessage
from broker.model.ids import BrokerId, PartitionId
from broker.model.replica_messages import ReplicaMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAddress:
    """A partition, as a transport may have to name it."""

    partition_id: PartitionId
    stream: str


class ReplicaTransport(Protocol):
    """Carries what replicas say; loses it when it must, never delays the caller. Any thread."""

    def start(self, deliver: Callable[[BrokerId, PartitionId, ReplicaMessage], None]) -> None:
        """Begin; ``deliver`` is called with an identified sender, on any thread. It is quick."""

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """Send, or lose. One message of one partition does not overtake another."""

    def serve(self, address: ReplicaAddress) -> None:
        """This broker leads the partition from now on: take requests. Does not block."""

    def stop_serving(self, address: ReplicaAddress) -> None:
        """It leads it no more. Does not block."""

    def close(self) -> None:
        """End all connections; blocks until nothing is delivered any more."""


class ControlTransport(Protocol):
    """Carries control messages between brokers, a broker's own included. As above."""

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """Begin; ``deliver`` is called with an identified sender, on any thread. It is quick."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Send, or lose; to oneself too."""

    def close(self) -> None:
        """End."""
