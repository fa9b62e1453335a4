"""The interfaces of one partition for readers, publishers and tiering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.errors import FencedError, HeadwaterError, ShuttingDownError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.stream import StreamConfig

# The errors of a write that the partition does not take now: perhaps its next leader takes it.
SUBMIT_AGAIN: Final = (FencedError, ShuttingDownError)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch of the log: its parsed header and its raw body, whose checksum was checked."""

    header: BatchHeader
    body: Any  # bytes-like


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of a partition's log."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp_us: int  # 0 when empty
    sealed: bool
    sparse: bool = False  # key compaction wrote it: records may be missing
    created_us: int = 0  # when its first batch was written here; 0 when empty
    removed_count: int | None = 0  # records that key compaction removed; None: not known


class PartitionReader(Protocol):
    """A partition's log, for readers (Flight, tiering, verifiers). Any thread.

    The batches of a range follow one another. A sparse batch, which key compaction wrote, may lack
    records of its range.
    """

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition."""

    @property
    def log_start(self) -> Offset:
        """First offset that can be read from local disk."""

    @property
    def whole_start(self) -> Offset:
        """First offset from which local disk has every record, at or above :attr:`log_start`.

        Key compaction has removed records below it; a tiered stream's table has them all.
        """

    @property
    def purged_end(self) -> Offset:
        """First offset that was not purged; a tiered stream's table has the purged records."""

    @property
    def remote_start(self) -> Offset:
        """First offset that remote retention did not expire, in both tiers; 0: none expired."""

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed."""

    @property
    def log_end(self) -> Offset:
        """First offset not written."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Current leader epoch."""

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return whole batches that overlap ``[start, end)``, in order, CRC-checked.

        If the range is not empty, the result has at least one batch, then as many as fit into
        ``bytes_max``, but only some thousands of small ones. The first batch may begin below
        ``start``, the last may end above ``end``.

        Raises:
            OffsetOutOfRangeError: ``start`` below the log start or ``end`` above the log end.
            PurgedError, ExpiredError: ``start`` below the purged end, or the remote start.
            SegmentCorruptError: a batch in the range is damaged.
        """

    def offset_at(self, timestamp_us: int) -> Offset:
        """Return the base offset of the first batch with a record at or after ``timestamp_us``.

        The log end if there is no such batch.
        """

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """Block until the high watermark exceeds ``above`` or time is up; return the HW.

        Raises:
            ShuttingDownError: the replica is closed, and has no committed record above.
            HeadwaterError: the log has failed, or has lost the records above.
        """


@dataclass(frozen=True, slots=True)
class RecordsOutcome:
    """The offset of each row of a :meth:`PartitionWriter.submit_records` call, when durable."""

    offsets: Sequence[Offset]  # one per submitted row; a duplicate has its original offset
    duplicates: frozenset[int]  # indexes of rows that were stored before and not stored again
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class WriteOrder:
    """Writes of one publisher to one partition, so that a later one never overtakes a refused one.

    A write is refused while the partition takes no writes, for example without a lease, and the
    publisher may submit it again. Then the writes of its order behind it are refused, too, even if
    the partition takes writes again. The partition's owner calls :meth:`refused`.
    """

    refusal: HeadwaterError | None = None  # of the first write that was refused; any thread reads

    def refused(self, error: HeadwaterError) -> None:
        """Note that a write was refused. What is wrong with one write alone changes nothing."""
        if self.refusal is None and isinstance(error, SUBMIT_AGAIN):
            self.refusal = error


class PartitionWriter(Protocol):
    """A partition's log, for publishers; it takes writes where this broker leads. Any thread."""

    @property
    def keeps_order(self) -> bool:
        """Whether writes of one ``WriteOrder`` may be under way at a time.

        If not, it does not look at the order: a publisher submits one and waits for its outcome.
        """

    def submit(
        self,
        batches: Sequence[PreparedBatch],
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],
        *,
        may_block: bool = False,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """Queue batches for one group commit; ``done`` gets one outcome per batch, when durable.

        ``policy`` says what durable means: ALL means committed, LEADER means synced on this
        broker's disk. Under NONE ``done`` is called after the write, for the caller's own
        accounting only: the records may be lost, so no publisher may be told that they are stored.

        Returns at once, on any thread. With ``may_block`` an idle partition may commit on the
        caller's thread, which is quicker for a caller that waits for the outcome anyway. ``done``
        runs on the thread that commits: it must be quick and must not raise. For a batch with a
        known producer id and sequence, or a record with a known message id, the outcome is the
        original offsets with ``duplicate`` set.

        Raises:
            OverloadedError: the queue is full; no batch was queued.
            LogFailedError, DiskFullError, ShuttingDownError, NotLeaderError.
            PartitionPausedError: resume the partition first, see ``PausesApi.wake``.
            PartitionReadonlyError: nothing may be written.
        """

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
        """Queue producer columns for one group commit, each row deduplicated by its message id.

        A row is dropped if its id was stored within the stream's deduplication window, or occurs
        earlier in the batch; its outcome is then the offset of the first one. The batch is encoded
        on the caller's thread. ``done``, ``policy`` and errors are as for :meth:`submit`.

        With ``expected_end`` the rows are stored only if the log ends there when they would be
        written; else ``done`` gets ConditionFailedError, even if a row's id is known. For ``order``
        see :attr:`keeps_order`.
        """


class PartitionHandle(Protocol):
    """A partition's replica on this broker. Any thread."""

    @property
    def config(self) -> StreamConfig:
        """The settings of its stream that this broker applies now."""

    @property
    def reads(self) -> PartitionReader:
        """The log, for readers."""

    @property
    def writes(self) -> PartitionWriter:
        """The log, for publishers."""

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition, according to its own metadata."""

    @property
    def is_paused(self) -> bool:
        """Whether the partition is paused, according to this broker's metadata."""

    @property
    def is_readonly(self) -> bool:
        """Whether the partition is read-only, according to this broker's metadata."""

    @property
    def received_us(self) -> tuple[int, int]:
        """When publishers' records were stored by this process, first and last; 0: never."""

    def followed(self) -> AbstractContextManager[None]:
        """Count one reader that follows the partition, while the context is open."""

    @property
    def lost_leadership(self) -> HeadwaterError | None:
        """The error if another process leads this history: this log may lack records. Else None."""
