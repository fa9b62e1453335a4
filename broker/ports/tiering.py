"""The interfaces between the broker and tiering, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from broker.errors import HeadwaterError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, StreamUuid
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.model.tiering import TableState, TierStatus
from broker.ports.partition import (
    PartitionReader,
    SegmentInfo,
)


class TierSource(Protocol):
    """A partition that this broker leads, for tiering. Any thread."""

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition."""

    @property
    def stream(self) -> Stream:
        """The stream with its newest settings and data keys."""

    @property
    def reads(self) -> PartitionReader:
        """The log's records and offsets."""

    @property
    def subject(self) -> str:
        """The partition's NATS subject; rows without an own subject get it in the table."""

    @property
    def cold_end(self) -> Offset:
        """First offset that is not in the table, according to the metadata."""

    @property
    def lineage(self) -> Lineage:
        """The log's starts of leadership; the last one is this broker's."""

    def segments(self) -> list[SegmentInfo]:
        """Return all local segments, oldest first; the last is the active one."""

    def seal_active(self) -> None:
        """Seal the active segment if it holds records, so that it can be shipped now."""

    def record_cold_end(self, cold_end: Offset) -> None:
        """Record in the metadata that all offsets below ``cold_end`` are in the table.

        They must be read back and in the ledger. From now on local segments below ``cold_end`` may
        be freed, unless a lease holds them.
        """

    def learn_expired(self, remote_start: Offset) -> None:
        """Hide all records below ``remote_start``, which the metadata has. Does not block."""

    def admit(self, lineage_id: str) -> None:
        """Let this leadership take writes: its claim in the lake is settled, or timed out.

        Does not block.
        """

    def refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        """Refuse all writes of this leadership: another process has the claim. Does not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStanding:
    """The retention of one partition, read from one state of the metadata."""

    config: StreamConfig
    cold_end: Offset
    remote_start: Offset  # no reader gets a record below it, even if the table still has it
    limit: Offset  # records may expire below it: in the table, and held by no reader


class RemoteStarts(Protocol):
    """The remote starts in the metadata, for tiering. Any thread; blocks while it proposes."""

    def is_there(self, partition: PartitionId) -> bool:
        """Tell whether this broker's metadata has the partition, of a stream that is there."""

    def standing(self, partition: PartitionId) -> RetentionStanding | None:
        """Return what this broker's metadata says; None if the stream is gone. Quick."""

    def oldest_lease_us(self, partition: PartitionId) -> int | None:
        """Return when the oldest live lease on the stream was taken, by the newest metadata.

        None: there is no lease. 0: it is not known. Blocks; raises UnavailableError if no majority
        of the controllers confirms that the metadata is the newest.
        """

    def expire(
        self, partition: PartitionId, before: Offset, leader_epoch: LeaderEpoch, *, is_done: bool
    ) -> Offset:
        """Raise the remote start in the metadata; return the one that it has then.

        ``is_done`` says that the table begins there already.

        Raises:
            HeldByLeaseError, HeldByPositionError: a reader holds the records; nothing happened.
            FencedError: another leadership has begun.
            UnavailableError, FeatureLevelError.
        """


class TierCatalog(Protocol):
    """The streams that this broker ships to tables, and their partitions. Any thread."""

    def streams(self) -> list[Stream]:
        """Return the streams whose tiering is on."""

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of ``stream`` that this broker leads, by number."""

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return lineage and recorded cold end of any partition, from this broker's metadata.

        With ``refreshed`` this waits until that metadata is the newest. It then blocks, and raises
        UnavailableError if no majority of the controllers confirms it.
        """

    def cold_ends(self, stream: StreamUuid) -> Mapping[int, Offset]:
        """Return the recorded cold end of every partition of a stream, whoever leads it. Quick.

        From this broker's metadata, which may be behind. Empty if the stream is gone.
        """

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return a partition of a stream whose tiering is on, if this broker has it. Quick."""

    @property
    def remote_starts(self) -> RemoteStarts:
        """The remote starts of the partitions that this broker leads."""

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Register a callback for leaderships of this broker that have begun or were suspended.

        The callback gets the starts of leadership; the last one is this broker's. It runs on any
        thread and must be quick. It returns whether ``admit`` or ``refuse_writes`` of the
        partition's source will be called.
        """

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Register a callback: a segment of this partition was sealed. Any thread; quick."""


@dataclass(frozen=True, slots=True)
class ColdRows:
    """Rows of a table, in offset order. Below ``whole_start`` key compaction has removed some."""

    rows: Iterator[pa.RecordBatch]
    whole_start: Offset = Offset(0)  # noqa: RUF009 - a plain number


class RemoteLog(Protocol):
    """The cold tier, for the broker. Blocking; any thread."""

    def table_state(self, stream: Stream) -> TableState:
        """Load the newest table version.

        Raises:
            TableMismatchError, TableRolledBackError, RemoteTierUnavailableError.
        """

    def read(
        self, stream: Stream, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> ColdRows:
        """Return the rows of ``[start, end)`` in offset order, from the newest table version.

        Raises, also while the rows are taken:
            GapError, OverlapError, ObjectMissingError, ObjectCorruptError, TableMismatchError,
            RemoteTierUnavailableError.
        """

    def offset_at(
        self, stream: Stream, partition: int, start: Offset, end: Offset, timestamp_us: int
    ) -> Offset | None:
        """Return the first offset of ``[start, end)`` with a timestamp at or after a time, or None.

        Objects whose statistics end before the time are not read. Raises as :meth:`read`.
        """

    def flush(
        self, stream: Stream, *, timeout_ms: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[TierStatus]:
        """Ship every committed record now; return when all are in the table.

        Raises RemoteTierUnavailableError when ``is_wanted`` returns False: its caller has gone.
        """

    def status(self, stream: Stream) -> list[TierStatus]:
        """Return how far each partition is shipped."""

    def table_name_for(self, name: str, uuid: str, namespace: str) -> str:
        """Reserve the table folder of a new stream: its name, or ``<name>-<uuid8>`` if taken.

        A folder that holds any object counts as taken, even if it holds a ledger and no table. The
        same stream may ask again.

        Raises:
            TableMismatchError: both folders are of other streams.
            RemoteTierUnavailableError: the lake does not answer.
        """

    def is_shipping(self, stream_uuid: StreamUuid) -> bool:
        """Tell whether this broker may be writing to a stream's table now, deleted or not. Quick.

        A call of a store that missed its deadline is not counted.
        """
