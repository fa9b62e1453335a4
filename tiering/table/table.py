"""The table of a stream: what a version of it is, and the port that reads and commits it.

A version is a value: its files with their offset ranges, and per partition the range
``[start, cold end)`` that its transactions claim. The cold end moves only by compare-and-set, in
the same commit as the files. Which library does it is delta_table.py's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from tiering.store.object_store import ObjectStore

FORMAT_VERSION: Final = 1
LEDGER_PREFIX: Final = "_headwater/ledger"  # a leading underscore: Delta and VACUUM pass it over
PROOF_PREFIX: Final = "_headwater/proof"
PROPERTY_PREFIX: Final = "headwater."
COMMIT_ID: Final = "headwater.commit_id"  # in commitInfo: the commit is ours
RANGES: Final = "headwater.ranges"  # the ledger entries that a commit ships
FILES: Final = "headwater.files"  # the files that a commit puts in the place of others
ETAGS: Final = "headwater.etags"  # what the store calls the bytes of the added objects
MADE_OF: Final = "headwater.made_of"  # the history that a key snapshot's commit is of
KIND_PROPERTY: Final = "headwater.kind"  # absent: a stream's history
CLUSTER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

TableKind = Literal["history", "latest"]  # every record, or the newest of each key

_TABLE_NAME_UUID_LENGTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a table version. Offsets are None when the file came without statistics."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A stream's table at one version. Immutable; safe to send to another process.

    ``ranges`` comes from the transactions in this very version: what the table claims to hold.
    ``files`` is what it lists. That both agree is for read/certify.py to prove.
    """

    uri: str
    version: int
    stream_uuid: StreamUuid
    cluster: str
    properties: Mapping[str, str]
    files: tuple[DataFile, ...]
    ranges: Mapping[int, OffsetRange]  # every partition of the stream
    table_id: str = ""  # drawn when the table was created

    @property
    def files_bytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.size_bytes for file in self.files)

    def cold_end(self, partition: int) -> Offset:
        """Return the first offset of a partition that is not in this version."""
        return self.ranges[partition].end


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to commit: already in the store, at ``path`` below the table."""

    path: str
    size_bytes: int
    partition: int
    modified_us: int
    stats_json: str
    crc32c: int | None = None  # of its bytes, where the caller knows
    digest: str = ""  # of its rows, in their order in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one commit of ours said about itself; from the table's log."""

    version: int
    commit_id: str
    ranges_json: str  # the ledger entries that belong to it, see ledger.py


class Table(Protocol):
    """One stream's table. Blocking; any thread.

    Every method may raise RemoteTierUnavailableError, TableMismatchError (the table is another
    stream's, or uses features that would change what its files mean) and ObjectMissingError (a
    part of the table's log is gone).
    """

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder."""

    def find(self, *, cold_end_min: Mapping[int, int] | None = None) -> TableSnapshot | None:
        """Load the newest version; None when no table was ever created here.

        ``cold_end_min`` is the least cold end per partition that the caller knows was committed.

        Raises:
            TableRolledBackError: the table is missing or older than ``cold_end_min`` proves.
        """

    def cold_ends(self) -> Mapping[int, Offset]:
        """Return where each partition ends in the newest version; 0 where there is no table.

        Cheaper than :meth:`find`, and nothing is proved or refused. Looked at after the call began.
        """

    def snapshot(self, version: int | None = None) -> TableSnapshot:
        """Load one version, or the newest; raises ObjectMissingError when it is not there."""

    def create(self) -> TableSnapshot:
        """Create the table, empty, unless this stream's table exists; return its newest version."""

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

        Only if in ``expected``, and in every version after it up to the commit, each of these
        cold ends is exactly the start. ``lineage_json`` says whose history each range is. Returns
        the version, durable.

        Raises:
            StaleColdEndError: a cold end is another; nothing was committed.
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

        Only if every removed file is still in the table and, for each partition of ``moves``, the
        table's range is still ``expected``'s, in every version up to the commit. ``data_change``
        false says that the rows stay the same; ``made_of``, in the commit, of which history they
        are. Returns the version, durable.

        Raises:
            FilesReplacedError: a file is not in the table any more; nothing was committed.
            StaleColdEndError: a range is another; nothing was committed.
            RemoteTierUnavailableError: the outcome is unknown; look for ``commit_id``.
        """

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, so that opening the table stays quick."""

    def commits(self, *, above: int) -> list[Commit]:
        """Return our commits with a version above ``above`` that the log still has, in order."""


def transaction_id(cluster: str, partition: PartitionId, kind: TableKind = "history") -> str:
    """Return the application id whose version is the partition's cold end (DESIGN §3).

    A key snapshot's ids differ, so that neither table can be taken for the other.
    """
    history = f"headwater/{cluster}/{partition.stream_uuid}/{partition.number}"
    return history if kind == "history" else f"{history}/{kind}"


def start_transaction_id(cluster: str, partition: PartitionId, kind: TableKind = "history") -> str:
    """Return the application id whose version is the first offset still in the table.

    Absent means 0. Only remote retention moves it, in the commit that removes the files, so a
    file that vanished at the front is a gap and never looks like retention.
    """
    return f"{transaction_id(cluster, partition, kind)}/start"


def table_path(namespace: str, table_name: str) -> str:
    """Return a table's folder below the lake's root."""
    return f"{namespace}/{table_name}"


def recreated_table_name(name: str, uuid: str) -> str:
    """Return the table folder of a stream whose name already has a table of another stream."""
    return f"{name}-{uuid[:_TABLE_NAME_UUID_LENGTH]}"


def properties_of(stream: Stream, cluster: str, kind: TableKind = "history") -> dict[str, str]:
    """Return the properties a new table gets: the bucket alone can tell what the stream was."""
    return {
        **({} if kind == "history" else {KIND_PROPERTY: kind}),
        "headwater.format_version": str(FORMAT_VERSION),
        "headwater.cluster": cluster,
        "headwater.namespace": stream.namespace,
        "headwater.stream": stream.name,
        "headwater.stream_uuid": stream.uuid,
        "headwater.stream_json": stream.to_json(),
        # Statistics of keys and values would only make the log of the table heavy.
        "delta.dataSkippingStatsColumns": "offset,timestamp",
        "delta.checkpointInterval": "20",
        # A saved cut names a version; it stays readable as long as its files do.
        "delta.enableExpiredLogCleanup": "false",
    }
