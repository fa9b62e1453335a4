"""Which segments of a partition's log key compaction takes, and when. Pure.

Only sealed segments below the *line* are compacted: always the oldest ones, without a gap. The line
is at most the high watermark, the cold end of a tiered stream, the end of a copy that a follower
makes of the log, and the first offset that a lease holds. So a record stays if it is not committed,
not in the table, not yet copied, or needed by a saved cut. The active segment stays, too.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.errors import OverloadedError
from broker.model.offsets import Offset
from broker.model.replica_state import PassState
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo

_NOTHING: Final = Offset(0)
TICKETS_MAX: Final = 16  # per replica: open requests, and as many finished ones with reports


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRule:
    """A stream's settings for key compaction."""

    tombstone_us: int | None  # how long tombstones stay after their segment was sealed; None: ever
    dirty_percent_min: int  # a pass is due when this share of the bytes below the line is new

    @classmethod
    def of(cls, config: StreamConfig, *, keeps_tombstones: bool = False) -> CompactionRule:
        """Return the rule of a stream's configuration.

        ``keeps_tombstones`` is for a partition that was added later: its tombstones hide older
        records of the same keys in lower partitions (`Stream.keys_from`).
        """
        return cls(
            tombstone_us=None if keeps_tombstones else config.tombstone_delay_ms * 1000,
            dirty_percent_min=config.compact_dirty_percent,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedSoFar:
    """The results of earlier passes. They may be forgotten: then the next pass has more work."""

    end: Offset = _NOTHING  # below it, records were compared with one another
    tombstones: frozenset[Offset] = frozenset()  # base offsets of segments that still have some

    @classmethod
    def found_in(cls, segments: Sequence[SegmentInfo]) -> CompactedSoFar:
        """Return the results of earlier passes that the segments of an opened log show."""
        sparse = [one for one in segments if one.sparse and one.sealed]
        return cls(
            end=sparse[-1].end_offset if sparse else _NOTHING,
            tombstones=frozenset(one.base_offset for one in sparse),
        )

    def after(self, plan: CompactionPlan, tombstones: frozenset[Offset]) -> CompactedSoFar:
        """Return the results after one more pass, which left tombstones in these segments."""
        return replace(self, end=plan.end, tombstones=tombstones)


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment to compact. ``drops_tombstones``: even tombstones that are their keys' last go."""

    base_offset: Offset
    end_offset: Offset
    drops_tombstones: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The segments of one pass, oldest first, without a gap between them."""

    segments: tuple[PlannedSegment, ...]
    size_bytes: int

    @property
    def end(self) -> Offset:
        """First offset that the pass does not touch."""
        return self.segments[-1].end_offset


def compaction_line(
    *, high_watermark: Offset, cold_end: Offset | None, copied_end: Offset, lease_floor: Offset
) -> Offset:
    """Return the offset below which segments may be compacted; ``cold_end`` None: not tiered."""
    committed = high_watermark if cold_end is None else min(high_watermark, cold_end)
    return min(committed, copied_end, lease_floor)


def line_reason(
    *,
    log_end: Offset,
    high_watermark: Offset,
    cold_end: Offset | None,
    copied_end: Offset,
    lease_floor: Offset,
) -> str | None:
    """Return why the line is below the log's end, for operators; None if it is not below."""
    line = compaction_line(
        high_watermark=high_watermark,
        cold_end=cold_end,
        copied_end=copied_end,
        lease_floor=lease_floor,
    )
    if line >= log_end:
        return None
    if line == lease_floor:
        return "a lease holds these records"
    if line == cold_end:
        return "these records are not in the table yet: `headwater tier flush` ships them"
    if line == copied_end < high_watermark:
        return "another replica copies these records from here now"
    return "these records are not committed yet, as far as this replica knows"


def records_left(segments: Sequence[SegmentInfo], start: Offset, end: Offset) -> int | None:
    """Return how many records of ``[start, end)`` there are; None: it is not known.

    It is not known if an older build wrote a segment's index, or if a compacted segment is only
    partly in the range, because of a purge.
    """
    count = end - start
    for one in segments:
        if one.sparse and start < one.end_offset and one.base_offset < end:
            if one.removed_count is None or one.base_offset < start or end < one.end_offset:
                return None
            count -= one.removed_count
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """The result of a request to compact a replica's log."""

    state: PassState
    end: Offset = _NOTHING  # below it the log was compacted by this request
    reason: str | None = None  # why no further, or why not at all
    segments: int = 0  # segments that were rewritten
    removed_count: int = 0  # records
    freed_bytes: int = 0
    read_bytes: int = 0


class AskedPasses:
    """The requests to compact one replica's log now, by ticket. Pure.

    A client repeats a request, with the same ticket, to see its progress. Requests that wait at
    the same time share a pass. Tickets are only in memory: a broker that was restarted begins a
    new pass for an old ticket, which does no harm.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._running: list[str] = []
        self._over: OrderedDict[str, PassReport] = OrderedDict()

    @property
    def are_waiting(self) -> bool:
        """Whether a request waits for a pass to begin."""
        return bool(self._waiting)

    def state_of(self, ticket: str) -> PassReport | None:
        """Return the report of a finished request; None: it waits, or its pass runs.

        A request with an unknown ticket waits from now on.

        Raises:
            OverloadedError: too many other requests wait.
        """
        if ticket in self._over:
            return self._over[ticket]
        if not self.is_running(ticket) and ticket not in self._waiting:
            if len(self._waiting) + len(self._running) >= TICKETS_MAX:
                raise OverloadedError(
                    f"{TICKETS_MAX} requests to compact this partition wait already: try again "
                    "when they have finished"
                )
            self._waiting.append(ticket)
        return None

    def is_running(self, ticket: str) -> bool:
        """Tell whether the pass of this request has begun."""
        return ticket in self._running

    def begin(self) -> None:
        """Note that a pass has begun, for all requests that wait."""
        self._running += self._waiting
        self._waiting = []

    def begin_again(self) -> None:
        """Note that the pass was broken off: its requests wait for another pass."""
        self._waiting += self._running
        self._running = []

    def end(self, report: PassReport) -> None:
        """Note the result of the pass for all its requests."""
        self._over.update(dict.fromkeys(self._running, report))
        self._running = []
        while len(self._over) > TICKETS_MAX:
            self._over.popitem(last=False)

    def end_all(self, report: PassReport) -> None:
        """Note the result for running and waiting requests alike: no pass can begin."""
        self.begin()
        self.end(report)


def plan_compaction(
    segments: Sequence[SegmentInfo],
    *,
    line: Offset,
    so_far: CompactedSoFar,
    rule: CompactionRule,
    now_us: int,
    forced: bool = False,
) -> CompactionPlan | None:
    """Choose the segments of the next pass; None if none is due. Touches no file.

    A pass is due if enough of the bytes below ``line`` came since the last pass, or if a tombstone
    has been there for long enough, or if it is ``forced`` and a segment is below the line.
    """
    chosen: list[PlannedSegment] = []
    total_bytes = dirty_bytes = 0
    expired = False
    for one, following in itertools.pairwise(segments):
        if not one.sealed or one.end_offset > line:
            break
        drops = _may_drop_tombstones(following, rule, now_us)
        chosen.append(PlannedSegment(one.base_offset, one.end_offset, drops))
        total_bytes += one.size_bytes
        dirty_bytes += one.size_bytes if one.end_offset > so_far.end else 0
        expired = expired or (drops and one.base_offset in so_far.tombstones)
    enough = dirty_bytes > 0 and 100 * dirty_bytes >= rule.dirty_percent_min * total_bytes
    if not chosen or not (forced or expired or enough):
        return None
    return CompactionPlan(segments=tuple(chosen), size_bytes=total_bytes)


def _may_drop_tombstones(following: SegmentInfo, rule: CompactionRule, now_us: int) -> bool:
    """Tell whether a segment's tombstones are old enough: since the next segment began.

    Timestamps of records do not count: publishers choose them.
    """
    began_us = following.created_us
    return rule.tombstone_us is not None and 0 < began_us <= now_us - rule.tombstone_us
