"""The rules that decide what is committed, who is in sync, and who may become it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset


def high_watermark(synced_ends: Mapping[BrokerId, Offset], isr: AbstractSet[BrokerId]) -> Offset:
    """Return the first offset that is not yet committed (exclusive bound).

    Invariant: every record below the result is on stable storage of every in-sync replica.
    Source: Kafka replication design; KIP-101 for what this bound must *not* decide.
    """
    assert isr, "a partition with an empty ISR has no leader to ask"
    assert isr <= synced_ends.keys(), "every in-sync replica must have reported once"
    return min(synced_ends[replica] for replica in isr)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLimits:
    """How far a replica may be behind and stay in sync. Sources: Liftbridge, Kafka; Fluvio."""

    time_ms_max: int = 10_000  # since it last had everything; Liftbridge has 15 s, Kafka 30 s
    records_max: int | None = None  # behind the leader's end, at any moment

    def __post_init__(self) -> None:
        assert self.time_ms_max > 0, "a replica may be behind for a while"
        assert self.records_max is None or self.records_max > 0, "records arrive one by one"


@dataclass(slots=True)
class FollowerProgress:
    """A follower as the leader last heard of it, in this leader epoch."""

    broker_epoch: BrokerEpoch
    synced_end: Offset | None = None  # None: not heard in this epoch, so nothing is known
    heard_ms: int = 0
    caught_up_ms: int = 0  # when it last had everything there was
    end_at_fetch: Offset | None = None  # the leader's log end when it was last heard
    told_end: Offset = Offset(0)  # noqa: RUF009 - the highest that this process has told
    owed_end: Offset = Offset(0)  # noqa: RUF009 - what a former one had told, until it is there

    def succeeded_by(self, broker_epoch: BrokerEpoch) -> FollowerProgress:
        """Return the progress of the replica's next process, of which nothing is known yet."""
        return FollowerProgress(
            broker_epoch,
            caught_up_ms=self.caught_up_ms,
            owed_end=max(self.told_end, self.owed_end),
        )

    def heard(self, synced_end: Offset, log_end: Offset, now_ms: int) -> None:
        """Take a fetch in. It was caught up if it has what there was at its fetch before."""
        if synced_end >= log_end:
            self.caught_up_ms = now_ms
        elif self.end_at_fetch is not None and synced_end >= self.end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.heard_ms)
        self.synced_end, self.heard_ms, self.end_at_fetch = synced_end, now_ms, log_end
        self.told_end = max(self.told_end, synced_end)
        if synced_end >= self.owed_end:
            self.owed_end = Offset(0)

    def is_lagging(self, limits: LagLimits, log_end: Offset, now_ms: int) -> bool:
        """Tell whether the follower has to leave the ISR."""
        return now_ms - self.caught_up_ms > limits.time_ms_max or self._far(limits, log_end)

    def may_join(
        self,
        limits: LagLimits,
        *,
        high_watermark: Offset,
        epoch_start: Offset,
        log_end: Offset,
        now_ms: int,
    ) -> bool:
        """Tell whether the follower may enter the ISR, and would not be put out again at once.

        Reaching the high watermark is not enough: just after an election it may lie below what the
        former leader committed. Everything committed lies below the start of this epoch or below
        the high watermark, so both have to be there (rule R4).
        """
        whole = self.has_everything(high_watermark=high_watermark, epoch_start=epoch_start)
        return whole and not self.is_lagging(limits, log_end, now_ms)

    def has_everything(self, *, high_watermark: Offset, epoch_start: Offset) -> bool:
        """Tell whether the process that was last heard was seen to hold all that is committed."""
        return self.synced_end is not None and self.synced_end >= max(high_watermark, epoch_start)

    def has_forgotten(self, *, high_watermark: Offset, epoch_start: Offset) -> bool:
        """Tell whether its disk lacks committed records that a former process had told of.

        A disk that keeps its promises does not: what was told was synced, and of this epoch.
        """
        if self.synced_end is None or not self.owed_end:
            return False
        return not self.has_everything(high_watermark=high_watermark, epoch_start=epoch_start)

    def _far(self, limits: LagLimits, log_end: Offset) -> bool:
        behind = log_end - (self.synced_end or 0)
        return limits.records_max is not None and behind > limits.records_max
