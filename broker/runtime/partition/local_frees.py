"""Freeing the segments that local retention no longer keeps, in the partition's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker.model.offsets import Offset
from broker.ports.partition import SegmentInfo
from broker.runtime.partition.local_log import LocalLog
from broker.runtime.partition.queue import TurnQueue

LeaseFloor = Callable[[], Offset]


class FreesOwner(Protocol):
    """The part of the driver that this module uses."""

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition."""

    @property
    def may_free(self) -> bool:
        """Whether the log is in a state in which segments may be freed. Any thread."""


class LocalFrees:
    """Any thread asks to free; the owner's turn makes a new plan and frees the segments.

    It makes a new plan because the turn may come late, and after it has finished a cut or a copy
    that was interrupted.
    """

    def __init__(self, owner: FreesOwner, local: LocalLog, queue: TurnQueue) -> None:
        """Free segments of ``local``, in turns of ``queue``."""
        self._owner = owner
        self._local = local
        self._queue = queue
        self.queued = False  # at most one call of `soon` is queued

    def now(self, lease_floor: LeaseFloor) -> int:
        """Free segments and return how many. Blocks until the turn has run."""
        if not self._plan(lease_floor):
            return 0
        count: int = self._queue.call(lambda: self._free(lease_floor))
        return count

    def soon(self, lease_floor: LeaseFloor) -> None:
        """Queue the work of :meth:`now`, if a segment can be freed. Does not block."""
        if not self.queued and self._plan(lease_floor):
            self.queued = True
            self._queue.post(lambda: self._free(lease_floor))

    def _plan(self, lease_floor: LeaseFloor) -> Sequence[SegmentInfo]:
        return self._local.plan_frees(lease_floor) if self._owner.may_free else ()

    def _free(self, lease_floor: LeaseFloor) -> int:
        self.queued = False
        if not self._owner.may_free:
            return 0
        self._local.refresh()  # before the plan: an interrupted cut may still list its segments
        return self._local.free(self._plan(lease_floor), leads=self._owner.leads)
