"""The way of a write into the log: refused or queued when it comes, then written in a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from broker.codec.record_batch import PreparedBatch
from broker.codec.sealed_body import SEAL_BYTES
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
)
from broker.model.activity import RESERVED_STREAMS
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.stopped import stopped_error
from broker.model.stream import StreamConfig
from broker.ports.partition import RecordsOutcome, WriteOrder
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.groups import BatchesWrite, RecordsWrite, Write, refuse_too_large
from broker.runtime.partition.leadership_gate import Gatekeeper
from broker.runtime.partition.maintenance import Maintenance
from broker.runtime.partition.replica_shell import not_leader
from broker.runtime.partition.replication import Replication


class PartitionWrites:
    """Implements ``PartitionWriter``. Any thread submits; the owner's turn commits."""

    def __init__(
        self,
        context: PartitionContext,
        replication: Replication,
        commits: Commits,
        gate: Gatekeeper,
        maintenance: Maintenance,
    ) -> None:
        """Write groups by ``commits`` while the replica leads and ``gate`` does not refuse."""
        self._segment_bytes_max = context.stream.config.segment_bytes_max
        self._sealing_bytes = SEAL_BYTES if context.stream.is_encrypted else 0
        self._name = context.name
        self._stream, self._number = context.stream.name, context.partition_id.number
        self._clock = context.clock
        self._counters = context.counters
        self._queue = context.queue
        self._local = context.local
        self._health = context.health
        self._replication = replication
        self._commits = commits
        self._gate = gate
        self._maintenance = maintenance

    def configure(self, config: StreamConfig) -> None:
        """Take changed settings."""
        self._segment_bytes_max = config.segment_bytes_max

    # ------------------------------------------------------------------ any thread

    @property
    def keeps_order(self) -> bool:
        """See ``PartitionWriter.keeps_order``: one thread at a time decides, as they came."""
        return True

    def submit(
        self,
        batches: Sequence[PreparedBatch],
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],
        *,
        may_block: bool = False,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """See ``PartitionWriter.submit``."""
        size = sum(one.size for one in batches)
        self._enqueue(BatchesWrite(batches, done, size, policy), may_block=may_block)

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Callable[[RecordsOutcome | HeadwaterError], None],
        *,
        policy: AckPolicy = AckPolicy.ALL,
        expected_end: Offset | None = None,
        order: WriteOrder | None = None,
    ) -> None:
        """See ``PartitionWriter.submit_records``."""
        if message_ids is not None and not any(message_ids):
            message_ids = None
        prepared = self._commits.encode(batch)
        size = prepared.size
        self._enqueue(
            RecordsWrite(batch, prepared, message_ids, done, size, policy, expected_end, order)
        )

    def submit_own(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None],
        done: Callable[[RecordsOutcome | HeadwaterError], None],
    ) -> None:
        """Do the same for records of the cluster itself, in a stream that takes no others."""
        prepared = self._commits.encode(batch)
        write = RecordsWrite(batch, prepared, message_ids, done, prepared.size)
        self._enqueue(write, is_own=True)

    def _enqueue(self, write: Write, *, may_block: bool = False, is_own: bool = False) -> None:
        refuse_too_large(write, self._segment_bytes_max - self._sealing_bytes)
        if self._stream in RESERVED_STREAMS and not is_own:
            raise InvalidRequestError(f"only the cluster itself writes to stream {self._stream}")
        self._refuse_if_unable()
        try:
            self._local.tier.accept(write.size_bytes)
            try:
                self._queue.put(write, may_block=may_block)
            except (OverloadedError, ShuttingDownError):
                self._local.tier.settle([write])
                raise
        except OverloadedError:
            self._counters.refused_writes += 1
            raise

    def _refuse_if_unable(self) -> None:
        if self._health.failure is not None:
            raise self._health.failure
        if self._queue.closing:
            raise ShuttingDownError(f"partition {self._name} is closing")
        if not self._replication.leads:
            raise not_leader(self._name, self._replication.view)
        if (stopped := self._stopped()) is not None:
            raise stopped

    def _stopped(self) -> HeadwaterError | None:
        """Return why an operator's decision stops writes, or None."""
        view = self._replication.view
        if view is None or not (view.paused or view.readonly):
            return None
        return stopped_error(self._stream, self._number, paused=view.paused, readonly=view.readonly)

    # ------------------------------------------------------------------ in a turn

    def _too_early(self) -> ShuttingDownError | None:
        """Return why a closing partition does not take the writes that wait, or None."""
        if self._gate.is_held():
            lacks = "claim in the lake was settled"
        elif self._replication.ids.is_held:
            lacks = "message ids were read"
        else:
            return None
        return ShuttingDownError(f"partition {self._name} closes before its {lacks}")

    def commit(self, writes: Sequence[Write]) -> None:
        """Write those that can be taken now as one group; refuse the others."""
        shell = self._replication.shell
        if shell is not None:
            shell.refresh_lease()
        taken = [write for write in writes if not self._refuses(write)]
        leader = None if shell is None else shell.leader
        if shell is None or leader is None or not taken:
            return
        if self._commits.write(taken, shell, leader.leader_epoch):
            self._maintenance.notice_roll()

    def _refuses(self, write: Write) -> bool:
        """Refuse a write that cannot be taken now: answer it, store nothing. Tell whether so."""
        leader = self._replication.leader
        refusal: HeadwaterError | None
        if self._health.failure is not None:
            refusal = self._health.failure
        elif leader is None:
            refusal = not_leader(self._name, self._replication.view)
        elif (stopped := self._stopped()) is not None:  # since it was queued
            refusal = stopped
        else:  # the leader's own refusal comes before the refusal by the claim in the lake
            refusal = leader.refusal(write.policy, self._clock.monotonic_ms()) or self._gate.refusal
        if refusal is None:
            refusal = self._local.ids_refusal
        if refusal is None and self._queue.closing:
            refusal = self._too_early()
        order = write.order if isinstance(write, RecordsWrite) else None
        if refusal is None and order is not None:
            refusal = order.refusal
        if refusal is not None:
            if order is not None:
                order.refused(refusal)
            self._counters.refused_writes += 1
            self._local.tier.settle([write])
            write.refuse(refusal)
        return refusal is not None
