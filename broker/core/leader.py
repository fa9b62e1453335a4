"""The leader of one partition: log ends in, commit decisions out. No clock, no file, no await.

Replication widens this machine (follower fetches, ISR changes); the rule does not change: records
are acknowledged when the high watermark passes them, and it moves on synced ends alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.isr import high_watermark
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The leader's own log is durable below ``synced_end``."""

    synced_end: Offset


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below ``end`` is committed: show it to readers, then acknowledge it.

    Must be durable before: the log of every in-sync replica below ``end``.
    """

    end: Offset


LeaderEvent = LogSynced
LeaderEffect = AdvanceHighWatermark


class PartitionLeader:
    """Decides the high watermark of a partition that this broker leads."""

    def __init__(self, me: BrokerId, leader_epoch: LeaderEpoch, synced_end: Offset) -> None:
        """Start leading at ``leader_epoch`` with a log that is durable below ``synced_end``."""
        self._me = me
        self.leader_epoch = leader_epoch
        self.isr = frozenset({me})
        self._synced_ends = {me: synced_end}
        self.high_watermark = high_watermark(self._synced_ends, self.isr)

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Consume one event; return what the shell must do next."""
        match event:
            case LogSynced(synced_end):
                assert synced_end >= self._synced_ends[self._me], "a synced log never shrinks"
                self._synced_ends[self._me] = synced_end
        committed = high_watermark(self._synced_ends, self.isr)
        if committed <= self.high_watermark:
            return []
        self.high_watermark = committed  # only ever forward
        return [AdvanceHighWatermark(committed)]
