"""The rules that decide which records are committed, and which replicas are or become in sync."""

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
    assert isr, "a partition with an empty ISR has no leader"
    assert isr <= synced_ends.keys(), "every in-sync replica must have reported once"
    return min(synced_ends[replica] for replica in isr)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLimits:
    """How far an in-sync replica may be behind. Sources: Liftbridge, Kafka; Fluvio."""

    time_ms_max: int = 10_000  # since it was last caught up; Liftbridge has 15 s, Kafka 30 s
    records_max: int | None = None  # records behind the leader's log end, at any moment

    @property
    def kept_ms(self) -> int:
        """How long a standing fetch is kept without a roll call that confirms it."""
        return self.time_ms_max // 4

    def __post_init__(self) -> None:
        assert self.time_ms_max > 0, "time_ms_max must be positive"
        assert self.records_max is None or self.records_max > 0, "records_max must be positive"


@dataclass(slots=True)
class FollowerProgress:
    """A follower, from its fetches in this leader epoch."""

    broker_epoch: BrokerEpoch
    synced_end: Offset | None = None  # None: no fetch in this epoch yet
    heard_ms: int = 0
    caught_up_ms: int = 0  # when it last had all records of the leader
    end_at_fetch: Offset | None = None  # the leader's log end at the follower's last fetch
    # The highest synced end of the follower's present process.
    told_end: Offset = Offset(0)  # noqa: RUF009 - a plain number
    # The synced end that a former process reached, until the present process reaches it; else 0.
    owed_end: Offset = Offset(0)  # noqa: RUF009 - a plain number

    def succeeded_by(self, broker_epoch: BrokerEpoch) -> FollowerProgress:
        """Return the progress of the replica's next process, which has not fetched yet."""
        return FollowerProgress(
            broker_epoch,
            caught_up_ms=self.caught_up_ms,
            owed_end=max(self.told_end, self.owed_end),
        )

    def heard(self, synced_end: Offset, log_end: Offset, now_ms: int) -> None:
        """Take a fetch. The follower was caught up if it has all records of its last fetch."""
        if synced_end >= log_end:
            self.caught_up_ms = now_ms
        elif self.end_at_fetch is not None and synced_end >= self.end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.heard_ms)
        self.synced_end, self.heard_ms, self.end_at_fetch = synced_end, now_ms, log_end
        self.told_end = max(self.told_end, synced_end)
        if synced_end >= self.owed_end:
            self.owed_end = Offset(0)

    def is_lagging(self, limits: LagLimits, log_end: Offset, now_ms: int) -> bool:
        """Tell whether the follower must leave the ISR."""
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
        """Tell whether the follower may join the ISR, and would not be removed again at once.

        It must reach the high watermark and the start of this leader epoch. The high watermark
        alone is not enough: just after an election it may be below the end that the former leader
        committed. All records that the former leader committed are below the start of this epoch.
        """
        whole = self.has_everything(high_watermark=high_watermark, epoch_start=epoch_start)
        return whole and not self.is_lagging(limits, log_end, now_ms)

    def has_everything(self, *, high_watermark: Offset, epoch_start: Offset) -> bool:
        """Tell whether the follower's present process has shown all committed records."""
        return self.synced_end is not None and self.synced_end >= max(high_watermark, epoch_start)

    def has_forgotten(self, *, high_watermark: Offset, epoch_start: Offset) -> bool:
        """Tell whether the follower lacks committed records that its former process had synced.

        Only a disk that lost synced records does this: the former process had reported a synced
        end in this leader epoch that the present process does not reach.
        """
        if self.synced_end is None or not self.owed_end:
            return False
        return not self.has_everything(high_watermark=high_watermark, epoch_start=epoch_start)

    def _far(self, limits: LagLimits, log_end: Offset) -> bool:
        behind = log_end - (self.synced_end or 0)
        return limits.records_max is not None and behind > limits.records_max
