"""A few threads that run the turns of all partitions, so that many partitions share few threads.

A turn is one bounded piece of work of a partition. A partition with work is queued once, and its
turns run on one thread at a time (an actor). Group commit follows from this: all writes that arrive
during the fdatasync of one turn are the group of the next turn.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

STOP_S: Final = 30.0  # for all queued turns; a turn lasts as long as an fsync
_STOP: Final = None


class Turn(Protocol):
    """An object whose turns the scheduler runs."""

    def run_turn(self) -> None:
        """Do one bounded piece of work; must not raise."""


class TurnScheduler(Protocol):
    """Runs the turns of partitions: on threads, or in a simulation."""

    on_crash: Callable[[BaseException], None]  # called when a turn raised, which is a bug

    def schedule(self, turn: Turn) -> None:
        """Queue one turn. Any thread; the caller ensures that the turn is not queued already."""

    def run_here(self, turn: Turn) -> None:
        """Run one turn now, on the caller's thread. Blocks.

        The caller ensures that the turn is not queued meanwhile.
        """


class CommitScheduler:
    """Runs turns on ``threads_count`` daemon threads, in the order of queueing."""

    def __init__(self, threads_count: int, on_crash: Callable[[BaseException], None]) -> None:
        """Prepare the threads; ``on_crash`` is called when a turn raised, which is a bug."""
        self._ready: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self.on_crash = on_crash  # also called for bugs on other threads of the broker
        self._threads = [
            threading.Thread(target=self._work, name=f"commit-{index}", daemon=True)
            for index in range(threads_count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def schedule(self, turn: Turn) -> None:
        """See ``TurnScheduler.schedule``."""
        self._ready.put(turn)

    def run_here(self, turn: Turn) -> None:
        """See ``TurnScheduler.run_here``: it avoids two changes of thread."""
        self._run(turn)

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Run the queued turns, then end the threads; return whether all have ended. Blocks.

        A thread that hangs in its turn ends with the process.
        """
        for _ in self._threads:
            self._ready.put(_STOP)
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (turn := self._ready.get()) is not _STOP:
            self._run(turn)

    def _run(self, turn: Turn) -> None:
        try:
            turn.run_turn()
        except BaseException as crash:  # noqa: BLE001 - the supervisor ends the process
            self.on_crash(crash)
