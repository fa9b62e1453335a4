"""The publishes of a partition, from the group in which they are written to their answers.

The writes of one turn are one group: it is planned, appended, offered to followers and synced. Only
then the retry tables are updated, so a turn that fails earlier leaves them unchanged. Publishers
that wait for the high watermark wait in the ``AckQueue``. The driver decides whether a write is
accepted.

A full disk may refuse the append: then nothing was written, and the publishers hear so. Or it may
refuse the promise of records that are written and durable: then their publishers wait, the
partition's maintenance makes the promise when there is room, and later writes are refused until it
has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from broker.codec.record_batch import PreparedBatch, prepare
from broker.core.replication.acks import AckQueue
from broker.core.replication.leader import PartitionLeader
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    LogFailedError,
    NoRoomError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.records import AckPolicy
from broker.model.stream import StreamConfig
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.counters import OnCommit
from broker.runtime.partition.groups import Answer, CommitGroup, Write
from broker.runtime.partition.replica_shell import ReplicaShell


class Commits:
    """Writes groups, and keeps the publishers that wait. Owner: the partition's turns."""

    def __init__(
        self, context: PartitionContext, *, on_commit: OnCommit, is_held: Callable[[], bool]
    ) -> None:
        """Start without waiting publishers; while ``is_held`` returns true, none is answered."""
        self._room = context.room
        self._is_held = is_held
        self._config = context.stream.config
        self._counters = context.counters
        self._local = context.local
        self._clock = context.clock
        self._health = context.health  # hears first when the log takes no more writes
        self._on_commit = on_commit
        self._acks: AckQueue[Answer] = AckQueue()

    def __len__(self) -> int:
        """Number of calls that wait for their answer."""
        return len(self._acks)

    def configure(self, config: StreamConfig) -> None:
        """Take changed settings."""
        self._config = config

    def encode(self, batch: pa.RecordBatch) -> PreparedBatch:
        """Return the records as a batch to store."""
        return prepare(batch, now_us=self._clock.now_us(), codec=self._config.compression)

    def write(
        self,
        writes: Sequence[Write],
        shell: ReplicaShell,
        leader_epoch: LeaderEpoch,
    ) -> bool:
        """Write a group and answer those that may be answered; return whether the log grew."""
        started_s = time.perf_counter()
        group = CommitGroup(
            producers=self._local.retries.producers,
            window=self._local.retries.window,
            start=self._local.log.log_end,
            leader_epoch=leader_epoch,
            now_us=self._clock.now_us(),
            encode=self.encode,
            partitions_count=self._config.partitions,
        )
        for write in writes:
            group.add(write)
        failure = self._append(shell, group) if group.batches else None
        self._local.tier.settle(writes)  # before an answer: its publisher may write again at once
        self._counters.duplicate_records += group.duplicates_count
        if failure is not None:
            self._counters.refused_writes += len(writes)
        for answer in group.answers():
            self._answer(answer, failure)
        if self._health.failure is None:
            self.settle(shell.leader)
        else:  # also a group that was written: damage may show when a follower is to get it
            self.abandon(self._health.failure)
        grown = bool(group.batches) and failure is None
        if grown:
            self._on_commit(time.perf_counter() - started_s, group.end - group.start)
        return grown

    def _answer(self, answer: Answer, failure: HeadwaterError | None) -> None:
        """Let an answer wait for what its policy asks for; ``failure``: nothing was written."""
        if isinstance(failure, LogFailedError | CorruptDataError):
            answer.abandon(failure)  # nothing will be committed here any more
            return
        if failure is not None:
            answer = answer.unwritten(failure)
        if answer.write.policy is AckPolicy.NONE or (failure is not None and not answer.end):
            answer.tell()
        else:
            self._acks.add(answer.write.policy, answer.end, answer)

    def _append(self, shell: ReplicaShell, group: CommitGroup) -> HeadwaterError | None:
        """Write a group and sync it; return why it was not written, or None."""
        log = self._local.log
        try:
            batches = self._local.cipher.sealed(group.batches, group.start, group.leader_epoch)
            log.append(batches, leader_epoch=group.leader_epoch, now_us=group.now_us)
            assert log.log_end == group.end, "the log has another end than the plan"
            unpromised = self._sync(shell)
        except HeadwaterError as error:
            if isinstance(error, LogFailedError | CorruptDataError):
                self._health.fail(error)
            elif isinstance(error, NoRoomError):
                self._room.lacks(error, sum(batch.size for batch in group.batches))
            return error
        if unpromised is None:
            self._room.found()
        else:
            self._room.lacks(unpromised)
        group.written()
        size = sum(batch.size for batch in batches)
        self._counters.appended_records += group.end - group.start
        self._counters.appended_bytes += size
        self._counters.received_first_us = self._counters.received_first_us or group.now_us
        self._counters.received_latest_us = group.now_us
        self._local.grown(size)
        self._counters.syncs = shell.sync_count
        return None

    def _sync(self, shell: ReplicaShell) -> NoRoomError | None:
        """Offer the written group to the followers, and sync it as the stream says.

        Returns why the promise of the group has to wait, or None. The group is durable in any case.
        """
        shell.appended()
        if self._config.flush != "always":
            shell.written()
            return None
        try:
            shell.sync()
        except NoRoomError as error:
            return error
        return None

    def settle(self, leader: PartitionLeader | None) -> None:
        """Answer the publishers that the leader allows; its lease is checked immediately before."""
        if leader is None or not len(self._acks):
            return
        if leader.is_fenced(self._clock.monotonic_ms()) or self._is_held():
            return
        for answer in self._acks.settled(
            synced_end=leader.leader_ack_end, high_watermark=leader.high_watermark
        ):
            answer.tell()

    def abandon(self, error: HeadwaterError) -> None:
        """Answer all waiting publishers with ``error``: the outcome of their writes is unknown."""
        for answer in self._acks.abandon():
            answer.abandon(error)
