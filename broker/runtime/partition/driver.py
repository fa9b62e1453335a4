"""One partition on this broker: its parts, and its turns.

One turn takes the queued writes, plans a group, appends it, lets followers fetch, syncs, moves the
high watermark and answers the publishers whose ack policy allows it. All writing happens in turns,
on one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from broker.core.key_compaction import records_left
from broker.core.replication.view import Role
from broker.errors import CorruptDataError, HeadwaterError, LogFailedError, ShuttingDownError
from broker.model.offsets import Offset
from broker.model.replica_state import ReplicaState
from broker.model.stream import Stream, StreamConfig
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.committed import CommittedEnd
from broker.runtime.partition.context import (
    OpenedLog,
    PartitionContext,
    PartitionNotices,
    PartitionPorts,
    StreamPartition,
)
from broker.runtime.partition.counters import PartitionCounters
from broker.runtime.partition.health import PartitionHealth
from broker.runtime.partition.key_compaction import KeyCompaction
from broker.runtime.partition.leadership_gate import Gatekeeper
from broker.runtime.partition.local_frees import LocalFrees
from broker.runtime.partition.local_log import LocalLog
from broker.runtime.partition.maintenance import Maintenance
from broker.runtime.partition.queue import CALL_S_MAX, OwnerCall, TurnQueue, Work
from broker.runtime.partition.reads import PartitionReads
from broker.runtime.partition.replica_shell import ReplicaIdentity, ReplicaLinks
from broker.runtime.partition.replication import Replication
from broker.runtime.partition.retry_tables import RetryCounts
from broker.runtime.partition.room import LogRoom
from broker.runtime.partition.tier_source import LocalTierSource
from broker.runtime.partition.writes import PartitionWrites
from broker.runtime.stream_keys import PartitionCipher

_log = structlog.get_logger(__name__)

_STATES: Final[Mapping[Role, ReplicaState]] = {
    "candidate": ReplicaState.CANDIDATE,
    "follower": ReplicaState.FOLLOWING,
    "waiting": ReplicaState.WAITING,
    "none": ReplicaState.CLOSING,  # moved to other brokers: the log is about to be removed
}


class PartitionDriver:
    """Implements ``PartitionHandle``: the parts of a partition, and the turns that drive them."""

    def __init__(
        self,
        partition: StreamPartition,
        opened: OpenedLog,
        identity: ReplicaIdentity,
        ports: PartitionPorts,
        notices: PartitionNotices,
    ) -> None:
        """Take over an open log; the first view gives the replica its role."""
        self.stream, self.partition_id = partition.stream, partition.partition_id
        self.counters = PartitionCounters()
        self._followers = threading.Lock()  # for their count
        self._local = LocalLog(
            opened.log,
            partition_id=self.partition_id,
            config=partition.stream.config,
            cold_end=opened.cold_end,
            record_cold_end=notices.record_cold_end,
            begin_log=opened.begin_log,
            clock=ports.clock,
            counters=self.counters,
            cipher=PartitionCipher(partition.stream, self.partition_id, ports.keys),
            room=ports.id_budget.share(),
            purged_end=opened.purged_end,
            remote_start=opened.remote_start,
        )
        self._queue = TurnQueue(self, ports.scheduler, str(self.partition_id))
        self.health = PartitionHealth(partition.name, self._local)
        self._context = context = PartitionContext(
            stream=self.stream,
            partition_id=self.partition_id,
            name=partition.name,
            clock=ports.clock,
            counters=self.counters,
            queue=self._queue,
            local=self._local,
            health=self.health,
            room=LogRoom(partition.name),
        )
        self._committed = CommittedEnd(
            partition.name, self._local.committed_for_certain(opened.lineage)
        )
        self._gate = gate = Gatekeeper(self.partition_id, ports.clock, notices.claims)
        self._closed = False  # the log is: nothing that is queued later touches it
        self._commits = commits = Commits(
            context, on_commit=notices.on_commit, is_held=gate.is_held
        )
        self.replication = Replication(
            context,
            identity,
            links=ports.links,
            committed=self._committed,
            commits=commits,
            gate=gate,
            ids_slice_bytes=ports.id_budget.slice_bytes,
        )
        self.reads = PartitionReads(context, self.replication, self._committed)
        self.maintenance = Maintenance(
            context, self.replication, on_sealed=notices.on_sealed, on_idle=notices.on_idle
        )
        self.writes = PartitionWrites(context, self.replication, commits, gate, self.maintenance)
        self.tier = LocalTierSource(context, self.reads, self.replication, commits, gate)
        self.frees = LocalFrees(self, self._local, self._queue)
        self.compaction = KeyCompaction(
            self, context, lambda: self._committed.end, lambda: self.replication.leader
        )
        self._tell_failure(ports.links)

    def _tell_failure(self, links: ReplicaLinks) -> None:
        self.health.when_failed(links.withdraw)
        self.health.when_failed(lambda _: self._committed.wake())
        self.health.when_failed(self._commits.abandon)
        if self.health.failure is not None:  # damaged when it was opened, at a start or later
            links.withdraw(self.health.failure)

    # ------------------------------------------------------------------ any thread reads

    @property
    def config(self) -> StreamConfig:
        """See ``PartitionHandle.config``."""
        return self.stream.config

    @property
    def leads(self) -> bool:
        """See ``PartitionHandle.leads``."""
        return self.replication.leads

    @property
    def lost_leadership(self) -> HeadwaterError | None:
        """See ``PartitionHandle.lost_leadership``."""
        return self._gate.refusal

    @property
    def is_paused(self) -> bool:
        """See ``PartitionHandle.is_paused``."""
        view = self.replication.view
        return view is not None and view.paused

    @property
    def is_readonly(self) -> bool:
        """See ``PartitionHandle.is_readonly``."""
        view = self.replication.view
        return view is not None and view.readonly

    @property
    def received_us(self) -> tuple[int, int]:
        """See ``PartitionHandle.received_us``."""
        return self.counters.received_first_us, self.counters.received_latest_us

    @contextmanager
    def followed(self) -> Iterator[None]:
        """See ``PartitionHandle.followed``."""
        with self._followers:
            self.counters.followers += 1
        try:
            yield
        finally:
            with self._followers:
                self.counters.followers -= 1

    @property
    def refusal(self) -> HeadwaterError | None:
        """Why writes are refused: the log has failed, or another process leads this history."""
        return self.health.failure or self._gate.refusal

    @property
    def message_ids(self) -> RetryCounts:
        """The window of message ids, for metrics."""
        return self._local.retries.counts()

    @property
    def may_free(self) -> bool:
        """See ``FreesOwner``."""
        return not self._queue.closing and self.refusal is None and self._local.is_there

    @property
    def state(self) -> ReplicaState:
        """What this replica is doing now, for operators."""
        if self._queue.closing:
            return ReplicaState.CLOSING
        if self.health.is_damaged:
            return ReplicaState.DAMAGED
        if self.health.failure is not None:
            return ReplicaState.FAILED
        if self._gate.refusal is not None:
            return ReplicaState.REPLACED
        if self.replication.view is None:
            return ReplicaState.OPENING
        role = self.replication.role
        if self._context.room.is_disk_full:
            return ReplicaState.FULL
        if role != "leader":
            return _STATES[role]
        if self._gate.due_ms is not None:
            return ReplicaState.CLAIMING
        if self.replication.ids.is_held:
            return ReplicaState.READING_IDS
        if self.is_paused:
            return ReplicaState.PAUSED
        return ReplicaState.READONLY if self.is_readonly else ReplicaState.LEADING

    def records_left(self, end: Offset) -> int | None:
        """Return how many records there are below ``end``, of a stream that is compacted.

        None if it is not known, and of other streams: they have a record for each offset, those
        with a table also where this log was compacted.
        """
        if not self.config.compact or self.config.tiering:
            return None
        return records_left(self._local.log.segments(), self.reads.log_start, end)

    # ------------------------------------------------------------------ changed settings

    def configure(self, stream: Stream) -> OwnerCall:
        """Queue the stream's changed settings for the partition's thread. Any thread."""
        self.stream = stream
        return self._queue.begin(self._configure)

    def _configure(self) -> None:
        config = self.stream.config
        self._local.cipher.configure(self.stream)
        if self.health.failure is None:
            other_window = self._local.configure(config)
            if other_window and self.replication.role == "leader":
                self.replication.ids.begin()
        self._commits.configure(config)
        self.maintenance.configure(config)
        self.writes.configure(config)
        self.compaction.configure(config)
        if config.tiering:
            self._gate.claim_again()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Refuse new writes, finish those queued, close the log. Blocks."""
        self.closed(self.begin_close())

    def begin_close(self) -> OwnerCall:
        """Begin to :meth:`close`; finish with :meth:`closed`."""
        self._queue.close()
        self._committed.close()
        return self._queue.begin(self._close_log)

    def closed(self, call: OwnerCall, timeout_s: float = CALL_S_MAX) -> None:
        """Wait until the log is closed.

        Raises:
            CommitTimeoutError: its disk hangs.
            LogFailedError: its disk failed.
        """
        try:
            self._queue.result_of(call, timeout_s)
        except LogFailedError:
            if not self._queue.poisoned:
                raise
            self._local.log.close()  # only close the files: no turn runs any more

    def _close_log(self) -> None:
        reason = f"partition {self._context.name} closed before these records were committed"
        self._commits.abandon(ShuttingDownError(reason))
        if self.health.failure is None and self._local.is_there:
            self._local.save_producers()
        self._local.end_leading()
        self.replication.end()
        self._local.log.close()
        self._closed = True

    # ------------------------------------------------------------------ the owner's turns

    def run_turn(self) -> None:
        """Run one turn; the scheduler calls this, on one thread at a time."""
        work = Work()
        try:
            self._queue.take_calls(work, held=self._holds_writes())
            for call in work.calls:
                self._run_call(call)
            if not (held := self._holds_writes()):  # after the calls: one may begin a leadership
                self._queue.take_writes(work)
            if work.writes:
                self.maintenance.is_done = False
                self.writes.commit(work.writes)
            self.replication.end_turn(idle=self.maintenance.is_done)
            self._queue.end_turn(held=held and self._holds_writes())
        except BaseException:
            self._poison(work)
            raise  # the supervisor ends the process

    def _holds_writes(self) -> bool:
        return not self._queue.closing and (self._gate.is_held() or self.replication.ids.is_held)

    def _run_call(self, call: OwnerCall) -> None:
        try:
            if self._closed:  # e.g. a message of another replica came after the close
                raise ShuttingDownError(f"partition {self._context.name} is closed")
            self.maintenance.is_done = False
            call.result = call.function()
        except HeadwaterError as error:
            call.error = error
            if isinstance(error, LogFailedError | CorruptDataError):
                self.health.fail(error)
            elif call.finished is None and not self._closed:
                _log.warning("turn_refused", partition=self._context.name, reason=error.message)
        call.finish()
        self.maintenance.notice_roll()

    def _poison(self, work: Work) -> None:
        """Stop all work of this partition: a turn crashed at an unknown step, by a bug.

        Memory may have plans that the log has not, so no state of memory is written any more. The
        waiting writes get no answer: their outcome is unknown, and the process ends.
        """
        self._queue.poison(work, self.health.poison())
        self._committed.close()
