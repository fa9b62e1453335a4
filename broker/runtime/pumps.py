"""The threads that drive pumps (``broker/ports/pumps.py``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from broker.ports.pumps import Drive, Driven, PumpTurn
from broker.ports.system import Clock

_WAIT_S_MAX: Final = 3600.0  # the longest sleep of a thread
_LOOK_S: Final = 0.1  # the longest sleep of a caller: its pump may poll state that sends no wake-up

Answer = TypeVar("Answer")


class PumpThread:
    """Drives one pump on a thread of its own."""

    def __init__(
        self,
        name: str,
        turn: PumpTurn,
        *,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Prepare; if a turn raises, ``on_crash`` gets the exception and no further turn runs."""
        self._turn = turn
        self._clock = clock
        self._on_crash = on_crash
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """See ``Driven.start``."""
        self._thread.start()

    def wake(self) -> None:
        """See ``Driven.wake``."""
        self._woken.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """See ``Driven.stop``. Returns at once if the thread was never started."""
        self._stopping = True
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping:
                next_ms = self._turn(self._clock.monotonic_ms())
                wait_s = (next_ms - self._clock.monotonic_ms()) / 1000
                self._woken.wait(min(max(0.0, wait_s), _WAIT_S_MAX))
                self._woken.clear()  # before the turn: a later wake-up is for the next turn
        except BaseException as crash:  # noqa: BLE001 - the owner ends the process
            self._on_crash(crash)


def on_threads(clock: Clock, on_crash: Callable[[BaseException], None]) -> Drive:
    """Return a ``Drive`` that gives each pump a thread."""

    def drive(name: str, turn: PumpTurn) -> Driven:
        return PumpThread(name, turn, clock=clock, on_crash=on_crash)

    return drive


def wait_for_answer(
    clock: Clock, begin: Callable[[Callable[[], None], Callable[[Answer], None]], PumpTurn]
) -> Answer:
    """Take the turns of one pump on this thread until it has answered. Blocks.

    ``begin`` gets two functions, one that wakes the pump and one that takes its answer, and returns
    the function that takes a turn.
    """
    woken = threading.Event()
    answers: list[Answer] = []
    turn = begin(woken.set, answers.append)
    while True:
        next_ms = turn(clock.monotonic_ms())
        if answers:
            return answers[0]
        wait_s = (next_ms - clock.monotonic_ms()) / 1000
        woken.wait(min(max(0.0, wait_s), _LOOK_S))
        woken.clear()  # before the turn: a later wake-up is for the next turn
