"""What readers are shown of a partition: offsets, committed records, and why they are refused."""

from __future__ import annotations

from broker.errors import CorruptDataError, OffsetOutOfRangeError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.purge import expired_error, purged_error
from broker.ports.partition import StoredBatch
from broker.runtime.partition.committed import CommittedEnd
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.replication import Replication
from broker.storage.log.partition_log import PartitionLog


class PartitionReads:
    """Implements ``PartitionReader`` over a local log. Any thread."""

    def __init__(
        self, context: PartitionContext, replication: Replication, committed: CommittedEnd
    ) -> None:
        """Show what ``committed`` says."""
        self.partition_id: PartitionId = context.partition_id
        self._name = context.name
        self._local = context.local
        self._health = context.health
        self._queue = context.queue
        self._replication = replication
        self._committed = committed

    @property
    def log_start(self) -> Offset:
        """First offset that can be read here."""
        return self._local.log_start

    @property
    def whole_start(self) -> Offset:
        """See ``PartitionReader.whole_start``."""
        return self._local.whole_start

    @property
    def purged_end(self) -> Offset:
        """See ``PartitionReader.purged_end``."""
        return self._local.tier.purged_end

    @property
    def remote_start(self) -> Offset:
        """See ``PartitionReader.remote_start``."""
        return self._local.tier.remote_start

    @property
    def high_watermark(self) -> Offset:
        """First offset not known to be committed; the synced end if a log without copies failed."""
        if self._health.failure is not None and self._health.is_only_copy:
            return self._local.log.synced_end
        return self._committed.end

    @property
    def log_end(self) -> Offset:
        """First offset not written; the synced end if a log without copies failed."""
        if self._health.failure is not None and self._health.is_only_copy:
            return self._local.log.synced_end
        return self._local.log_end

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest leader epoch that this replica knows."""
        view = self._replication.view
        return self._local.log.epochs.latest if view is None else view.leader_epoch

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """See ``PartitionReader.read``. If it finds rot, this replica leaves the ISR.

        Encrypted batches are returned decrypted, with headers that fit.

        Raises:
            ShuttingDownError: the log is closed, and its files are perhaps removed.
        """
        if start < self.remote_start:
            raise expired_error(self._name, start, start=self.remote_start, end=self.high_watermark)
        if start < self.purged_end:
            raise purged_error(self._name, start, start=self.purged_end, end=self.high_watermark)
        log = self._local.log
        try:
            return self._local.cipher.opened(log.read(start, end, bytes_max=bytes_max))
        except CorruptDataError as error:
            self._require_open(error)
            self._require_held(log, start)
            found = self._named(error)
            self._queue.post(lambda: self._health.fail(found))
            raise

    def offset_at(self, timestamp_us: int) -> Offset:
        """See ``PartitionReader.offset_at``."""
        log = self._local.log
        try:
            return max(log.offset_at(timestamp_us), self._local.tier.gone_end)
        except CorruptDataError as error:
            self._require_open(error)
            self._require_held(log, log.log_start)
            self._named(error)
            raise

    def _require_open(self, cause: CorruptDataError) -> None:
        """Raise ShuttingDownError if the log is closed: its files are gone, not damaged."""
        if self._queue.closing:
            raise self._committed.closed_error() from cause

    def _require_held(self, log: PartitionLog, offset: Offset) -> None:
        """Raise OffsetOutOfRangeError if the log was replaced: its files are gone, not damaged."""
        if not self._local.holds(log):
            start, end = self.log_start, self.log_end
            raise OffsetOutOfRangeError(
                f"the local log of {self._name} was replaced, and begins at {start} now",
                offset=offset,
                start=start,
                end=end,
            )

    def _named(self, error: CorruptDataError) -> CorruptDataError:
        error.facts.setdefault("partition", self.partition_id.number)
        return error

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """See ``PartitionReader.wait_committed``."""
        health = self._health
        if health.failure is not None and not health.is_only_copy:
            raise health.failure  # other brokers have copies: the reader must ask one of them
        if health.lost_end is not None and above >= self._local.log.synced_end:
            raise health.lost_end  # the records above were lost and will not come
        return self._committed.wait_above(above, timeout_ms)
