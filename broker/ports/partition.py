"""One partition, as readers, publishers and tiering see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.errors import HeadwaterError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch as it lies in the log: parsed header, raw body (checked)."""

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


class PartitionReader(Protocol):
    """What readers (Flight, tiering, verifiers) may ask of a partition's log. Any thread."""

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition."""

    @property
    def log_start(self) -> Offset:
        """First offset still on local disk."""

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

        At least one batch when the range is not empty, then as many as fit ``bytes_max``. The
        first may begin below ``start`` and the last may end above ``end``.

        Raises:
            OffsetOutOfRangeError: ``start`` below the log start or ``end`` above the log end.
            SegmentCorruptError: a batch in the range is damaged.
        """

    def offset_at(self, timestamp_us: int) -> Offset:
        """Return the first offset whose batch reaches ``timestamp_us``, else the log end."""

    def wait_committed(self, above: Offset, timeout_ms: int) -> Offset:
        """Block until the high watermark exceeds ``above`` or time is up; return it."""


@dataclass(frozen=True, slots=True)
class RecordsOutcome:
    """Where each row of a :meth:`PartitionHandle.submit_records` call stands, once durable."""

    offsets: Sequence[Offset]  # one per submitted row; a duplicate's is that of its first time
    duplicates: frozenset[int]  # row indexes that were stored before and not stored again
    leader_epoch: LeaderEpoch


class PartitionHandle(PartitionReader, Protocol):
    """A partition's replica on this broker; it takes writes where this broker leads."""

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition, as far as it knows."""

    @property
    def lost_leadership(self) -> HeadwaterError | None:
        """Why nothing here is known to be the whole history: another process leads it."""

    def submit(
        self,
        batches: Sequence[PreparedBatch],
        done: Callable[[Sequence[AppendResult | HeadwaterError]], None],
        *,
        may_block: bool = False,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """Queue batches for one group commit; ``done`` gets one outcome per batch, once durable.

        Durable is what ``policy`` says: ALL committed, LEADER on this broker's disk. Under NONE
        ``done`` is called after the write, for the caller's own accounts: it promises nothing, and
        nobody may be told that a record is stored.

        Returns at once, from any thread; with ``may_block`` an idle partition may commit on the
        caller's thread, which is quicker for a caller that waits for the outcome anyway. ``done``
        runs on the thread that commits: it must be quick and must not raise. Outcomes of batches
        with a known producer id and sequence, or of records with a known message id, are the
        original offsets with ``duplicate`` set.

        Raises:
            OverloadedError: the queue is full; nothing was taken.
            LogFailedError, DiskFullError, ShuttingDownError, NotLeaderError.
        """

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Callable[[RecordsOutcome | HeadwaterError], None],
        *,
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """Queue producer columns for one group commit, each row deduplicated by its message id.

        Rows whose id is within the stream's window, or occurs earlier in the batch, are dropped
        and answered with the first offset. Encoding happens on the caller's thread. ``done``,
        ``policy`` and errors are as for :meth:`submit`.
        """
