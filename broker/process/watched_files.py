"""Looks at the files that may change while the daemon runs; a pump."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from broker.ports.pumps import Driven
from broker.ports.system import Clock
from broker.runtime.pumps import PumpThread

LOOK_MS: Final = 200  # a change is taken at the second look that finds it


@runtime_checkable
class Watched(Protocol):
    """Files that are used again when they have changed."""

    def look(self, *, at_once: bool) -> None:
        """Use the files if they have changed; ``at_once``: an operator says that they have."""


class WatchedFiles:
    """Looks five times a second, and when it is asked to. Any thread."""

    def __init__(
        self, watched: Sequence[Watched], clock: Clock, on_crash: Callable[[BaseException], None]
    ) -> None:
        self._watched = watched
        self._asked = threading.Event()
        self._pump: Driven = PumpThread("watched-files", self.turn, clock=clock, on_crash=on_crash)

    def start(self) -> None:
        """Begin to look."""
        self._pump.start()

    def stop(self) -> None:
        """Look no more; blocks until the last look has ended."""
        self._pump.stop()

    def look_now(self) -> None:
        """Look soon, and take what has changed; does not block."""
        self._asked.set()
        self._pump.wake()

    def turn(self, now_ms: int) -> int:
        """See ``Pump.turn``."""
        asked = self._asked.is_set()
        self._asked.clear()
        for one in self._watched:
            one.look(at_once=asked)
        return now_ms + LOOK_MS
