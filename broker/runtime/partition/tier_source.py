"""A partition of this broker as tiering sees it."""

from __future__ import annotations

import structlog

from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.partition import SegmentInfo
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.leadership_gate import Gatekeeper
from broker.runtime.partition.reads import PartitionReads
from broker.runtime.partition.replication import Replication

_log = structlog.get_logger(__name__)


class LocalTierSource:
    """Implements ``TierSource`` over a local log. Any thread."""

    def __init__(
        self,
        context: PartitionContext,
        reads: PartitionReads,
        replication: Replication,
        commits: Commits,
        gate: Gatekeeper,
    ) -> None:
        """Show what ``reads`` shows; settle the claims of ``gate``."""
        self.partition_id: PartitionId = context.partition_id
        self.subject = context.stream.config.partition_subject(context.partition_id.number)
        self.reads = reads
        self._name = context.name
        self._clock = context.clock
        self._queue = context.queue
        self._local = context.local
        self._replication = replication
        self._commits = commits
        self._gate = gate

    # ------------------------------------------------------------------ the log and its table

    @property
    def stream(self) -> Stream:
        """See ``TierSource.stream``."""
        return self._local.cipher.stream

    @property
    def lineage(self) -> Lineage:
        """See ``TierSource.lineage``."""
        return self._replication.lineage

    @property
    def cold_end(self) -> Offset:
        """See ``TierSource.cold_end``."""
        return self._local.tier.cold_end

    @property
    def unshipped_bytes(self) -> int:
        """Bytes on local disk that are not in the table."""
        return self._local.tier.unshipped_bytes

    def segments(self) -> list[SegmentInfo]:
        """See ``TierSource.segments``."""
        return self._local.log.segments()

    def seal_active(self) -> None:
        """See ``TierSource.seal_active``. Blocks until done."""
        self._queue.call(lambda: self._local.log.seal_active(self._clock.now_us()))

    def record_cold_end(self, cold_end: Offset) -> None:
        """See ``TierSource.record_cold_end``. Blocks until the metadata log has it."""
        self._local.record_cold_end(cold_end)

    def learn_cold_end(self, cold_end: Offset) -> None:
        """Take a higher cold end from the metadata; a lower one is ignored."""
        self._local.learn_cold_end(cold_end)

    def learn_purged(self, purged_end: Offset) -> None:
        """Take a higher purged end from the metadata; a lower one is ignored."""
        self._local.learn_purged(purged_end)

    def learn_expired(self, remote_start: Offset) -> None:
        """Take a higher remote start from the metadata; a lower one is ignored."""
        self._local.learn_expired(remote_start)

    # ------------------------------------------------------------------ the claim in the lake

    def admit(self, lineage_id: str) -> None:
        """See ``TierSource.admit``."""
        self._queue.post(lambda: self._admit(lineage_id))

    def _admit(self, lineage_id: str) -> None:
        self._gate.admit(lineage_id)
        self._replication.settle()

    def refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        """See ``TierSource.refuse_writes``."""
        self._queue.post(lambda: self._refuse_writes(lineage_id, error))

    def _refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        if self._gate.refuse(lineage_id, error):
            _log.error("leadership_lost", partition=self._name, reason=error.message)
            self._commits.abandon(error)
