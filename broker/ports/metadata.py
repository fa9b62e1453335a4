"""The interface of the metadata log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class MetadataLog(Protocol):
    """The replicated log of metadata commands (one node here, Raft in a cluster)."""

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """Commit one command durably, apply it, return its reply. Blocks.

        Raises:
            CommitTimeoutError: it is not known whether the command was or will be applied.
            HeadwaterError: the state machine rejected the command; or the command was not proposed.
        """

    def barrier(self, *, timeout_ms: int) -> int:
        """Wait until all commands that were committed before this call are applied. Blocks.

        Returns the applied index.

        Raises:
            UnavailableError: no majority of the controllers confirmed it in time.
        """

    def subscribe(self, subscriber: Callable[[int, Any], None]) -> None:
        """Call ``subscriber(index, state)`` now and after every change, in order.

        Several changes may be reported by one call. The subscriber runs on the thread that applies
        commands: it must be quick, must not raise and must not propose.
        """
