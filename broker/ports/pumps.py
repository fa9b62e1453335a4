"""Pumps, and the drives that run their turns.

A pump is the work of a shell, cut into synchronous turns: ``turn(now_ms)`` does the work that is
due now and returns the time of the next turn. A pump owns no thread, never waits for another
broker, and reads no clock. Other threads reach a pump only through its mailboxes (``Inbox``, a
partition's ``TurnQueue``). So one thread can drive all pumps of many brokers: the simulation does
(docs/decisions/0021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

NEVER_MS: Final = 1 << 62  # no turn is due until the next wake

PumpTurn = Callable[[int], int]  # monotonic ms now -> latest monotonic ms of the next turn


class Pump(Protocol):
    """An object that does its work in turns."""

    def turn(self, now_ms: int, /) -> int:
        """Do the work that is due; return the latest time of the next turn."""


class Driven(Protocol):
    """A pump whose turns are run, by a thread or by the simulation."""

    def start(self) -> None:
        """Run the first turn soon."""

    def wake(self) -> None:
        """Run a turn soon, because there is new work. Any thread, also within a turn; quick."""

    def stop(self, timeout_s: float | None = None) -> None:
        """Run no more turns. Blocks until the present turn has ended, at most ``timeout_s``."""


class Drive(Protocol):
    """Runs the turns of a pump after it is started."""

    def __call__(self, name: str, turn: PumpTurn) -> Driven:
        """Return the driven pump, not started yet; ``name`` is for people."""
