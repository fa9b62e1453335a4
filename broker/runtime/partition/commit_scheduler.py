"""A few threads that run partitions' commit turns, so that many partitions share few threads.

A partition with work is queued once and runs on one thread at a time: it is an actor. Group commit
follows by itself: whatever arrives during one turn's fdatasync is the next turn's group.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

STOP_S: Final = 30.0  # for what is queued; a turn lasts as long as an fsync
_STOP: Final = None


class Turn(Protocol):
    """Something that takes turns on the scheduler's threads."""

    def run_turn(self) -> None:
        """Do one bounded piece of work; must not raise."""


class TurnScheduler(Protocol):
    """Whoever lets partitions take their turns: threads, or a simulated world."""

    on_crash: Callable[[BaseException], None]  # hears of a turn that raised, which is a bug

    def schedule(self, turn: Turn) -> None:
        """Queue one turn. Any thread; the caller sees to it that a turn is queued only once."""

    def run_here(self, turn: Turn) -> None:
        """Run one turn now, on the caller's thread. Blocks.

        The caller sees to it that the turn is not queued meanwhile.
        """


class CommitScheduler:
    """Runs turns on ``threads_count`` daemon threads, first come first served."""

    def __init__(self, threads_count: int, on_crash: Callable[[BaseException], None]) -> None:
        """Prepare the threads; ``on_crash`` hears of a turn that raised, which is a bug."""
        self._ready: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self.on_crash = on_crash  # hears of bugs on other threads of the broker, too
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
        """See ``TurnScheduler.run_here``: it spares the caller two changes of thread."""
        self._run(turn)

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Let queued turns finish, then end the threads; tell whether all have ended. Blocks.

        A thread that hangs in its turn is left to the end of the process.
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
