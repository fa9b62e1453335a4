"""What the broker needs of the world, and what its rooms need of each other, in our own words.

No type of an outside library crosses these lines except Arrow's batches and buffers. Every port
has a contract suite in tests/contract that each implementation passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from broker.codec.record_batch import BatchHeader, PreparedBatch
from broker.errors import HeadwaterError
from broker.model.cut import Cut, Lease
from broker.model.cut_positions import CutPosition
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, LeaseId, PartitionId, StreamUuid
from broker.model.lineage import Lineage
from broker.model.offsets import Offset, OffsetRange
from broker.model.records import AckPolicy, AppendResult
from broker.model.stream import Stream, StreamConfig

# ---------------------------------------------------------------------------- time and files


class Clock(Protocol):
    """Wall time is data; monotonic time is for waiting. Nothing else reads a clock."""

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back."""


class File(Protocol):
    """One open file. Raises OSError as the operating system does; short writes are completed."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``position``; fewer only at the end of the file."""

    def write_at(self, position: int, buffers: Sequence[Any], *, read_soon: bool = True) -> int:
        """Write the buffers one after another; return the bytes written. Not yet durable.

        What nobody will read soon need not be kept in memory once it is durable: a hint.
        """

    def datasync(self) -> None:
        """Make everything written durable (fdatasync); never use the file after an error."""

    def allocate(self, size: int) -> None:
        """Reserve disk up to ``size`` and extend the file with zeros; ENOSPC here costs nothing."""

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size`` bytes."""

    def size(self) -> int:
        """Return the length in bytes."""

    def close(self) -> None:
        """Close; does not sync."""


class Files(Protocol):
    """A file system below one root. Paths are relative, with ``/``."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` makes a new file and fails if it exists."""

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when the folder is absent."""

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably."""

    def replace(self, source: str, target: str) -> None:
        """Rename over ``target``; durable only after :meth:`sync_folder`."""

    def remove(self, path: str) -> None:
        """Remove a file; durable only after :meth:`sync_folder`."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and all in it."""

    def sync_folder(self, folder: str) -> None:
        """Make names created, renamed or removed in ``folder`` durable."""

    def free_bytes(self) -> int:
        """Return the bytes that may still be written."""


# ---------------------------------------------------------------------------- metadata


class MetadataLog(Protocol):
    """The replicated log of metadata commands (one node here, Raft in a cluster)."""

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """Commit one command durably, apply it, return its reply. Blocks.

        Raises:
            CommitTimeoutError: whether it was, or will be, applied is not known.
            HeadwaterError: what the state machine rejected, typed; or why nothing was tried.
        """

    def barrier(self, *, timeout_ms: int) -> int:
        """Return an applied index once everything committed before this call is applied. Blocks.

        Raises:
            UnavailableError: nobody could confirm that in time.
        """

    def subscribe(self, subscriber: Callable[[int, Any], None]) -> None:
        """Call ``subscriber(index, state)`` now and after every change, in order.

        Several changes may be reported as one. Runs where commands are applied: be quick, do not
        raise, propose nothing.
        """


# ---------------------------------------------------------------------------- the local log


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


# ---------------------------------------------------------------------------- tiering


class TierSource(PartitionReader, Protocol):
    """What tiering may see of, and ask from, a partition this broker leads. Any thread."""

    @property
    def subject(self) -> str:
        """The partition's NATS subject, stored for rows without one of their own."""

    @property
    def cold_end(self) -> Offset:
        """First offset that the metadata does not know to be in the table."""

    @property
    def lineage(self) -> Lineage:
        """Whose history the log is: starts of leadership, this broker's own one last."""

    def segments(self) -> list[SegmentInfo]:
        """Return all local segments, oldest first; the last is the active one."""

    def seal_active(self) -> None:
        """Seal the active segment if it holds records, so that it can be shipped now."""

    def record_cold_end(self, cold_end: Offset) -> None:
        """Record in metadata that ``[.., cold_end)`` is in the table, read back and in the ledger.

        Local segments below it may be freed from now on, where no lease holds them.
        """

    def admit(self, lineage_id: str) -> None:
        """Hear that this leadership stands: it is claimed in the lake, as far as anybody knows.

        Does not block.
        """

    def refuse_writes(self, lineage_id: str, error: HeadwaterError) -> None:
        """Hear that this leadership is lost: it takes no more writes. Does not block."""


class TierCatalog(Protocol):
    """Which streams this broker tiers, and their partitions. Any thread."""

    def streams(self) -> list[Stream]:
        """Return the streams whose tiering is on."""

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of ``stream`` that this broker leads, by number."""

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return lineage and recorded cold end of any partition, as far as they are known here.

        ``refreshed``: as of now. Blocks then; raises UnavailableError when nobody can say.
        """

    def on_leading(self, callback: Callable[[Stream, TierSource], bool]) -> None:
        """Register a callback for "a leadership begins, or has slept" (any thread, quick).

        It returns whether the source will be told ``admit`` or ``refuse_writes``.
        """

    def on_sealed(self, callback: Callable[[Stream], None]) -> None:
        """Register a callback for "a segment of this stream was sealed" (any thread, quick)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A stream's table at one version."""

    table_uri: str
    version: int | None  # None: no table yet
    ranges: Mapping[int, OffsetRange]  # partition -> [remote start, cold end)
    files_count: int
    files_bytes: int
    digest: str | None = None  # hex SHA-256 of the commit that made the version


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """How far tiering is, for one partition."""

    partition: int
    cold: OffsetRange
    local_start: Offset
    high_watermark: Offset
    unshipped_bytes: int
    last_error: str | None
    last_shipped_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that has not ended, as others see it."""

    lease_id: LeaseId
    owner: str
    taken_us: int  # no object that was in the table then, or came later, may be deleted
    expires_us: int


class RemoteLog(Protocol):
    """The cold tier as the broker sees it. Blocking; any thread."""

    def table_state(self, stream: Stream) -> TableState:
        """Load the newest table version.

        Raises:
            TableMismatchError, TableRolledBackError, RemoteTierUnavailableError.
        """

    def read(
        self, stream: Stream, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``[start, end)`` in offset order, from the newest table version.

        Raises:
            GapError, OverlapError, ObjectMissingError, ObjectCorruptError, TableMismatchError,
            RemoteTierUnavailableError.
        """

    def flush(self, stream: Stream, *, timeout_ms: int) -> list[TierStatus]:
        """Ship every committed record now; return when it is in the table."""

    def status(self, stream: Stream) -> list[TierStatus]:
        """Return how far each partition is."""

    def table_name_for(self, name: str, uuid: str, namespace: str) -> str:
        """Choose the table folder of a new stream: its name, or ``<name>-<uuid8>`` if taken."""


# ---------------------------------------------------------------------------- the broker's face


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """Where one broker of the cluster is."""

    broker: BrokerId
    flight: str | None  # its Flight address, if it told one
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where one partition is, as far as this broker knows."""

    partition: int
    leader: BrokerId | None  # None: nobody leads now
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """What a partition's leader says of it."""

    log_start: Offset
    high_watermark: Offset
    leader_epoch: LeaderEpoch


class BrokerApi(Protocol):
    """What network services may ask of the broker. Blocking; any thread."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""

    def create_stream(self, name: str, config: StreamConfig) -> Stream:
        """Create a stream durably and start it; the same name and configuration again is fine."""

    def delete_stream(self, name: str) -> Stream:
        """Delete a stream's local log and metadata. Its table stays in the lake."""

    def stream(self, name: str) -> Stream:
        """Return a stream.

        Raises:
            UnknownStreamError: there is none; a majority of the controllers was asked. Has names.
            UnavailableError: it is not known here, and nobody could say whether that is the newest.
        """

    def streams(self) -> list[Stream]:
        """Return all streams by name."""

    def partition(self, name: str, partition: int) -> PartitionHandle:
        """Return the replica that is here; it takes writes only if this broker leads.

        Raises:
            UnknownStreamError, UnknownPartitionError; NotLeaderError: no replica is here.
        """

    def brokers(self) -> list[BrokerPlace]:
        """Return the brokers of the cluster, by name."""

    def places(self, name: str) -> list[PartitionPlace]:
        """Return who leads and who holds each partition of a stream, by number."""

    def standing(self, name: str, partition: int) -> PartitionStanding:
        """Return what is committed now, as the partition's leader knows it, wherever that is.

        Raises:
            UnknownStreamError, UnknownPartitionError; NotLeaderError: nobody can say now.
        """

    def history_position(self, name: str, partition: int) -> CutPosition:
        """Return what is committed now, and under which leadership; errors as for standing."""

    def table_start(self, name: str, partition: int) -> Offset | None:
        """Return the first offset of a partition that is in the table; None: none is."""

    def take_lease(self, name: str, *, owner: str, ttl_ms: int) -> Lease:
        """Hold everything of the stream, in both tiers, from now until the lease ends."""

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Extend a lease; raises UnknownLeaseError once it has expired."""

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease; an unknown one is fine."""

    def live_leases(self, name: str) -> list[HeldLease]:
        """Return the leases on a stream that have not ended, the oldest first."""

    def cut(self, name: str, *, owner: str, ttl_ms: int) -> Cut:
        """Take a cut: lease first, then the table version, then the high watermarks."""

    def check_cut(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool = False,
    ) -> None:
        """Confirm that a cut with these positions, by partition, is of the history that is here.

        A position of a leadership that is too old to be remembered is refused, or believed.

        Raises:
            ForeignHistoryError: other records may be at its offsets now.
            InvalidCutError: it does not name every partition, or not whose history it is of.
            UnknownStreamError, StreamRecreatedError.
        """

    def read_cold(
        self, name: str, partition: int, start: Offset, end: Offset, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows that are no longer on local disk, from the table, in offset order."""

    def tier_status(self, name: str) -> list[TierStatus]:
        """Return how far tiering is."""

    def tier_flush(self, name: str, *, timeout_ms: int) -> list[TierStatus]:
        """Ship every committed record into the table now."""
