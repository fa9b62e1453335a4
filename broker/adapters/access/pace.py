"""The pace of one open call: its pieces pass as the caller's quota lets them, in their order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Final

from broker.model.access import Caller
from broker.model.quota import Flow
from broker.ports.access import UsageApi

_SLICE_MS: Final = 250  # of a wait: how late an end of the call, or another quota, is noticed
_NEVER: Final = threading.Event()  # only time ends a wait; ``stopped`` is asked after each slice
_tickets: Final = itertools.count(1)


class Pace:
    """One call has one pace, and one piece of it waits at a time."""

    def __init__(self, usage: UsageApi | None, caller: Caller, flow: Flow) -> None:
        """Without ``usage`` everything passes at once."""
        self._usage = usage
        self._caller = caller
        self._flow: Flow = flow
        self._ticket = next(_tickets)
        self._waits = False

    @property
    def is_limited(self) -> bool:
        """Whether a piece may have to wait at all; if not, its size need not be known."""
        return self._usage is not None

    def ask(self, size_bytes: int) -> int:
        """Return 0 if the next piece may pass now, else after how many ms to ask again."""
        if self._usage is None:
            return 0
        wait_ms = self._usage.ask(self._caller, self._flow, ticket=self._ticket, amount=size_bytes)
        self._waits = wait_ms > 0
        return min(wait_ms, _SLICE_MS)

    def leave(self) -> None:
        """Give up the piece that waits, if there is one: the call has ended."""
        if self._usage is not None and self._waits:
            self._usage.leave(self._caller, self._flow, ticket=self._ticket)
            self._waits = False

    def wait(self, size_bytes: int, stopped: Callable[[], bool]) -> bool:
        """Wait on this thread until the next piece may pass.

        ``stopped`` is asked now and then; the result is False once it returns True, and what it
        raises is raised.
        """
        try:
            while wait_ms := self.ask(size_bytes):
                if stopped():
                    return False
                _NEVER.wait(wait_ms / 1000)
            return True
        finally:
            self.leave()
