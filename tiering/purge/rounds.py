"""When a purge of a table lists again, waits, and is over. Pure.

A broker that has not applied the deletion yet, or that was in the middle of an upload, may bring an
object back after a listing. So an empty listing counts only if every broker knew of the deletion
and shipped nothing before it, and it takes two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

QUIET_MIN: Final = 2  # empty listings in a row that count
LOOKS_MAX: Final = 30  # with the pauses between them about a minute
PATIENCE_LOOKS: Final = 10  # a broker that is dead for good must not keep the table for ever

PurgeStep = Literal["again", "pause", "finished", "unsure"]


@dataclass(frozen=True, slots=True)
class PurgeLook:
    """One look: first at the brokers, then at what was listed, all of which was deleted."""

    found_count: int
    waiting_for: tuple[str, ...] = ()  # brokers that ship, do not know of the deletion, or are mute


class PurgeRounds:
    """Decides what follows on a look."""

    def __init__(self) -> None:
        self._quiet = 0
        self._looks = 0

    def may_delete(self, waiting_for: tuple[str, ...]) -> bool:
        """Tell whether to delete now: not while a broker may write, unless it stays so."""
        return not waiting_for or self._looks >= PATIENCE_LOOKS

    def step(self, look: PurgeLook) -> PurgeStep:
        """Return whether to list at once, to list after a pause, or to end."""
        self._looks += 1
        self._quiet = 0 if look.found_count or look.waiting_for else self._quiet + 1
        if self._quiet >= QUIET_MIN:
            return "finished"
        if self._looks >= LOOKS_MAX:
            return "unsure"
        return "again" if look.found_count and not look.waiting_for else "pause"
