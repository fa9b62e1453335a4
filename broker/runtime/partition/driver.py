"""The shell of one partition on this broker: group commit, reads, requests of tiering.

One turn takes the queued writes, plans a group, appends it, lets followers fetch, syncs, moves the
high watermark and answers the publishers whose ack policy allows it. All writing happens in turns,
on one thread at a time. The ``ReplicaShell`` handles replication, and knows who leads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
import structlog

from broker.codec.record_batch import PreparedBatch
from broker.core.leader import PartitionLeader
from broker.core.replication.view import PartitionView, Role
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    LogFailedError,
    NotLeaderError,
    OverloadedError,
    ShuttingDownError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.replica_messages import ReplicaMessage, size_of
from broker.model.replica_state import ReplicaState
from broker.model.stream import Stream
from broker.ports.partition import RecordsOutcome, SegmentInfo, StoredBatch
from broker.ports.system import Clock
from broker.runtime.partition.commit_scheduler import TurnScheduler
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.counters import OnCommit, PartitionCounters, ignore_commit
from broker.runtime.partition.groups import BatchesWrite, RecordsWrite, Write, refuse_too_large
from broker.runtime.partition.leadership_gate import Claims, Gatekeeper
from broker.runtime.partition.local_frees import LocalFrees
from broker.runtime.partition.local_log import BeginLog, LocalLog
from broker.runtime.partition.queue import CALL_S_MAX, Deferred, Newest, OwnerCall, TurnQueue, Work
from broker.runtime.partition.replica_shell import (
    ReplicaIdentity,
    ReplicaLinks,
    ReplicaShell,
    not_leader,
)
from broker.storage.log.partition_log import PartitionLog

_log = structlog.get_logger(__name__)

_STATES: Final[Mapping[Role, ReplicaState]] = {
    "leader": ReplicaState.LEADING,
    "candidate": ReplicaState.CANDIDATE,
    "follower": ReplicaState.FOLLOWING,
    "waiting": ReplicaState.WAITING,
    "none": ReplicaState.CLOSING,  # moved to other brokers: the log is about to be removed
}


class PartitionDriver:
    """Implements ``PartitionHandle`` and ``TierSource`` over a local log."""

    def __init__(
        self,
        *,
        log: PartitionLog,
        stream: Stream,
        number: int,
        identity: ReplicaIdentity,
        cold_end: Offset,
        links: ReplicaLinks,
        clock: Clock,
        scheduler: TurnScheduler,
        record_cold_end: Callable[[int, Offset], None],
        begin_log: BeginLog,
        on_sealed: Callable[[Stream], None],
        on_commit: OnCommit = ignore_commit,
        claims: Claims | None = None,
    ) -> None:
        """Take over an open log; the first :meth:`take_view` gives the replica its role."""
        self.stream = stream
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        self.subject = stream.config.partition_subject(number)
        self.counters = PartitionCounters()
        self._local = LocalLog(
            log,
            partition_id=self.partition_id,
            config=stream.config,
            cold_end=cold_end,
            record_cold_end=record_cold_end,
            begin_log=begin_log,
            clock=clock,
            counters=self.counters,
        )
        self._me, self._alone = identity.me, False
        self._clock, self._links, self._on_sealed = clock, links, on_sealed
        self.failure: HeadwaterError | None = None
        self._gate = Gatekeeper(self, clock, claims)
        self._commits = Commits(
            config=stream.config,
            counters=self.counters,
            local=self._local,
            clock=clock,
            fail=self.fail,
            on_commit=on_commit,
            is_held=self._gate.is_held,
        )
        self.lost_end = log.recovery.lost_end_error  # set if the log was once longer
        self._queue = TurnQueue(self, scheduler, str(self.partition_id))
        self._closed = threading.Event()
        self.frees = LocalFrees(self, self._local, self._queue)
        self._maintenance_queued = self._tick_queued = False  # so that each is queued only once
        self._views = Newest(self._queue, self._take_view)
        self._postponed = Deferred()
        self._quiet_ms, self._ticked_ms, self._due_ms = identity.quiet_ms, 0, 0
        self._shell: ReplicaShell | None = None
        if log.recovery.damaged:
            self.failure = log.recovery.damaged[0]
        else:
            self._shell = ReplicaShell(
                owner=self,
                name=self._path,
                local=self._local,
                config=stream.config,
                identity=identity,
                links=links,
                clock=clock,
            )
            try:
                self._local.retries.follow_log(log)
            except CorruptDataError as error:  # damage in bytes that opening the log did not scan
                self.failure, self._shell = error, None

    # ------------------------------------------------------------------ for readers

    @property
    def log_start(self) -> Offset:
        """First offset still on local disk."""
        return self._local.log.log_start

    @property
    def high_watermark(self) -> Offset:
        """First offset not known to be committed; the synced end if a log without copies failed."""
        if self._shell is None or (self._alone and self.failure is not None):
            return self._local.log.synced_end
        return self._shell.high_watermark

    @property
    def log_end(self) -> Offset:
        """First offset not written."""
        return self._local.log.log_end

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest leader epoch that this replica knows."""
        view = self.view
        return self._local.log.epochs.latest if view is None else view.leader_epoch

    @property
    def lineage(self) -> Lineage:
        """See ``TierSource.lineage``."""
        return () if self.view is None else self.view.lineage

    @property
    def view(self) -> PartitionView | None:
        """The newest view of the partition's metadata."""
        return None if self._shell is None else self._shell.view

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition, according to its own metadata.

        The only replica counts as leader even after a failure: no other broker can report why.
        """
        if self.failure is not None:
            return self._alone
        return self._shell is not None and self._shell.role == "leader"

    @property
    def lost_leadership(self) -> HeadwaterError | None:
        """See ``PartitionHandle.lost_leadership``."""
        return self._gate.refusal

    @property
    def leader(self) -> PartitionLeader | None:
        """The leader core while this replica leads; only for reading."""
        return None if self._shell is None else self._shell.leader

    @property
    def state(self) -> ReplicaState:
        """What this replica is doing now, for operators."""
        if self._queue.closing:
            return ReplicaState.CLOSING
        if self._shell is None:
            return ReplicaState.DAMAGED
        if self.failure is not None:
            return ReplicaState.FAILED
        if self._gate.refusal is not None:
            return ReplicaState.REPLACED
        if self._shell.view is None:
            return ReplicaState.OPENING
        claiming = self._shell.role == "leader" and self._gate.due_ms is not None
        return ReplicaState.CLAIMING if claiming else _STATES[self._shell.role]

    @property
    def is_damaged(self) -> bool:
        """Whether the log was found damaged when it was opened."""
        return self._shell is None

    @property
    def newest_committed(self) -> Offset | None:
        """The high watermark, or None while an earlier leader may have shown more (KIP-207)."""
        leader = self.leader
        if leader is None or leader.is_fenced(self._clock.monotonic_ms()):
            return None
        return leader.newest_committed

    @property
    def synced_position(self) -> tuple[LeaderEpoch, Offset]:
        """The last record's leader epoch and the log end, for an election."""
        always = self.stream.config.flush == "always"
        end = self._local.log.synced_end if always else self._local.log.log_end
        epochs = self._local.log.epochs
        return (epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)), end

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """See ``PartitionReader.read``. If it finds rot, this replica leaves the ISR."""
        try:
            return self._local.log.read(start, end, bytes_max=bytes_max)
        except CorruptDataError as error:
            found = error
            self._queue.post(lambda: self.fail(found))
            raise

    def offset_at(self, timestamp_us: int) -> Offset:
        """See ``PartitionReader.offset_at``."""
        return self._local.log.offset_at(timestamp_us)

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """See ``PartitionReader.wait_committed``; also returns when the partition closes."""
        if self.failure is not None and not self._alone:
            raise self.failure  # other brokers have copies: the reader must ask one of them
        if self.lost_end is not None and above >= self._local.log.synced_end:
            raise self.lost_end  # the records above were lost and will not come
        if self._shell is None:
            self._closed.wait(timeout_ms / 1000)  # a damaged log commits no more records
            return self._local.log.synced_end
        return self._shell.wait_committed(above, timeout_ms)

    # ------------------------------------------------------------------ for publishers

    def submit(
        self,
        batches: Sequence[PreparedBatch],
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],
        *,
        may_block: bool = False,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """See ``PartitionHandle.submit``."""
        size = sum(one.size for one in batches)
        self._enqueue(BatchesWrite(batches, done, size, policy), may_block=may_block)

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Callable[[RecordsOutcome | HeadwaterError], None],
        *,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """See ``PartitionHandle.submit_records``."""
        if message_ids is not None and not any(message_ids):
            message_ids = None
        prepared = self._commits.encode(batch)
        self._enqueue(RecordsWrite(batch, prepared, message_ids, done, prepared.size, policy))

    def _enqueue(self, write: Write, *, may_block: bool = False) -> None:
        refuse_too_large(write, self.stream.config.segment_bytes_max)
        self._refuse_if_unable()
        try:
            self._queue.put(write, may_block=may_block)
        except OverloadedError:
            self.counters.refused_writes += 1
            raise

    def _refuse_if_unable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._queue.closing:
            raise ShuttingDownError(f"partition {self._path} is closing")
        if not self.leads:
            raise not_leader(self._path, self.view)
        overload = self._local.tier.overload()
        if overload is not None:
            self.counters.refused_writes += 1
            raise overload

    @property
    def refusal(self) -> HeadwaterError | None:
        """Why writes are refused: the log has failed, or another process leads this history."""
        return self.failure or self._gate.refusal

    @property
    def _path(self) -> str:
        return f"{self.stream.name}/{self.partition_id.number}"

    # ------------------------------------------------------------------ for the cluster

    def take_view(self, view: PartitionView | None) -> OwnerCall:
        """Begin to take the newest view of the metadata; finish with :meth:`view_taken`."""
        return self._views.begin(view)

    def view_taken(self, call: OwnerCall) -> None:
        """Wait until the view is taken. Blocks."""
        self._queue.result_of(call)

    def _take_view(self, view: PartitionView | None) -> None:
        self._alone = view is not None and view.replicas == (self._me,)
        if self._shell is not None and self.failure is None:
            self._shell.view_changed(view)
            self._gate.view_taken(self.view, leads=self._shell.role == "leader")
            self._settle()

    def deliver(self, message: ReplicaMessage) -> None:
        """Take a message of another replica, or drop it. Any thread; does not block."""
        if not self._queue.offer(lambda: self._message(message), size_of(message)):
            self.counters.dropped_messages += 1

    def _message(self, message: ReplicaMessage) -> None:
        if self._shell is not None and self.failure is None:
            self._shell.message(message)
            self._settle()

    def tick_replica(self) -> None:
        """Queue a tick of the replica if a timer is due. Any thread; does not block."""
        self._gate.tick()
        if not self._tick_queued and self._clock.monotonic_ms() >= self._due_ms:
            self._tick_queued = True
            self._queue.post(self._tick)

    def _tick(self) -> None:
        self._tick_queued = False
        self._ticked_ms = self._clock.monotonic_ms()
        due = self._postponed.due(self._ticked_ms)
        if self._shell is None or self.failure is not None:
            return
        for function in due:
            function()
        self._shell.tick()
        self._settle()

    # ------------------------------------------------------------------ for tiering

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

    def refuse_if_replaced(self) -> None:
        """Fail if the log ends below its cold end: a lone broker cannot fetch the lost records."""
        if self.failure is None:
            self.failure = self._local.replacement()

    def admit(self, lineage_id: str) -> None:
        """See ``TierSource.admit``."""
        self._queue.post(lambda: self._admit(lineage_id))

    def _admit(self, lineage_id: str) -> None:
        self._gate.admit(lineage_id)
        self._settle()

    def refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        """See ``TierSource.refuse_writes``."""
        self._queue.post(lambda: self._refuse_writes(lineage_id, error))

    def _refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        if self._gate.refuse(lineage_id, error):
            _log.error("leadership_lost", partition=self._path, reason=error.message)
            self._commits.abandon(error)

    @property
    def may_free(self) -> bool:
        """See ``FreesOwner``."""
        return not self._queue.closing and self.refusal is None

    # ------------------------------------------------------------------ the owner's turns

    def tick(self) -> None:
        """Queue the periodic work: roll by age, sync by interval, expire ids. Any thread."""
        if self.failure is None and not self._queue.closing and not self._maintenance_queued:
            self._maintenance_queued = True
            self._queue.post(self._maintain)

    def close(self) -> None:
        """Refuse new writes, finish those queued, close the log. Blocks."""
        self.closed(self.begin_close())

    def begin_close(self) -> OwnerCall:
        """Begin to :meth:`close`; finish with :meth:`closed`."""
        self._queue.close()
        self._closed.set()
        if self._shell is not None:
            self._shell.wake_readers(closing=True)
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

    def run_turn(self) -> None:
        """Run one turn; the scheduler calls this, on one thread at a time."""
        work = Work()
        try:
            self._queue.take(work, held=(held := self._holds_writes()))
            for call in work.calls:
                self._run_call(call)
            if work.writes:
                self._commit(work.writes)
            self._due_ms = self._next_due_ms()
            self._queue.end_turn(held=held and self._holds_writes())
        except BaseException:
            self._poison(work)
            raise  # the supervisor ends the process

    def _holds_writes(self) -> bool:
        return not self._queue.closing and self._gate.is_held()

    def _poison(self, work: Work) -> None:
        """Stop all work of this partition: a turn crashed at an unknown step, by a bug.

        Memory may have plans that the log has not, so no state of memory is written any more. The
        waiting writes get no answer: their outcome is unknown, and the process ends.
        """
        self.failure = LogFailedError(
            f"a bug stopped the work of partition {self._path}, so the broker stops: see its log"
        )
        self._local.log.poison(self.failure.message)
        self._queue.poison(work, self.failure)
        self._closed.set()
        if self._shell is not None:
            self._shell.wake_readers(closing=True)

    def _next_due_ms(self) -> int:
        if len(self._commits):
            return 0  # perhaps they wait only for a renewed lease
        shell_ms = None if self._shell is None else self._shell.due_ms
        regular_ms = self._ticked_ms + self._quiet_ms
        due_ms = (regular_ms, shell_ms, self._postponed.due_ms, self._gate.due_ms)
        return min(one for one in due_ms if one is not None)

    def _commit(self, writes: Sequence[Write]) -> None:
        shell = self._shell
        if shell is not None:
            shell.refresh_lease()
        taken = [write for write in writes if not self._refuses(write)]
        leader = None if shell is None else shell.leader
        if shell is None or leader is None or not taken:
            return
        if self._commits.write(taken, shell, leader.leader_epoch):
            self._notice_roll()

    def _refuses(self, write: Write) -> bool:
        """Refuse a write that cannot be taken now: answer it, store nothing. Tell whether so."""
        leader = None if self._shell is None else self._shell.leader
        refusal: HeadwaterError | None
        if self.failure is not None:
            refusal = self.failure
        elif leader is None:
            refusal = not_leader(self._path, self.view)
        else:  # the leader's own refusal comes before the refusal by the claim in the lake
            refusal = leader.refusal(write.policy, self._clock.monotonic_ms()) or self._gate.refusal
        if refusal is None and self._queue.closing and self._gate.is_held():
            refusal = ShuttingDownError(
                f"partition {self._path} closes before its claim in the lake was settled"
            )
        if refusal is not None:
            self.counters.refused_writes += 1
            write.refuse(refusal)
        return refusal is not None

    def _settle(self) -> None:
        self._commits.settle(self.leader)

    def _maintain(self) -> None:
        self._maintenance_queued = False
        now_us = self._clock.now_us()
        self._local.retries.window.expire(now_us)
        shell = self._shell
        if shell is None or self.failure is not None:
            return
        waited_ms = self._clock.monotonic_ms() - shell.synced_ms
        interval_ms = self.stream.config.flush_interval_ms
        if self._local.log.synced_end < self._local.log.log_end and waited_ms >= interval_ms:
            shell.sync()
            self.counters.syncs = shell.sync_count
        self._local.log.roll_if_due(now_us)
        self._notice_roll()

    def _close_log(self) -> None:
        reason = f"partition {self._path} closed before these records were committed"
        self._commits.abandon(ShuttingDownError(reason))
        if self.failure is None:
            self._local.save_producers()
        self._local.log.close()

    def begin_leading(self) -> None:
        """See ``ReplicaOwner``."""
        self._local.begin_leading()

    def end_leading(self) -> None:
        """See ``ReplicaOwner``: publishers must retry at the next leader, with the same ids."""
        reason = f"this broker stopped leading {self._path} before the commit"
        self._commits.abandon(NotLeaderError(reason))

    def fail(self, error: HeadwaterError) -> None:
        """See ``ReplicaOwner``: refuse writes, leave the ISR, wake waiting readers."""
        if self.failure is not None:
            return
        self.failure = error
        _log.error("partition_failed", partition=self._path, reason=error.message)
        if isinstance(error, CorruptDataError):
            with suppress(HeadwaterError):  # if the disk refuses this, the log has failed anyway
                self._local.log.mark_suspect()  # the next start scans all and fetches the log again
        self._links.withdraw(error)
        if self._shell is not None:
            self._shell.wake_readers(closing=False)
        self._commits.abandon(error)

    def later(self, delay_ms: int, function: Callable[[], None]) -> None:
        """See ``ReplicaOwner``."""
        if delay_ms == 0:
            self._queue.post(function)
        else:
            self._postponed.add(self._clock.monotonic_ms() + delay_ms, function)

    def _run_call(self, call: OwnerCall) -> None:
        try:
            call.result = call.function()
        except HeadwaterError as error:
            call.error = error
            if isinstance(error, LogFailedError | CorruptDataError):
                self.fail(error)
            elif call.finished is None:
                _log.warning("turn_refused", partition=self._path, reason=error.message)
        call.finish()
        self._notice_roll()

    def _notice_roll(self) -> None:
        if self._local.has_rolled():
            if self.failure is None:
                try:
                    self._local.save_producers()
                except LogFailedError as error:  # answered records are durable; take no more
                    self.fail(error)
            self._on_sealed(self.stream)
