"""How the first files of a partition leave its table: states and state machine. Pure.

``PartitionExpiry.step(event) -> effect`` decides; expirer.py performs. Exactly one effect is
performed at a time, and the process may die before, during or after any effect:

    decided in the metadata -> removed from the table -> noted beside the table

The decision comes first, because the metadata has the leases and the positions of groups: it orders
each of them before or after the decision. This leader or the next one carries the decision out. The
machine begins each time with the state of the table, its expiries and the metadata. If the table
begins above the metadata's remote start, the metadata is an older copy (the table was proved to be
ours before), and its remote start is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from broker.model.offsets import Offset, OffsetRange
from tiering.ship.lifecycle import Failed, Rest, Woken


class ExpiryState(Enum):
    """What an expiry is waiting for; the value names the event that ends the wait."""

    RESTING = "woken"
    LOADING = "table loaded"
    AUDITING = "expiries read"
    PLANNING = "plan made"
    DECIDING = "expiry decided"
    REMOVING = "files removed"
    NOTING = "expiries noted"


@dataclass(frozen=True, slots=True)
class RangeLoaded:
    """The newest version is proved, and holds this range; None: there is no table."""

    held: OffsetRange | None


@dataclass(frozen=True, slots=True)
class ExpiriesRead:
    """The expiries that are noted reach up to ``end`` (0 when there is none)."""

    end: Offset


@dataclass(frozen=True, slots=True)
class Planned:
    """The metadata has ``remote_start``; retention keeps what is at or above ``keep_from``."""

    remote_start: Offset
    keep_from: Offset


@dataclass(frozen=True, slots=True)
class Decided:
    """The metadata has this remote start now. It is the old one if a reader holds the records."""

    remote_start: Offset


@dataclass(frozen=True, slots=True)
class Removed:
    """A durable version begins at ``start``; the files below are not in it."""

    start: Offset


@dataclass(frozen=True, slots=True)
class RemovalLost:
    """Another process changed the same files first, or one file spans the bound: no commit."""


@dataclass(frozen=True, slots=True)
class ExpiriesNoted:
    """The expiries beside the table explain everything below the table's start."""


Event = (
    Woken | RangeLoaded | ExpiriesRead | Planned | Decided | Removed | RemovalLost | ExpiriesNoted
    | Failed
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadRange:
    """Load and prove the newest version; refuse one that begins below ``start_min``."""

    start_min: Offset


@dataclass(frozen=True, slots=True)
class ReadExpiries:
    """Find the end of the noted expiries. -> ExpiriesRead."""


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Compare the files with the stream's retention and with what readers hold. -> Planned."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Raise the metadata's remote start. ``is_done``: the table begins there. -> Decided."""

    before: Offset
    is_done: bool


@dataclass(frozen=True, slots=True)
class Remove:
    """Commit a version without files below ``upto``. -> Removed or RemovalLost."""

    upto: Offset


@dataclass(frozen=True, slots=True)
class NoteExpiries:
    """Create the entries of the expiries over ``range``. -> ExpiriesNoted."""

    range: OffsetRange


Effect = LoadRange | ReadExpiries | MakePlan | Decide | Remove | NoteExpiries | Rest

# Any other event in a state is a bug of the shell. Failed is allowed in every state.
EXPECTED: Final[Mapping[ExpiryState, tuple[type, ...]]] = {
    ExpiryState.RESTING: (Woken,),
    ExpiryState.LOADING: (RangeLoaded,),
    ExpiryState.AUDITING: (ExpiriesRead,),
    ExpiryState.PLANNING: (Planned,),
    ExpiryState.DECIDING: (Decided,),
    ExpiryState.REMOVING: (Removed, RemovalLost),
    ExpiryState.NOTING: (ExpiriesNoted,),
}


class PartitionExpiry:
    """The state machine of one partition. Owner: the worker that runs the partition's cycle."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.state = ExpiryState.RESTING
        self._start = Offset(0)  # of the table
        self._remote_start = Offset(0)  # in the metadata
        self._planned = False  # since the table was loaded

    def step(self, event: Event) -> Effect:
        """Consume one event; return the next effect."""
        if isinstance(event, Failed):
            return self._go(ExpiryState.RESTING, Rest())
        assert isinstance(event, EXPECTED[self.state]), f"{event} in {self.state}"
        match event:
            case Woken():
                self._planned = False
                return self._go(ExpiryState.LOADING, LoadRange(Offset(0)))
            case RangeLoaded(None):
                return self._go(ExpiryState.RESTING, Rest())
            case RangeLoaded(held):
                assert held is not None
                self._start = held.start
                return self._go(ExpiryState.AUDITING, ReadExpiries())
            case ExpiriesRead(end) if end > self._start:
                # Another process committed between the two reads, or the table has lost a commit.
                # In the second case loading the table with this bound raises an error.
                return self._go(ExpiryState.LOADING, LoadRange(end))
            case ExpiriesRead(end) if end < self._start:
                return self._go(ExpiryState.NOTING, NoteExpiries(OffsetRange(end, self._start)))
            case ExpiriesRead():
                return self._go(ExpiryState.PLANNING, MakePlan())
            case Planned(remote_start, keep_from):
                self._planned, self._remote_start = True, remote_start
                return self._decide(keep_from)
            case Decided(remote_start):
                self._remote_start = remote_start
                return self._carry_out()
            case Removed(start):
                noted = OffsetRange(self._start, start)
                self._start = start
                return self._go(ExpiryState.NOTING, NoteExpiries(noted))
            case RemovalLost():
                return self._go(ExpiryState.RESTING, Rest())
            case _:
                assert isinstance(event, ExpiriesNoted), f"no rule for {event}"
                if self._planned:
                    return self._carry_out()
                return self._go(ExpiryState.PLANNING, MakePlan())

    def _decide(self, keep_from: Offset) -> Effect:
        if self._start > self._remote_start:
            return self._go(ExpiryState.DECIDING, Decide(self._start, is_done=True))
        if keep_from > self._remote_start:
            return self._go(ExpiryState.DECIDING, Decide(keep_from, is_done=False))
        return self._carry_out()

    def _carry_out(self) -> Effect:
        if self._start < self._remote_start:
            return self._go(ExpiryState.REMOVING, Remove(self._remote_start))
        return self._go(ExpiryState.RESTING, Rest())

    def _go(self, state: ExpiryState, effect: Effect) -> Effect:
        self.state = state
        return effect
