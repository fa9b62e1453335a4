"""The table of a stream: the values of a version, and the port that reads and commits the table.

A version is a value: its files with their offset ranges, and per partition the range
``[start, cold end)`` that its transactions state. The cold end moves only by compare-and-set, in
the same commit as the files. delta_table.py implements the port with delta-rs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, Protocol

from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from tiering.store.object_store import ObjectStore
from tiering.store.table_keys import is_encrypted

if TYPE_CHECKING:
    from tiering.table.expiries import ExpiryEntry
    from tiering.table.key_compactions import KeyCompactionEntry

FORMAT_VERSION: Final = 1
FILES_PREFIX: Final = "partition="  # of the data files
LEDGER_PREFIX: Final = "_headwater/ledger"  # Delta and VACUUM ignore names with an underscore
EXPIRED_PREFIX: Final = "_headwater/expired"
COMPACTED_PREFIX: Final = "_headwater/compacted"
PROOF_PREFIX: Final = "_headwater/proof"
PROPERTY_PREFIX: Final = "headwater."
COMMIT_ID: Final = "headwater.commit_id"  # in commitInfo; only our own commits have it
RANGES: Final = "headwater.ranges"  # the ledger entries of the ranges that a commit ships
FILES: Final = "headwater.files"  # the files that a commit adds in place of others
EXPIRED: Final = "headwater.expired"  # the account of a commit by which files expired
COMPACTED: Final = "headwater.compacted"  # the account of a key compaction
ETAGS: Final = "headwater.etags"  # the store's ETags of the added objects
MADE_OF: Final = "headwater.made_of"  # the history that a key snapshot's commit was built from
STREAM_PROPERTY: Final = "headwater.stream_json"  # the stream as it was at the table's creation
ENCRYPTION_PROPERTY: Final = "headwater.table_encryption"  # absent: the table has plaintext
KIND_PROPERTY: Final = "headwater.kind"  # absent: a stream's history
CLUSTER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

TableKind = Literal["history", "latest"]  # every record, or the newest of each key

_TABLE_NAME_UUID_LENGTH: Final = 8
_TIME_MIN_US: Final = -(2**63)
_TIME_MAX_US: Final = 2**63 - 1
_STATED_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z; later times have no text

EMPTY: Final = OffsetRange(Offset(0), Offset(0))


def first_of_ms(stated_us: int | None) -> int | None:
    """Return the least time that a file may have whose statistics state a least time."""
    return None if stated_us is None else max(stated_us // 1000 * 1000, _TIME_MIN_US)


def last_of_ms(stated_us: int | None) -> int | None:
    """Return the greatest time that a file may have whose statistics state a greatest time.

    Delta keeps milliseconds. We round a greatest time up, other engines round it down.
    """
    return None if stated_us is None else min(stated_us // 1000 * 1000 + 999, _TIME_MAX_US)


def stated_last_ms(last_us: int) -> int:
    """Return the milliseconds that our statistics state for a greatest time: rounded up.

    In the last millisecond of the year 9999 they are rounded down, as other engines do everywhere.
    """
    return min(-(-last_us // 1000), _STATED_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a table version. Offsets are None if the file has no statistics."""

    path: str  # relative to the table
    size_bytes: int
    partition: int
    records_count: int | None
    min_offset: Offset | None
    max_offset: Offset | None  # inclusive, as Parquet and Delta keep it
    max_timestamp_us: int | None = None  # no row is later; None: unknown
    min_timestamp_us: int | None = None  # no row is earlier; None: unknown

    @property
    def end_offset(self) -> Offset | None:
        """First offset above all rows of the file."""
        return None if self.max_offset is None else Offset(self.max_offset + 1)

    def may_have(self, wanted: OffsetRange) -> bool:
        """Tell whether the statistics allow a row of the range; without them, any row."""
        if self.min_offset is None or self.max_offset is None:
            return True
        return self.min_offset < wanted.end and self.max_offset >= wanted.start


@dataclass(frozen=True, slots=True)
class SparsePrefix:
    """What key compaction has left of a partition: of ``[start, end)``, ``records_count`` rows.

    From ``end`` on the version has a row for each offset. ``start`` is that of the partition.
    """

    end: Offset
    records_count: int

    def after_expiry(self, gone: OffsetRange, rows_count: int) -> SparsePrefix:
        """Return what is left when files with ``rows_count`` rows, all of ``gone``, have left."""
        dense = max(0, gone.end - max(self.end, gone.start))
        return SparsePrefix(self.end, self.records_count - (rows_count - dense))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A stream's table at one version. Immutable; safe to send to another process.

    ``ranges`` and ``sparse`` are what the transactions of this version state; ``files`` is what the
    version lists. read/certify.py proves that they agree.
    """

    uri: str
    version: int
    stream_uuid: StreamUuid
    cluster: str
    properties: Mapping[str, str]
    files: tuple[DataFile, ...]
    ranges: Mapping[int, OffsetRange]  # the stream's partitions as far as the table knows of them
    table_id: str = ""  # a random id from the table's creation
    sparse: Mapping[int, SparsePrefix] = field(default_factory=dict)  # see whole_start

    @property
    def files_bytes(self) -> int:
        """Bytes of all data files."""
        return sum(map(attrgetter("size_bytes"), self.files))

    def range_of(self, partition: int) -> OffsetRange:
        """Return the offsets of a partition in this version.

        A partition that was added to the stream is not known to the table before its first commit.
        """
        return self.ranges.get(partition, EMPTY)

    @property
    def is_encrypted(self) -> bool:
        """Whether columns of its files are ciphertext, see store/table_keys.py."""
        return ENCRYPTION_PROPERTY in self.properties

    def cold_end(self, partition: int) -> Offset:
        """Return the first offset of a partition that is not in this version."""
        return self.range_of(partition).end

    def whole_start(self, partition: int) -> Offset:
        """Return the first offset of a partition from which this version has each record.

        Below it key compaction has removed records; it is the partition's start if none went.
        """
        start, sparse = self.range_of(partition).start, self.sparse.get(partition)
        return start if sparse is None else max(start, sparse.end)

    def sparse_range(self, partition: int) -> OffsetRange:
        """Return the offsets of a partition of which records are missing; perhaps none."""
        return OffsetRange(self.range_of(partition).start, self.whole_start(partition))

    def left_count(self, partition: int) -> int:
        """Return the number of rows in a partition's sparse range."""
        return self.sparse[partition].records_count if self.sparse_range(partition) else 0

    def gone_count(self, partition: int) -> int:
        """Return how many records of a partition's sparse range are missing."""
        return len(self.sparse_range(partition)) - self.left_count(partition)

    def records_count(self, partition: int) -> int:
        """Return the number of a partition's rows."""
        return self.left_count(partition) + self.cold_end(partition) - self.whole_start(partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to commit: already in the store, at ``path`` below the table."""

    path: str
    size_bytes: int
    partition: int
    modified_us: int
    stats_json: str
    crc32c: int | None = None  # of the file's bytes; None: not known to the caller
    digest: str = ""  # of the file's rows, in the file's order
    etag: str | None = None  # the store's answer to its PUT; None: not known to the caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The account of one commit of ours, as the table's log has it."""

    version: int
    commit_id: str
    ranges_json: str  # the ledger entries that belong to it, see ledger.py
    expired_json: str = ""  # the expiry that it carried out, see expiries.py
    compacted_json: str = ""  # the key compaction that it is, see key_compactions.py


class Table(Protocol):
    """One stream's table. Blocking; any thread.

    Every method may raise RemoteTierUnavailableError, TableMismatchError (the table belongs to
    another stream, or uses features that change the meaning of its files) and ObjectMissingError (a
    part of the table's log is gone).
    """

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder."""

    def find(self, *, cold_end_min: Mapping[int, int] | None = None) -> TableSnapshot | None:
        """Load the newest version; None if the folder has no table.

        ``cold_end_min`` has, per partition, a cold end that the caller knows to be committed.

        Raises:
            TableRolledBackError: the table is missing or older than ``cold_end_min`` proves.
        """

    def cold_ends(self) -> Mapping[int, Offset]:
        """Return the end of each partition in the newest version; 0 if there is no table.

        Cheaper than :meth:`find`; nothing is proved or refused. The table is read after the call
        began, so the answer is not older than the call.
        """

    def snapshot(self, version: int | None = None) -> TableSnapshot:
        """Load one version, or the newest; raises ObjectMissingError if it does not exist."""

    def create(self) -> TableSnapshot:
        """Create an empty table unless this stream's table exists; return its newest version."""

    def commit(
        self,
        expected: TableSnapshot,
        files: Sequence[NewFile],
        moves: Mapping[int, OffsetRange],
        *,
        commit_id: str,
        ranges_json: str,
        lineage_json: str = "{}",
    ) -> int:
        """Add files and move cold ends from ``moves[p].start`` to ``moves[p].end``, atomically.

        Commits only if each of these cold ends is exactly the start, in ``expected`` and in every
        later version up to the commit. ``lineage_json`` has the lineage id of each range. Returns
        the version, which is durable then.

        Raises:
            StaleColdEndError: a cold end differs; nothing was committed.
            RemoteTierUnavailableError: the outcome is unknown; look for ``commit_id``.
        """

    def replace_files(
        self,
        expected: TableSnapshot,
        *,
        removed: Sequence[DataFile],
        added: Sequence[NewFile],
        moves: Mapping[int, OffsetRange],
        data_change: bool,
        commit_id: str,
        made_of: str | None = None,
    ) -> int:
        """Remove and add files, and set the ranges of ``moves``, in one commit.

        Commits only if, in every version up to the commit, every removed file is still in the
        table and the range of each partition of ``moves`` is the same as in ``expected``. With
        ``data_change`` false the commit states that the rows stay the same. ``made_of`` is stored
        in the commit and names the history that the rows were built from. Returns the version,
        which is durable then.

        Raises:
            FilesReplacedError: a file is not in the table any more; nothing was committed.
            StaleColdEndError: a range differs; nothing was committed.
            RemoteTierUnavailableError: the outcome is unknown; look for ``commit_id``.
        """

    def expire(
        self, expected: TableSnapshot, removed: Sequence[DataFile], entry: ExpiryEntry
    ) -> int:
        """Remove a partition's first files and move its start over ``entry.range``, atomically.

        Commits only if, in every version up to the commit, the partition begins at ``entry.start``
        and ``removed`` are exactly its files below ``entry.end``. Returns the version, which is
        durable then.

        Raises:
            StaleRemoteStartError: the partition begins elsewhere; nothing was committed.
            FilesReplacedError: its first files are others; nothing was committed.
            RemoteTierUnavailableError: the outcome is unknown; look for ``entry.commit_id``.
        """

    def compact_keys(
        self,
        expected: TableSnapshot,
        removed: Sequence[DataFile],
        added: Sequence[NewFile],
        entry: KeyCompactionEntry,
    ) -> int:
        """Exchange a partition's first files for those with the rows that are left, atomically.

        Commits only if, in every version up to the commit, the partition begins at ``entry.start``
        and is sparse up to the same offset as in ``expected``, and ``removed`` are exactly its
        files below ``entry.end``. Returns the version, which is durable then.

        Raises:
            StaleRemoteStartError: the partition begins elsewhere, or was compacted meanwhile.
            FilesReplacedError: its first files are others. Either way nothing was committed.
            RemoteTierUnavailableError: the outcome is unknown; look for ``entry.commit_id``.
        """

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, so that opening the table stays quick."""

    def commits(self, *, above: int) -> list[Commit]:
        """Return our commits with a version above ``above`` that the log still has, in order."""


def transaction_id(cluster: str, partition: PartitionId, kind: TableKind = "history") -> str:
    """Return the application id whose version is the partition's cold end.

    A key snapshot has other ids, so that the two tables cannot be confused.
    """
    history = f"headwater/{cluster}/{partition.stream_uuid}/{partition.number}"
    return history if kind == "history" else f"{history}/{kind}"


def start_transaction_id(cluster: str, partition: PartitionId, kind: TableKind = "history") -> str:
    """Return the application id whose version is the first offset still in the table.

    Absent means 0. Only remote retention moves it, in the commit that removes the files. So a
    file that is missing at the front is found to be a gap and cannot look like retention.
    """
    return f"{transaction_id(cluster, partition, kind)}/start"


def whole_transaction_id(cluster: str, partition: PartitionId, kind: TableKind = "history") -> str:
    """Return the application id whose version is the end of the partition's sparse prefix.

    Absent means that no record went by key compaction. ``left_transaction_id`` has the number of
    rows in the prefix. So each reader of a version knows how many rows it must find there.
    """
    return f"{transaction_id(cluster, partition, kind)}/whole"


def left_transaction_id(cluster: str, partition: PartitionId, kind: TableKind = "history") -> str:
    """Return the application id whose version is the number of rows in the sparse prefix."""
    return f"{transaction_id(cluster, partition, kind)}/left"


def table_path(namespace: str, table_name: str) -> str:
    """Return a table's folder below the lake's root."""
    return f"{namespace}/{table_name}"


def recreated_table_name(name: str, uuid: str) -> str:
    """Return the table folder of a stream whose name already has a table of another stream."""
    return f"{name}-{uuid[:_TABLE_NAME_UUID_LENGTH]}"


def properties_of(stream: Stream, cluster: str, kind: TableKind = "history") -> dict[str, str]:
    """Return a new table's properties; with them the bucket alone is enough to restore a stream."""
    return {
        **({} if kind == "history" else {KIND_PROPERTY: kind}),
        **({ENCRYPTION_PROPERTY: "ciphertext"} if is_encrypted(stream) else {}),
        "headwater.format_version": str(FORMAT_VERSION),
        "headwater.cluster": cluster,
        "headwater.namespace": stream.namespace,
        "headwater.stream": stream.name,
        "headwater.stream_uuid": stream.uuid,
        STREAM_PROPERTY: stream.to_json(),
        # Statistics of keys and values would only make the table's log large.
        "delta.dataSkippingStatsColumns": "offset,timestamp",
        "delta.checkpointInterval": "20",
        # A saved cut names a version, which must stay readable as long as its files exist.
        "delta.enableExpiredLogCleanup": "false",
    }
