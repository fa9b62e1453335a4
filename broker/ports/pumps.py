"""Pumps, and whoever drives them.

A pump is the work of a shell as synchronous turns: ``turn(now_ms)`` does what there is to do now
and returns when it wants its next turn. It owns no thread, never blocks on another broker, and
reads no clock. Threads meet in its mailboxes alone (``Inbox``, a partition's ``TurnQueue``). So
one thread can drive all pumps of many brokers, as the simulation does (docs/decisions/0021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

NEVER_MS: Final = 1 << 62  # the next turn is the one after the next wake

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
