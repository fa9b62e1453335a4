"""Whether a leader of a tiered partition may take and answer writes: its claim in the lake decides.

A copy of this process's data may be led by another process that acknowledges, too. Whoever begins
to lead claims the history in the lake first, and takes its first write once the claim is settled,
or the lake could not be reached for a bounded time. A claim that turns out to be lost fences the
leadership by name; a process that slept asks anew. ``LeadershipGate`` decides, ``Gatekeeper`` knows
the clock and whom to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from broker.core.replication.view import PartitionView
from broker.errors import HeadwaterError
from broker.model.lineage import Leadership, first_lineage_id
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.ports.tiering import TierSource

SLEPT_MS: Final = 5_000  # without a tick: the process may have been replaced meanwhile
SETTLE_MS: Final = 2_000


class ClaimedSource(TierSource, Protocol):
    """A partition whose leaderships are claimed."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class Claims:
    """Who claims leaderships in the lake, and how long writes wait for that."""

    on_leading: Callable[[Stream, TierSource], bool]  # claim, or look; whether it will be told
    settle_ms: int = SETTLE_MS


class LeadershipGate:
    """The gate of one partition. Owner: the partition's turns; others may look."""

    def __init__(self, settle_ms: int) -> None:
        """Open, for nobody leads; a leadership waits at most ``settle_ms`` for its claim."""
        self._settle_ms = settle_ms
        self._leadership: Leadership | None = None
        self._until_ms: int | None = None  # held until then at the latest; None: not held
        self.refusal: HeadwaterError | None = None  # the claim is lost

    @property
    def lineage_id(self) -> str:
        """Of the leadership that the gate is about; empty: none."""
        return "" if self._leadership is None else self._leadership.lineage_id

    @property
    def due_ms(self) -> int | None:
        """When time alone opens the gate; None: it is open, or shut for good."""
        return self._until_ms

    def is_news(self, leadership: Leadership | None) -> bool:
        """Tell whether this is another leadership than the one that the gate is about."""
        return leadership != self._leadership

    def begin(self, leadership: Leadership | None, *, held: bool, now_ms: int) -> None:
        """Forget the leadership before, and what it was refused for."""
        self._leadership = leadership
        self.refusal = None
        self._until_ms = now_ms + self._settle_ms if held else None

    def hold(self, now_ms: int) -> None:
        """Wait for a new answer: this process slept."""
        if self._leadership is not None and self._until_ms is None:
            self._until_ms = now_ms + self._settle_ms

    def admit(self, lineage_id: str) -> None:
        """Open for this leadership."""
        if lineage_id == self.lineage_id:
            self._until_ms = None

    def refuse(self, lineage_id: str, error: HeadwaterError) -> bool:
        """Shut the gate for this leadership, for good; tell whether that is news."""
        if lineage_id != self.lineage_id or self.refusal is not None:
            return False
        self._until_ms = None
        self.refusal = error
        return True

    def is_held(self, now_ms: int) -> bool:
        """Tell whether writes have to wait; the lake is waited for no longer than was agreed."""
        if self._until_ms is not None and now_ms >= self._until_ms:
            self._until_ms = None
        return self._until_ms is not None


class Gatekeeper:
    """The gate of one partition with its clock. Owner: the partition's turns, but for ticks."""

    def __init__(self, source: ClaimedSource, clock: Clock, claims: Claims | None) -> None:
        """Nobody leads yet. Without ``claims`` there is no lake, or the stream is not tiered."""
        self._source = source
        self._clock = clock
        self._claims = claims
        self._gate = LeadershipGate(0 if claims is None else claims.settle_ms)
        self._alive_ms = clock.monotonic_ms()
        self._slept = False

    def _ask(self) -> bool:
        claims = self._claims
        return claims is not None and claims.on_leading(self._source.stream, self._source)

    @property
    def refusal(self) -> HeadwaterError | None:
        """Why this leadership takes no writes, if it is lost."""
        return self._gate.refusal

    @property
    def due_ms(self) -> int | None:
        """When time alone opens the gate."""
        return self._gate.due_ms

    def view_taken(self, view: PartitionView | None, *, leads: bool) -> None:
        """Claim a leadership that begins. Nobody can have copied that of a new partition."""
        leadership = view.lineage[-1] if leads and view is not None and view.lineage else None
        if view and leadership and leadership.leader_epoch != view.leader_epoch:
            return  # its own one is yet to come
        if not self._gate.is_news(leadership):
            return
        asked = leadership is not None and self._ask()
        partition = self._source.partition_id
        first_id = first_lineage_id(partition.stream_uuid, partition.number)
        is_new = leadership is not None and leadership.lineage_id == first_id
        now_ms = self._alive_ms = self._clock.monotonic_ms()
        self._gate.begin(leadership, held=asked and not is_new, now_ms=now_ms)

    def tick(self) -> None:
        """Notice whether the process slept. Any thread."""
        now_ms = self._clock.monotonic_ms()
        self._slept = self._slept or now_ms - self._alive_ms > SLEPT_MS
        self._alive_ms = now_ms

    def is_held(self) -> bool:
        """Tell whether writes and answers have to wait."""
        if self._claims is None or not self._gate.lineage_id:
            return False  # nobody is asked: nothing to wait for
        self.tick()
        if self._slept:
            self._slept = False
            if self._gate.refusal is None and self._ask():
                self._gate.hold(self._alive_ms)
        return self._gate.is_held(self._alive_ms)

    def admit(self, lineage_id: str) -> None:
        """Hear that a leadership stands."""
        self._gate.admit(lineage_id)

    def refuse(self, lineage_id: str, error: HeadwaterError) -> bool:
        """Hear that a leadership is lost; tell whether that is news."""
        return self._gate.refuse(lineage_id, error)
