"""Pumps, and the threads that drive them.

A pump is the work of a shell as synchronous turns: ``turn(now_ms)`` does what there is to do now
and returns when it wants its next turn. It owns no thread, never blocks on another broker, and
reads no clock. Threads meet in its mailboxes alone (``Inbox``, a partition's ``TurnQueue``). So
one thread can drive all pumps of many brokers, as the simulation does (docs/decisions/0021).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from broker.ports.system import Clock

NEVER_MS: Final = 1 << 62  # the next turn is the one after the next wake
_WAIT_S_MAX: Final = 3600.0  # what a thread sleeps at a stretch
_LOOK_S: Final = 0.1  # what a caller sleeps at a stretch; a pump may look at what wakes nobody

Answer = TypeVar("Answer")

PumpTurn = Callable[[int], int]  # monotonic ms now -> monotonic ms of the next turn, at the latest


class Pump(Protocol):
    """Whatever takes turns."""

    def turn(self, now_ms: int, /) -> int:
        """Do what there is to do; return when the next turn is due at the latest."""


class Driven(Protocol):
    """A pump that is taken turns of by somebody."""

    def start(self) -> None:
        """Take the first turn soon."""

    def wake(self) -> None:
        """Take a turn soon: there is news. Any thread, also within a turn; quick."""

    def stop(self, timeout_s: float | None = None) -> None:
        """Take no turn after this one. Blocks until it is over, so long at most."""


class Drive(Protocol):
    """Makes somebody drive a pump, once it is started."""

    def __call__(self, name: str, turn: PumpTurn) -> Driven:
        """Return who will take the turns; ``name`` is for people."""


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
        """Prepare; ``on_crash`` hears of a turn that raised, and there is no other after it."""
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
        """See ``Driven.stop``. One that never began has ended."""
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
                self._woken.clear()  # before the turn: what comes during it is for the next one
        except BaseException as crash:  # noqa: BLE001 - the owner ends the process
            self._on_crash(crash)


def on_threads(clock: Clock, on_crash: Callable[[BaseException], None]) -> Drive:
    """Return what gives each pump a thread."""

    def drive(name: str, turn: PumpTurn) -> Driven:
        return PumpThread(name, turn, clock=clock, on_crash=on_crash)

    return drive


def wait_for_answer(
    clock: Clock, begin: Callable[[Callable[[], None], Callable[[Answer], None]], PumpTurn]
) -> Answer:
    """Take the turns of one pump on this thread until it has answered. Blocks.

    ``begin`` is given what wakes the pump and what takes its answer, and returns its turn.
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
        woken.clear()  # before the turn: what comes during it is for the next one
