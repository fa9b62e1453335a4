"""Which followers may have records whose tombstones key compaction took from the leader. Pure.

A tombstone goes together with the older records of its key. A follower that has copied such a
record, but not yet the tombstone, would keep the deleted key for ever. So the leader compacts
nothing above the end of a copy that it serves, and a follower whose log it cannot vouch for copies
from the beginning. docs/decisions/0068 has the whole argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from broker.model.ids import BrokerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_messages import FetchRequest

STALLED_MS: Final = 60_000  # a copy that does not grow for so long holds no pass up any more


@dataclass(slots=True)
class _Copy:
    """The log of one follower."""

    newest_id: int = 0  # of its requests: they ascend, also over its processes
    # All that it has came from this log, and nothing at or above this end was compacted since the
    # copy began. None: not known.
    end: Offset | None = None
    moved_ms: int = 0  # when the copy last grew, or was complete


class FollowerCopies:
    """The followers' logs, as far as one leadership vouches for them. Owner: the leader."""

    def __init__(self, sparse_end: Callable[[], Offset]) -> None:
        """``sparse_end`` reads below which offset key compaction may have taken records here."""
        self._sparse_end = sparse_end
        self._copies: dict[BrokerId, _Copy] = {}

    def fetched(self, request: FetchRequest, *, log_end: Offset, now_ms: int) -> None:
        """Take a fetch that agrees with this log. At offset 0 the follower's log is empty."""
        copy = self._copies.setdefault(request.follower, _Copy())
        if request.request_id < copy.newest_id:
            return  # it comes late
        copy.newest_id, at, before = request.request_id, request.fetch_from, copy.end
        grows = before is not None and at >= before
        copy.end = at if grows or at == 0 or at >= self._sparse_end() else None
        if at != before or at >= log_end:
            copy.moved_ms = now_ms

    def lacks_tombstones(self, request: FetchRequest) -> bool:
        """Tell whether the follower may miss tombstones if it gets the records that it asks for."""
        copy = self._copies.get(request.follower)
        unknown = copy is None or copy.end is None
        return unknown and 0 < request.fetch_from < self._sparse_end()

    def floor(self, replicas: Collection[BrokerId], now_ms: int) -> Offset:
        """Return the end of the shortest copy that grows: no pass goes above it. Any thread."""
        copies = dict(self._copies)
        ends = (
            one.end
            for follower, one in copies.items()
            if follower in replicas and one.end is not None and now_ms - one.moved_ms < STALLED_MS
        )
        return min(ends, default=Offset(OFFSET_MAX))

    def compacted(self, end: Offset) -> None:
        """Take note that a segment below ``end`` is compacted: shorter copies must begin anew."""
        for one in self._copies.values():
            if one.end is not None and one.end < end:
                one.end = None
