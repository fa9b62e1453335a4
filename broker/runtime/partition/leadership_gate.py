"""Whether a leader of a tiered partition may take and answer writes: its claim in the lake decides.

Another process may lead a copy of this broker's data, and acknowledge records too. So a new leader
first claims the history in the lake. It takes its first write when the claim is settled, or when
the lake could not be reached for a bounded time. If another process has the claim, this leadership
is fenced. A process that was suspended claims again. ``LeadershipGate`` decides without I/O;
``Gatekeeper`` has the clock and makes the claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.core.replication.view import PartitionView
from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.model.lineage import Leadership, Lineage, first_lineage_id
from broker.ports.system import Clock

SLEPT_MS: Final = 5_000  # without a tick for so long, another process may have taken over
SETTLE_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Claims:
    """How leaderships are claimed in the lake, and how long writes wait for a claim."""

    # Makes or checks the claim of the last leadership of a lineage; returns whether `admit` or
    # `refuse_writes` of the partition's ``TierSource`` will be called.
    on_leading: Callable[[PartitionId, Lineage], bool]
    settle_ms: int = SETTLE_MS


class LeadershipGate:
    """The gate of one partition. Owner: the partition's turns; any thread may read it."""

    def __init__(self, settle_ms: int) -> None:
        """Start open, without a leadership; a new one waits at most ``settle_ms`` for its claim."""
        self._settle_ms = settle_ms
        self._leadership: Leadership | None = None
        self._until_ms: int | None = None  # writes wait until then at the latest; None: no wait
        self.refusal: HeadwaterError | None = None  # set if another process has the claim

    @property
    def lineage_id(self) -> str:
        """Id of the gate's leadership; empty if there is none."""
        return "" if self._leadership is None else self._leadership.lineage_id

    @property
    def due_ms(self) -> int | None:
        """When the gate opens without an answer; None if it is open or shut for ever."""
        return self._until_ms

    def is_news(self, leadership: Leadership | None) -> bool:
        """Tell whether this leadership differs from the gate's leadership."""
        return leadership != self._leadership

    def begin(self, leadership: Leadership | None, *, held: bool, now_ms: int) -> None:
        """Replace the gate's leadership, and forget the refusal of the former one."""
        self._leadership = leadership
        self.refusal = None
        self._until_ms = now_ms + self._settle_ms if held else None

    def hold(self, now_ms: int) -> None:
        """Wait for a new answer, because this process was suspended."""
        if self._leadership is not None and self._until_ms is None:
            self._until_ms = now_ms + self._settle_ms

    def admit(self, lineage_id: str) -> None:
        """Open the gate for this leadership."""
        if lineage_id == self.lineage_id:
            self._until_ms = None

    def refuse(self, lineage_id: str, error: HeadwaterError) -> bool:
        """Shut the gate of this leadership for ever; return whether it was not shut before."""
        if lineage_id != self.lineage_id or self.refusal is not None:
            return False
        self._until_ms = None
        self.refusal = error
        return True

    def is_held(self, now_ms: int) -> bool:
        """Tell whether writes must wait for the claim; never longer than ``settle_ms``."""
        if self._until_ms is not None and now_ms >= self._until_ms:
            self._until_ms = None
        return self._until_ms is not None


class Gatekeeper:
    """The gate of one partition with its clock. Owner: the partition's turns; any thread ticks."""

    def __init__(self, partition_id: PartitionId, clock: Clock, claims: Claims | None) -> None:
        """Start without a leadership; ``claims`` is None without a lake."""
        self._partition_id = partition_id
        self._lineage: Lineage = ()  # of the gate's leadership
        self._clock = clock
        self._claims = claims
        self._gate = LeadershipGate(0 if claims is None else claims.settle_ms)
        self._alive_ms = clock.monotonic_ms()
        self._slept = False

    def _ask(self) -> bool:
        claims = self._claims
        return claims is not None and claims.on_leading(self._partition_id, self._lineage)

    @property
    def refusal(self) -> HeadwaterError | None:
        """Why this leadership takes no writes, if it is lost."""
        return self._gate.refusal

    @property
    def due_ms(self) -> int | None:
        """When the gate opens without an answer of the lake."""
        return self._gate.due_ms

    def view_taken(self, view: PartitionView | None, *, leads: bool) -> None:
        """Claim a leadership that begins. A new partition does not wait: it has no copies."""
        leadership = view.lineage[-1] if leads and view is not None and view.lineage else None
        if view and leadership and leadership.leader_epoch != view.leader_epoch:
            return  # the view does not have the new leadership yet
        if not self._gate.is_news(leadership):
            return
        self._lineage = () if leadership is None or view is None else view.lineage
        asked = leadership is not None and self._ask()
        first_id = first_lineage_id(self._partition_id.stream_uuid, self._partition_id.number)
        is_new = leadership is not None and leadership.lineage_id == first_id
        now_ms = self._alive_ms = self._clock.monotonic_ms()
        self._gate.begin(leadership, held=asked and not is_new, now_ms=now_ms)

    def claim_again(self) -> None:
        """Claim the present leadership, if there is one: perhaps its stream is tiered only now.

        Writes do not wait: they were taken before without a claim.
        """
        if self._lineage:
            self._ask()

    def tick(self) -> None:
        """Notice whether the process was suspended. Any thread."""
        now_ms = self._clock.monotonic_ms()
        self._slept = self._slept or now_ms - self._alive_ms > SLEPT_MS
        self._alive_ms = now_ms

    def is_held(self) -> bool:
        """Tell whether writes and answers must wait."""
        if self._claims is None or not self._gate.lineage_id:
            return False  # no claim is made, so there is no answer to wait for
        self.tick()
        if self._slept:
            self._slept = False
            if self._gate.refusal is None and self._ask():
                self._gate.hold(self._alive_ms)
        return self._gate.is_held(self._alive_ms)

    def admit(self, lineage_id: str) -> None:
        """Let a leadership take writes: its claim is settled."""
        self._gate.admit(lineage_id)

    def refuse(self, lineage_id: str, error: HeadwaterError) -> bool:
        """Refuse a leadership's writes: its claim is lost; return whether this is new."""
        return self._gate.refuse(lineage_id, error)
