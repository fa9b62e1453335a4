"""The metadata log, as everybody above it sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class MetadataLog(Protocol):
    """The replicated log of metadata commands (one node here, Raft in a cluster)."""

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """Commit one command durably, apply it, return its reply. Blocks.

        Raises:
            CommitTimeoutError: whether it was, or will be, applied is not known.
            HeadwaterError: what the state machine rejected, typed; or why nothing was tried.
        """

    def barrier(self, *, timeout_ms: int) -> int:
        """Return an applied index once everything committed before this call is applied. Blocks.

        Raises:
            UnavailableError: nobody could confirm that in time.
        """

    def subscribe(self, subscriber: Callable[[int, Any], None]) -> None:
        """Call ``subscriber(index, state)`` now and after every change, in order.

        Several changes may be reported as one. Runs where commands are applied: be quick, do not
        raise, propose nothing.
        """
