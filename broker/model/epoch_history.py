"""Which leader epoch wrote which offsets. An immutable value: every change returns a new history.

Source: KIP-101. A replica truncates its log by this history after a change of leader, never by the
high watermark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Ascending (leader epoch, start offset) pairs; an epoch without a record may be among them."""

    starts: tuple[EpochStart, ...] = ()

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch; 0 while the history is empty."""
        return self.starts[-1].leader_epoch if self.starts else LeaderEpoch(0)

    @classmethod
    def of(cls, starts: Iterable[tuple[LeaderEpoch, Offset]]) -> EpochHistory:
        """Return the history with these epochs and start offsets."""
        return cls(tuple(EpochStart(epoch, start) for epoch, start in starts))

    def begun(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> EpochHistory:
        """Return the history after ``leader_epoch`` began at ``start_offset``, the log's end."""
        assert leader_epoch > self.latest, f"epoch {leader_epoch} is not above {self.latest}"
        assert not self.starts or start_offset >= self.starts[-1].start_offset
        return EpochHistory((*self.starts, EpochStart(leader_epoch, start_offset)))

    def cut(self, end: Offset) -> EpochHistory:
        """Return the history of a log that ends at ``end``."""
        if not self.starts or self.starts[-1].start_offset <= end:
            return self
        return EpochHistory(tuple(one for one in self.starts if one.start_offset <= end))

    def truncated(self, end: Offset) -> EpochHistory:
        """Return the history of a log truncated at ``end``, without epochs that have no record.

        An epoch without a record must not stay: it could be newer than the epoch of the next
        leader's records, and epochs must ascend.
        """
        return EpochHistory(tuple(one for one in self.starts if one.start_offset < end))

    def epoch_of(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote ``offset``; 0 if no epoch is known for it."""
        found = bisect_right(self.starts, offset, key=lambda one: one.start_offset)
        return self.starts[found - 1].leader_epoch if found else LeaderEpoch(0)

    def end_of(self, leader_epoch: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return the newest known epoch at or below ``leader_epoch`` and the end of its records.

        This is the answer to a follower's OffsetsForLeaderEpoch question (KIP-279).
        """
        after = LeaderEpoch(leader_epoch + 1)
        found = bisect_left(self.starts, after, key=lambda one: one.leader_epoch)
        end = self.starts[found].start_offset if found < len(self.starts) else log_end
        known = self.starts[found - 1].leader_epoch if found else LeaderEpoch(0)
        return known, end
