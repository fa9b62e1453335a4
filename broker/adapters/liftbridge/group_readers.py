"""Which member of a consumer group reads a partition here: one at a time, by the group's epoch.

A new subscription ends the earlier one of its group. A subscription of an epoch that is over is
refused, so that a member that was removed from the group does not read together with its successor.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.ports.groups import GroupsApi


@dataclass(slots=True, eq=False)
class GroupReading:
    """One subscription of a member."""

    key: tuple[str, str, int]  # group, stream's uuid, partition
    epoch: int
    replaced: bool = False


class GroupReaders:
    """The subscriptions of group members here, one per group and partition. Any thread."""

    def __init__(self, groups: GroupsApi) -> None:
        """Ask ``groups`` for the epochs."""
        self._groups = groups
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, str, int], GroupReading] = {}

    def enter(self, group: str, stream_uuid: str, partition: int, epoch: int) -> GroupReading:
        """Begin to read; the subscription that read for the group before is replaced.

        Raises:
            StatusError: the group is at a later epoch.
        """
        entered = GroupReading((group, stream_uuid, partition), epoch)
        with self._lock:
            present = self._check(entered)
            if present is not None:
                present.replaced = True
            self._readings[entered.key] = entered
        return entered

    def refuse_former(self, group: str, stream_uuid: str, partition: int, epoch: int) -> None:
        """Raise what :meth:`enter` would raise now; nothing is replaced."""
        with self._lock:
            self._check(GroupReading((group, stream_uuid, partition), epoch))

    def _check(self, asked: GroupReading) -> GroupReading | None:
        """Return who reads now; raises StatusError if the group is at a later epoch."""
        place, present = self._groups.find(asked.key[0]), self._readings.get(asked.key)
        newest = max(present.epoch if present else 0, place.epoch if place else 0)
        if asked.epoch < newest:
            raise StatusError(
                Code.FAILED_PRECONDITION, "Consumer is not currently assigned this partition"
            )
        return present

    def leave(self, reading: GroupReading) -> None:
        """End a reading."""
        with self._lock:
            if self._readings.get(reading.key) is reading:
                del self._readings[reading.key]
