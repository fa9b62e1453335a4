"""The shell of one partition on this broker: group commit, reads, what tiering asks.

One turn = take what is queued, plan it, append, let followers fetch, sync, move the high watermark,
answer whom the ack policy lets answer. All writing happens in turns, on one thread at a time. What
replication decides, and whether this broker leads, is the ``ReplicaShell``'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
import structlog

from broker.codec.record_batch import PreparedBatch, prepare
from broker.core.acks import AckQueue
from broker.core.leader import PartitionLeader
from broker.core.replication.view import PartitionView
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    LogFailedError,
    NotLeaderError,
    OverloadedError,
    RecordTooLargeError,
    ShuttingDownError,
)
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.replica_messages import LogPrefix, ReplicaMessage
from broker.model.stream import Stream
from broker.ports import Clock, RecordsOutcome, SegmentInfo, StoredBatch
from broker.runtime.commit_group import Answer, BatchesWrite, CommitGroup, RecordsWrite, Write
from broker.runtime.commit_scheduler import CommitScheduler
from broker.runtime.partition_counters import OnCommit, PartitionCounters, ignore_commit
from broker.runtime.replica_shell import ReplicaIdentity, ReplicaLinks, ReplicaShell, not_leader
from broker.runtime.retry_tables import RetryTables
from broker.runtime.tier_view import TierView
from broker.runtime.turn_queue import (
    OwnerCall,
    Postponed,
    TurnQueue,
)
from broker.storage.partition_log import PartitionLog

_log = structlog.get_logger(__name__)

BeginLog = Callable[[Offset, EpochHistory], PartitionLog]  # replaces the present one


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
        scheduler: CommitScheduler,
        record_cold_end: Callable[[int, Offset], None],
        begin_log: BeginLog,
        on_sealed: Callable[[Stream], None],
        on_commit: OnCommit = ignore_commit,
    ) -> None:
        """Take over an open log; :meth:`take_view` says what to do with it."""
        self.stream = stream
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(number))
        self.subject = stream.config.partition_subject(number)
        self.counters = PartitionCounters()
        self._tier = TierView(self.partition_id, stream.config, cold_end, record_cold_end)
        self._me = identity.me
        self._alone = False
        self._log = log
        self._clock = clock
        self._links = links
        self._begin_log = begin_log
        self._on_sealed = on_sealed
        self._on_commit = on_commit
        config = stream.config
        self._retries = RetryTables(config)
        self.failure: HeadwaterError | None = None
        self._acks: AckQueue[Answer] = AckQueue()
        self._queue = TurnQueue(self, scheduler, str(self.partition_id))
        self._closed = threading.Event()
        self._maintenance_queued = self._tick_queued = False  # a busy queue is never empty
        self._postponed = Postponed()
        self._quiet_ms = identity.quiet_ms
        self._ticked_ms = self._due_ms = 0
        # What was freed or is in the table was committed; the rest is for the leader to say.
        committed = min(max(cold_end, log.log_start), log.log_end)
        self._shell: ReplicaShell | None = None
        if log.recovery.damaged:
            self.failure = log.recovery.damaged[0]
        else:
            self._shell = ReplicaShell(
                owner=self,
                name=self._path,
                log=log,
                config=config,
                identity=identity,
                links=links,
                clock=clock,
                known_high_watermark=committed,
            )
            try:
                self._retries.follow_log(log)
            except CorruptDataError as error:  # below what opening the log looks at
                self.failure, self._shell = error, None
        self._watch_segments()

    # ------------------------------------------------------------------ what readers ask

    @property
    def log_start(self) -> Offset:
        """First offset still on local disk."""
        return self._log.log_start

    @property
    def high_watermark(self) -> Offset:
        """First offset not known here to be committed; of a failed log alone, its end: readers
        shall meet the error.
        """  # noqa: D205 - one thought
        if self._shell is None or (self._alone and self.failure is not None):
            return self._log.synced_end
        return self._shell.high_watermark

    @property
    def log_end(self) -> Offset:
        """First offset not written."""
        return self._log.log_end

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest epoch that is known here."""
        view = self.view
        return self._log.epochs.latest if view is None else view.leader_epoch

    @property
    def view(self) -> PartitionView | None:
        """The metadata's word on the partition."""
        return None if self._shell is None else self._shell.view

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition, as far as it knows.

        A broker alone also stands for a partition that has failed: nobody else could say why.
        """
        if self.failure is not None:
            return self._alone
        return self._shell is not None and self._shell.role == "leader"

    @property
    def leader(self) -> PartitionLeader | None:
        """The leading machine, to be looked at, while this replica leads."""
        return None if self._shell is None else self._shell.leader

    @property
    def is_damaged(self) -> bool:
        """Whether the log was found damaged when it was opened."""
        return self._shell is None

    @property
    def newest_committed(self) -> Offset | None:
        """The high watermark of a leader that is sure of it, else None (KIP-207)."""
        leader = self.leader
        if leader is None or leader.is_fenced(self._clock.monotonic_ms()):
            return None
        return leader.newest_committed

    @property
    def synced_position(self) -> tuple[LeaderEpoch, Offset]:
        """How far this log reaches, for an election: its last record's epoch, its synced end."""
        end = self._log.synced_end
        epochs = self._log.epochs
        return (epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)), end

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """See ``PartitionReader.read``. Rot that it finds takes this replica out of the ISR."""
        try:
            return self._log.read(start, end, bytes_max=bytes_max)
        except CorruptDataError as error:
            found = error
            self._queue.post(lambda: self.fail(found))
            raise

    def offset_at(self, timestamp_us: int) -> Offset:
        """See ``PartitionReader.offset_at``."""
        return self._log.offset_at(timestamp_us)

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """See ``PartitionReader.wait_committed``; also returns when the partition closes."""
        if self.failure is not None and not self._alone:
            raise self.failure  # others have copies: the reader is to ask one of them
        if self._shell is None:
            self._closed.wait(timeout_ms / 1000)  # nothing more will be committed here
            return self._log.synced_end
        return self._shell.wait_committed(above, timeout_ms)

    # ------------------------------------------------------------------ what writers ask

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
        prepared = self._encode(batch)
        self._enqueue(RecordsWrite(batch, prepared, message_ids, done, prepared.size, policy))

    def _encode(self, batch: pa.RecordBatch) -> PreparedBatch:
        return prepare(batch, now_us=self._clock.now_us(), codec=self.stream.config.compression)

    def _enqueue(self, write: Write, *, may_block: bool = False) -> None:
        if write.size_bytes > self.stream.config.segment_bytes_max:
            raise RecordTooLargeError(
                f"a batch of {write.size_bytes} bytes does not fit a segment of "
                f"{self.stream.config.segment_bytes_max}",
                size_bytes=write.size_bytes,
                limit_bytes=self.stream.config.segment_bytes_max,
            )
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
            raise ShuttingDownError(f"{self._path} is closing")
        if not self.leads:
            raise not_leader(self._path, self.view)
        overload = self._tier.overload()
        if overload is not None:
            self.counters.refused_writes += 1
            raise overload

    @property
    def _path(self) -> str:
        return f"{self.stream.name}/{self.partition_id.number}"

    # ------------------------------------------------------------------ what the cluster says

    def take_view(self, view: PartitionView | None) -> OwnerCall:
        """Begin to take a view of the metadata in; end it with :meth:`view_taken`."""
        return self._queue.begin(lambda: self._take_view(view))

    def view_taken(self, call: OwnerCall) -> None:
        """Wait until a view is taken in. Blocks."""
        self._queue.result_of(call)

    def _take_view(self, view: PartitionView | None) -> None:
        self._alone = view is not None and view.replicas == (self._me,)
        if self._shell is not None and self.failure is None:
            self._shell.view_changed(view)
            self._settle()

    def deliver(self, message: ReplicaMessage) -> None:
        """Take a message of another replica. Any thread; does not block."""
        self._queue.post(lambda: self._message(message))

    def _message(self, message: ReplicaMessage) -> None:
        if self._shell is not None and self.failure is None:
            self._shell.message(message)
            self._settle()

    def tick_replica(self) -> None:
        """Let time pass, if the replica has something to do. Any thread; does not block."""
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

    # ------------------------------------------------------------------ what tiering asks

    @property
    def cold_end(self) -> Offset:
        """See ``TierSource.cold_end``."""
        return self._tier.cold_end

    @property
    def unshipped_bytes(self) -> int:
        """Bytes on local disk that are not in the table."""
        return self._tier.unshipped_bytes

    def segments(self) -> list[SegmentInfo]:
        """See ``TierSource.segments``."""
        return self._log.segments()

    def seal_active(self) -> None:
        """See ``TierSource.seal_active``. Blocks until done."""
        self._queue.call(lambda: self._log.seal_active(self._clock.now_us()))

    def record_cold_end(self, cold_end: Offset) -> None:
        """See ``TierSource.record_cold_end``. Blocks until the metadata log has it."""
        self._tier.record(cold_end)
        self._watch_segments()

    def learn_cold_end(self, cold_end: Offset) -> None:
        """Take over what the metadata says is in the table. Only ever forward."""
        if self._tier.learn(cold_end):
            self._watch_segments()

    def refuse_if_replaced(self) -> None:
        """Take no writes if the log ends below what is in its table: nobody else could have it."""
        if self.failure is None:
            self.failure = self._tier.replacement(self._log.log_end)

    def free_local(self, lease_floor: Callable[[], Offset]) -> int:
        """Free what retention gives up and no lease or retry needs; return how many segments."""
        if self._queue.closing or self.failure is not None:
            return 0
        now_us = self._clock.now_us()
        plan = self._tier.plan_frees(self._log.segments, lease_floor, now_us)
        if not plan:
            return 0
        freed_count: int = self._queue.call(lambda: self._free(plan))
        return freed_count

    def _free(self, plan: Sequence[SegmentInfo]) -> int:
        """Free the part of a plan that no message id in the window lies in.

        The window is rebuilt from the local log: an id whose segment is gone would be forgotten by
        a restart, and a retry of its record stored again.
        """
        bases = self._retries.free_of_ids(plan, self._clock.now_us(), leads=self.leads)
        if bases:
            self._log.free(bases)
            self.counters.freed_segments += len(bases)
            self._watch_segments()
        return len(bases)

    # ------------------------------------------------------------------ the owner's turns

    def tick(self) -> None:
        """Give time a chance: roll by age, sync by interval, expire message ids. Any thread."""
        if self.failure is None and not self._queue.closing and not self._maintenance_queued:
            self._maintenance_queued = True
            self._queue.post(self._maintain)

    def close(self) -> None:
        """Refuse new writes, finish those queued, close the log. Blocks."""
        self._queue.close()
        self._closed.set()
        if self._shell is not None:
            self._shell.wake_readers(closing=True)
        self._queue.call(self._close_log)

    def run_turn(self) -> None:
        """Take one turn; called by the scheduler, on one thread at a time."""
        work = self._queue.take()
        try:
            for call in work.calls:
                self._run_call(call)
            if work.writes:
                self._commit(work.writes)
        finally:
            self._due_ms = self._next_due_ms()
            self._queue.end_turn()

    def _next_due_ms(self) -> int:
        if len(self._acks):
            return 0  # a lease, renewed, may be all that they wait for
        shell_ms = None if self._shell is None else self._shell.due_ms
        regular_ms = self._ticked_ms + self._quiet_ms
        return min(one for one in (regular_ms, shell_ms, self._postponed.due_ms) if one is not None)

    def _commit(self, writes: Sequence[Write]) -> None:
        shell = self._shell
        if shell is not None:
            shell.refresh_lease()
        taken = [write for write in writes if not self._refuses(write)]
        leader = None if shell is None else shell.leader
        if shell is None or leader is None or not taken:
            return
        now_us = self._clock.now_us()
        group = CommitGroup(
            producers=self._retries.producers,
            window=self._retries.window,
            start=self._log.log_end,
            leader_epoch=leader.leader_epoch,
            now_us=now_us,
            encode=self._encode,
        )
        for write in taken:
            group.add(write)
        started_s = time.perf_counter()
        failure = self._write(shell, group, now_us) if group.batches else None
        self.counters.duplicate_records += group.duplicates_count
        if failure is not None:
            self.counters.refused_writes += len(taken)
        for answer in group.answers():
            if failure is not None or answer.write.policy is AckPolicy.NONE:
                answer.tell(failure)
            else:
                self._acks.add(answer.write.policy, answer.end, answer)
        self._settle()
        if group.batches and failure is None:
            self._on_commit(time.perf_counter() - started_s, group.end - group.start)
            self._watch_segments_if_rolled()

    def _refuses(self, write: Write) -> bool:
        """Answer a write that cannot be taken now; nothing of it is stored."""
        leader = None if self._shell is None else self._shell.leader
        refusal: HeadwaterError | None
        if self.failure is not None:
            refusal = self.failure
        elif leader is None:
            refusal = not_leader(self._path, self.view)
        else:
            refusal = leader.refusal(write.policy, self._clock.monotonic_ms())
        if refusal is not None:
            self.counters.refused_writes += 1
            write.refuse(refusal)
        return refusal is not None

    def _write(self, shell: ReplicaShell, group: CommitGroup, now_us: int) -> HeadwaterError | None:
        try:
            self._log.append(group.batches, leader_epoch=group.leader_epoch, now_us=now_us)
            assert self._log.log_end == group.end, "the log placed a batch where it was not planned"
            shell.appended()
            if self.stream.config.flush == "always":
                shell.sync()
            else:
                shell.written()
        except HeadwaterError as error:
            group.roll_back()
            if isinstance(error, LogFailedError | CorruptDataError):
                self.fail(error)
            return error
        size = sum(batch.size for batch in group.batches)
        self.counters.appended_records += group.end - group.start
        self.counters.appended_bytes += size
        self._tier.unshipped_bytes += size
        self.counters.syncs = shell.sync_count
        return None

    def _settle(self) -> None:
        """Answer whom the leader lets answer; its lease is looked at right before."""
        leader = None if self._shell is None else self._shell.leader
        if leader is None or not len(self._acks):
            return
        if leader.is_fenced(self._clock.monotonic_ms()):
            return
        for answer in self._acks.settled(
            synced_end=leader.leader_ack_end, high_watermark=leader.high_watermark
        ):
            answer.tell(None)

    def _maintain(self) -> None:
        self._maintenance_queued = False
        now_us = self._clock.now_us()
        self._retries.window.expire(now_us)
        shell = self._shell
        if shell is None or self.failure is not None:
            return
        waited_ms = self._clock.monotonic_ms() - shell.synced_ms
        interval_ms = self.stream.config.flush_interval_ms
        if self._log.synced_end < self._log.log_end and waited_ms >= interval_ms:
            shell.sync()
            self.counters.syncs = shell.sync_count
        self._log.roll_if_due(now_us)
        self._watch_segments_if_rolled()

    def _close_log(self) -> None:
        for answer in self._acks.abandon():
            answer.abandon(ShuttingDownError(f"{self._path} closed before this was committed"))
        if self.failure is None:
            self._log.write_producer_state(self._retries.producers.to_state())
        self._log.close()

    # ------------------------------------------------------------------ what the shell asks

    def begin_leading(self) -> None:
        """See ``ReplicaOwner``: the retry tables follow the log."""
        self._retries.begin_leading(self._log, self._clock.now_us())

    def end_leading(self) -> None:
        """See ``ReplicaOwner``: whoever waits has to ask the next leader, with the same ids."""
        for answer in self._acks.abandon():
            answer.abandon(
                NotLeaderError(f"the leadership of {self._path} ended before this was committed")
            )

    def copied(self, batches: Sequence[StoredBatch]) -> None:
        """See ``ReplicaOwner``: producers are remembered on every replica."""
        self._tier.unshipped_bytes += self._retries.copied(batches)

    def shrunk(self) -> None:
        """See ``ReplicaOwner``."""
        self._retries.follow_log(self._log)
        self._watch_segments()

    def fail(self, error: HeadwaterError) -> None:
        """See ``ReplicaOwner``: take no more writes, leave the ISR, tell readers to look again."""
        if self.failure is not None:
            return
        self.failure = error
        _log.error("partition_failed", partition=self._path, reason=error.message)
        if isinstance(error, CorruptDataError):
            with suppress(
                HeadwaterError
            ):  # a disk that refuses this as well is failed all the same
                self._log.mark_suspect()  # the next start finds it, and fetches the log anew
        self._links.withdraw(error)
        if self._shell is not None:
            self._shell.wake_readers(closing=False)
        for answer in self._acks.abandon():
            answer.abandon(error)

    def producers_before(self, start: Offset) -> bytes:
        """See ``ReplicaOwner``."""
        return self._retries.before(start)

    def replace_log(self, start: Offset, prefix: LogPrefix) -> PartitionLog:
        """See ``ReplicaOwner``: readers of the old log find it closed, and look again."""
        self._log.close()
        self._log = self._begin_log(start, EpochHistory.of(prefix.epochs))
        self._retries.begin_at(self._log, prefix.producers)
        self._watch_segments()
        return self._log

    def later(self, delay_ms: int, function: Callable[[], None]) -> None:
        """See ``ReplicaOwner``."""
        if delay_ms == 0:
            self._queue.post(function)
        else:
            self._postponed.add(self._clock.monotonic_ms() + delay_ms, function)

    # ------------------------------------------------------------------ helpers

    def _run_call(self, call: OwnerCall) -> None:
        try:
            call.result = call.function()
        except HeadwaterError as error:
            call.error = error
            if isinstance(error, LogFailedError | CorruptDataError):
                self.fail(error)
            elif call.finished is None:
                _log.warning("turn_refused", partition=self._path, reason=error.message)
        finally:
            if call.finished is not None:
                call.finished.set()
        self._watch_segments_if_rolled()

    def _watch_segments_if_rolled(self) -> None:
        if self._tier.rolled(self._log.sealed_count):
            self._watch_segments()
            if self.failure is None:
                try:
                    self._log.write_producer_state(self._retries.producers.to_state())
                except LogFailedError as error:  # what was answered is durable; no more is taken
                    self.fail(error)
            self._on_sealed(self.stream)

    def _watch_segments(self) -> None:
        self._tier.watch(self._log.segments())
