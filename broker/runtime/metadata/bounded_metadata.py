"""The metadata as clients may change it: what takes more than its share is not proposed."""

from __future__ import annotations

import threading

from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.shares import Shares
from broker.core.metadata.state import MetadataState
from broker.runtime.metadata.metadata_log import Answered, SharedMetadata


class BoundedMetadata:
    """Implements ``SharedMetadata``. Any thread.

    Proposals that do not wait are the broker's own; they add no cursor and no position, and pass.
    """

    def __init__(self, metadata: SharedMetadata) -> None:
        """Propose to ``metadata`` what fits."""
        self._metadata = metadata
        self._shares = Shares()
        self._lock = threading.Lock()

    @property
    def state(self) -> MetadataState:
        """See ``AppliedMetadata.state``."""
        return self._metadata.state

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """See ``WaitingMetadata.propose``.

        Raises:
            MetadataFullError: the command would give a stream more than it may have.
            QuotaExceededError: or a tenant.
        """
        with self._lock:
            refused = self._shares.refusal(self._metadata.state, command)
        if refused is not None:
            raise refused
        return self._metadata.propose(command, timeout_ms=timeout_ms)

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """See ``ProposingMetadata.propose_soon``."""
        self._metadata.propose_soon(command, answered, timeout_ms=timeout_ms)

    def barrier(self, *, timeout_ms: int = 10_000) -> int:
        """See ``WaitingMetadata.barrier``."""
        return self._metadata.barrier(timeout_ms=timeout_ms)
