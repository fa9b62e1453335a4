"""Freeing what local retention gives up, in the partition's turn, for whoever need not wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker.model.offsets import Offset
from broker.ports.partition import SegmentInfo
from broker.runtime.partition.queue import TurnQueue

LeaseFloor = Callable[[], Offset]


class FreesOwner(Protocol):
    """The driver, as seen from here."""

    def plan_frees(self, lease_floor: LeaseFloor) -> Sequence[SegmentInfo]:
        """Return what may go now as far as retention and leases say. Any thread."""

    def free_planned(self, plan: Sequence[SegmentInfo]) -> int:
        """Free what no retry needs of a plan; return how many segments. In a turn."""


class LocalFrees:
    """Any thread asks; the owner's turn plans once more, for it may come late, and frees."""

    def __init__(self, owner: FreesOwner, queue: TurnQueue) -> None:
        """Free for ``owner``, in turns of ``queue``."""
        self._owner = owner
        self._queue = queue
        self.queued = False  # one may wait

    def now(self, lease_floor: LeaseFloor) -> int:
        """Free; return how many segments. Blocks until the turn."""
        if not self._owner.plan_frees(lease_floor):
            return 0
        count: int = self._queue.call(lambda: self._free(lease_floor))
        return count

    def soon(self, lease_floor: LeaseFloor) -> None:
        """Begin :meth:`now`, if there is something to free. Does not block."""
        if not self.queued and self._owner.plan_frees(lease_floor):
            self.queued = True
            self._queue.post(lambda: self._free(lease_floor))

    def _free(self, lease_floor: LeaseFloor) -> int:
        self.queued = False
        return self._owner.free_planned(self._owner.plan_frees(lease_floor))
