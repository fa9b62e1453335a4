"""Finds out whether a store fences its writers; nothing is written before that.

A store that cannot be reached when a broker starts is no reason not to start. It is asked before
the first write to it instead: a claim, or a shipment. Until it has answered, each of them fails as
it does while the store is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from broker.errors import HeadwaterError, UnfencedStoreError
from broker.ports.system import Clock

_PAUSE_MS: Final = 1_000  # between two probes; meanwhile the last answer holds


class Fence:
    """One store's probe. Any thread."""

    def __init__(self, probe: Callable[[], None], clock: Clock) -> None:
        """``probe`` raises UnfencedStoreError, or RemoteTierUnavailableError; it may block."""
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._known = False
        self._next_ms = 0
        self.error: HeadwaterError | None = None  # of the last probe, if it failed

    def require(self) -> None:
        """Return if the store fences its writers. Blocks while it is asked.

        Raises:
            UnfencedStoreError: it does not; it is not asked again.
            RemoteTierUnavailableError: it has not answered yet.
        """
        with self._lock:
            if self._known:
                return
            error = self.error
            waits = self._clock.monotonic_ms() < self._next_ms
            if error is not None and (waits or isinstance(error, UnfencedStoreError)):
                raise type(error)(error.message, **error.facts)
            try:
                self._probe()
            except HeadwaterError as found:
                self.error = found
                self._next_ms = self._clock.monotonic_ms() + _PAUSE_MS
                raise
            self._known, self.error = True, None
