"""Finds out whether a store fences its writers; nothing is written before that.

A broker starts even if its store cannot be reached. The store is probed before the first write to
it, which is a claim or a shipment. Until a probe has succeeded, every write fails as it does while
the store cannot be reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from broker.errors import HeadwaterError, UnfencedStoreError
from broker.ports.system import Clock

_PAUSE_MS: Final = 1_000  # between two probes; meanwhile the last answer holds


class Fence:
    """The probe of one store, and its result. Any thread."""

    def __init__(self, probe: Callable[[], None], clock: Clock) -> None:
        """``probe`` raises UnfencedStoreError, or RemoteTierUnavailableError; it may block."""
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._known = False
        self._next_ms = 0
        self.error: HeadwaterError | None = None  # of the last probe, if it failed

    def require(self) -> None:
        """Return if the store fences its writers. Blocks while the store is probed.

        Raises:
            UnfencedStoreError: the store does not; it is not probed again.
            RemoteTierUnavailableError: the store has not answered yet.
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
