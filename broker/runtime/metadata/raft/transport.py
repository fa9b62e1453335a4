"""The interface of the transport between Raft members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.model.raft import NodeId
from broker.model.raft_messages import Message


class RaftTransport(Protocol):
    """Carries messages between members. May lose messages; never delays the caller."""

    def start(self, deliver: Callable[[NodeId, Message], None]) -> None:
        """Begin; ``deliver`` may be called on any thread, with an identified sender."""

    def send(self, target: NodeId, message: Message) -> None:
        """Send a message; it may be lost."""

    def close(self) -> None:
        """End all connections."""
