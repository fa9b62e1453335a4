"""Which brokers have to know that a leader of theirs was replaced before they get a new lease.

A leader that its followers reported is replaced while its lease lives. If its broker went on to get
leases without having applied that change of the metadata, it would acknowledge under LEADER, and
tell readers an old high watermark as the newest, for as long as it does not apply it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from broker.core.metadata.state import PartitionState
from broker.model.ids import BrokerId


def replaced_leaders(
    before: PartitionState | None, after: PartitionState | None, everyone: Collection[BrokerId]
) -> Collection[BrokerId]:
    """Return the brokers that led a partition before, and not in the same leader epoch after.

    If the change may hide a leader between the two, that may have been any broker.
    """
    if after is None:
        return ()  # it has no other leader either
    known_epoch, leader = (0, None) if before is None else (before.leader_epoch, before.leader)
    # One epoch is of the election, the next of its leader; a new partition begins with a leader.
    if after.leader_epoch > known_epoch + (1 if leader is None else 2):
        return everyone
    return () if leader is None or after.leader_epoch == known_epoch else (leader,)


class Replacements:
    """The newest replacement of each broker, by index of the metadata log.

    A replacement counts once it is ``hear_ms`` old. Otherwise a broker that hands over partition
    after partition, and applies each a moment later than the controller, would get no lease.
    """

    def __init__(self, hear_ms: int) -> None:
        """Start without any."""
        self._hear_ms = hear_ms
        self._due: dict[BrokerId, int] = {}
        self._recent: dict[BrokerId, deque[tuple[int, int]]] = {}  # times and indexes, in order

    def add(self, brokers: Iterable[BrokerId], index: int, now_ms: int) -> None:
        """Note that leaders on these brokers were replaced by the entry at ``index``."""
        for broker in brokers:
            self.index_due(broker, now_ms)
            self._recent.setdefault(broker, deque()).append((now_ms, index))

    def index_due(self, broker: BrokerId, now_ms: int) -> int:
        """Return the index that a broker must have applied by now; 0 if there is none."""
        recent = self._recent.get(broker, ())
        while recent and now_ms - recent[0][0] >= self._hear_ms:
            self._due[broker] = recent.popleft()[1]
        return self._due.get(broker, 0)
