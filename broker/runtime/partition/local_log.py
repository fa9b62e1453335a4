"""A partition's log on this broker, and all that is derived from it.

Retries are recognised by what the log says, and what waits to be shipped is counted from its
segments. So whoever writes, cuts or replaces the log through this class keeps these in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.errors import SegmentCorruptError
from broker.model.epoch_history import EpochHistory
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.replica_messages import LogPrefix
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo, StoredBatch
from broker.ports.system import Clock
from broker.runtime.partition.counters import PartitionCounters
from broker.runtime.partition.retry_tables import RetryTables
from broker.runtime.partition.tier_view import TierView
from broker.storage.log.partition_log import PartitionLog

BeginLog = Callable[[Offset, EpochHistory], PartitionLog]  # replaces the present one


class LocalLog:
    """Owner: the partition's turns, but for what says "any thread"."""

    def __init__(
        self,
        log: PartitionLog,
        *,
        partition_id: PartitionId,
        config: StreamConfig,
        cold_end: Offset,
        record_cold_end: Callable[[int, Offset], None],
        begin_log: BeginLog,
        clock: Clock,
        counters: PartitionCounters,
    ) -> None:
        """Take over an open log. ``record_cold_end`` tells the metadata, and blocks."""
        self.log = log  # another one after :meth:`replace`; any thread reads
        self.retries = RetryTables(config)
        self.tier = TierView(partition_id, config, cold_end, record_cold_end)
        self._begin_log = begin_log
        self._clock = clock
        self._counters = counters
        self.watch_segments()

    # ------------------------------------------------------------------ the table, any thread

    def record_cold_end(self, cold_end: Offset) -> None:
        """Say that the table holds everything below. Blocks until the metadata has it."""
        self.tier.record(cold_end)
        self.watch_segments()

    def learn_cold_end(self, cold_end: Offset) -> None:
        """Take over what the metadata says is in the table. Only ever forward."""
        if self.tier.learn(cold_end):
            self.watch_segments()

    def committed_for_certain(self) -> Offset:
        """Return what was freed or is in the table; how much more is committed, the leader says."""
        log = self.log
        return min(max(self.tier.cold_end, log.log_start), log.log_end)

    def replacement(self) -> SegmentCorruptError | None:
        """Return the error of a log that ends below what is in its table, if it does."""
        return self.tier.replacement(self.log.log_end)

    def plan_frees(self, lease_floor: Callable[[], Offset]) -> Sequence[SegmentInfo]:
        """Return what local retention gives up and no lease needs."""
        return self.tier.plan_frees(self.log.segments, lease_floor, self._clock.now_us())

    def watch_segments(self) -> None:
        """Count what is not in the table."""
        self.tier.watch(self.log.segments())

    # ------------------------------------------------------------------ in a turn

    def free(self, plan: Sequence[SegmentInfo], *, leads: bool) -> int:
        """Free what no retry needs of a plan; return how many segments.

        Segments with message ids of the dedup window stay: a restart reads the ids there.
        """
        bases = self.retries.free_of_ids(plan, self._clock.now_us(), leads=leads)
        if bases:
            self.log.free(bases)
            self._counters.freed_segments += len(bases)
            self.watch_segments()
        return len(bases)

    def has_rolled(self) -> bool:
        """Tell whether segments were sealed since the last call."""
        rolled = self.tier.rolled(self.log.sealed_count)
        if rolled:
            self.watch_segments()
        return rolled

    def save_producers(self) -> None:
        """Write the producers beside the log, so that the next start need not read all of it."""
        self.log.write_producer_state(self.retries.producers.to_state())

    def begin_leading(self) -> None:
        """Take the message ids from the log: publishes are taken from now on."""
        self.retries.begin_leading(self.log, self._clock.now_us())

    def copied(self, batches: Sequence[StoredBatch]) -> None:
        """Take notice of batches of a leader that are in the log now."""
        self.tier.unshipped_bytes += self.retries.copied(batches)

    def shrunk(self) -> None:
        """Forget what was derived from records that the log has lost."""
        self.retries.follow_log(self.log)
        self.watch_segments()

    def producers_before(self, start: Offset) -> bytes:
        """Return the producers of records below ``start``, for a log that begins there."""
        return self.retries.before(start)

    def replace(self, start: Offset, prefix: LogPrefix) -> PartitionLog:
        """Put an empty log at ``start`` in the place of the present one; return it.

        Readers of the old log find it closed, and look again.

        Raises:
            DiskFullError: there is no room for an empty log.
        """
        self.log.close()
        self.log = self._begin_log(start, EpochHistory.of(prefix.epochs))
        self.retries.begin_at(self.log, prefix.producers)
        self.watch_segments()
        return self.log
