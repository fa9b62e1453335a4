"""The table port on delta-rs: one stream's table, read and committed through delta_library.py.

The fence: a commit is written as version ``v + 1`` of exactly the version ``v`` in
which the cold ends were checked. If another process committed in between, we load the newer
version, check again and try again. delta-rs alone accepts the same transaction version twice in a
row, so only the check here refuses that.

The file is not split: reading a version, checking the fence and committing the next version are
one algorithm.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    HeadwaterError,
    InvalidStreamError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import PARTITIONS_MAX, Stream
from tiering.proof.proofs import note_proof, refuse_foreign
from tiering.store.object_store import ObjectStore
from tiering.table.commit_checks import (
    check_expiry,
    check_key_compaction,
    check_same,
    check_starts,
)
from tiering.table.commit_files import account_of
from tiering.table.delta_actions import ListedFiles, add_action, remove_action, unknown_partition
from tiering.table.delta_library import DeltaLibrary, brief
from tiering.table.delta_log import Transactions, commits_between, log_key
from tiering.table.expiries import ExpiryEntry
from tiering.table.key_compactions import KeyCompactionEntry
from tiering.table.table import (
    COMMIT_ID,
    COMPACTED,
    ETAGS,
    EXPIRED,
    FILES,
    FORMAT_VERSION,
    KIND_PROPERTY,
    MADE_OF,
    RANGES,
    Commit,
    DataFile,
    NewFile,
    TableKind,
    TableSnapshot,
    left_transaction_id,
    properties_of,
    start_transaction_id,
    transaction_id,
    whole_transaction_id,
)
from tiering.table.transactions import TransactionNames, ranges_in, sparse_in

_COMMIT_ATTEMPTS_MAX: Final = 10
_BACKOFF_S: Final = 0.02
_UNMOVED_ATTEMPTS: Final = 3  # after so many, a race that we lost would show in the log
_BOUNDS: Final = (
    transaction_id, start_transaction_id, whole_transaction_id, left_transaction_id,
)  # fmt: skip
# These features change how a table's log is kept, not the meaning of its data files.
_HARMLESS_FEATURES: Final = frozenset({"v2Checkpoint", "vacuumProtocolCheck", "timestampNtz"})
_DELETION_VECTORS: Final = "deletionVectors"
# delta-rs can commit to tables with these features. With others it reports a lost race instead.
_WRITABLE_FEATURES: Final = _HARMLESS_FEATURES | {
    "appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "generatedColumns",
    "invariants",
}  # fmt: skip


class DeltaStreamTable:
    """The Delta table of one stream. Any thread; a lock guards the Delta library."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        stream: Stream | None = None,
        cluster: str | None = None,
        kind: TableKind = "history",
        storage_options: Callable[[], dict[str, str]] = dict,
        recorded: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        """Bind to the folder that ``store`` is rooted at; makes no request.

        Without ``stream`` the owner is read from the table's properties; then only reading and
        replacing files are possible. ``recorded`` returns, per partition, a cold end that is known
        to be committed, whoever committed it. No version below one of them is loaded as the newest
        one, and no commit is based on one: it would take the name of a commit that was lost, which
        then could not be put back.
        """
        self._kind = kind
        self._store = store
        self._stream = stream
        self._cluster = cluster
        self._lock = threading.Lock()
        self._recorded = recorded
        self._library = DeltaLibrary(store, storage_options)
        self._made: tuple[DeltaTable, TableSnapshot] | None = None  # and what it was made of
        self._files = ListedFiles(store.config.uri)
        self._version_seen = -1  # the newest version that this process has seen; -1: none
        self._reads_count = 0  # how often the cold ends were read
        self._cold_ends: Mapping[int, Offset] | None = None  # result of the last read

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self._store.config.uri

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder, with its log as it was loaded last."""
        return self._library.store

    # ------------------------------------------------------------------------------- reading

    def find(self, *, cold_end_min: Mapping[int, int] | None = None) -> TableSnapshot | None:
        """Load the newest version; None when there is none. See the port."""
        # Read before the table: an end that is recorded later may not be in this version yet.
        least_ends = dict(self._recorded())
        for partition, least in (cold_end_min or {}).items():
            least_ends[partition] = max(least, least_ends.get(partition, 0))
        with self._lock:
            table = self._library.newest()
            self._require_no_older(-1 if table is None else table.version())
            snapshot = None if table is None else self._snapshot_of(table)
        for partition, least in least_ends.items():
            found = 0 if snapshot is None else snapshot.cold_end(partition)
            if found < least:
                raise TableRolledBackError(
                    f"{self.uri} ends at offset {found} of partition {partition}, but records up "
                    f"to {least} were committed to it before: its log was cut, or restored from an "
                    "older copy",
                    uri=self.uri,
                    partition=partition,
                    expected=least,
                    found=found,
                )
        return snapshot

    def cold_ends(self) -> Mapping[int, Offset]:
        """Return the end of each partition in the newest version; see the port.

        Callers that wait for the lock at the same time share one read.
        """
        assert self._stream is not None, "a table opened for reading has no partitions of its own"
        assert self._cluster is not None
        before = self._reads_count
        with self._lock:
            if self._reads_count == before or self._cold_ends is None:
                self._reads_count += 1
                self._cold_ends = None
                table = self._library.newest()
                self._cold_ends = self._ends_of(table, self._stream, self._cluster)
            return self._cold_ends

    def _require_no_older(self, version: int) -> None:
        """Refuse a log that ends below a version that this process has seen; note the new version.

        It is refused even if no commit of ours is missing. The same version number may now be
        another commit than the one that a saved cut names, and other parts of the lake may be of
        an older copy too. An operator has to decide.
        """
        if version < self._version_seen:
            raise TableRolledBackError(
                f"{self.uri} is at version {version}, but was at {self._version_seen} before: its "
                "log was cut, or restored from an older copy",
                uri=self.uri,
                expected=self._version_seen,
                found=version,
            )
        self._version_seen = version

    def snapshot(self, version: int | None = None) -> TableSnapshot:
        """Load one version, or the newest; raises ObjectMissingError if it does not exist."""
        if version is not None:
            with self._lock:
                return self._snapshot_of(self._library.opened(version))
        found = self.find()
        if found is None:
            raise ObjectMissingError(f"there is no table at {self.uri}", key="_delta_log")
        return found

    def commits(self, *, above: int) -> list[Commit]:
        """Return our commits above a version, oldest first; see the port."""
        with self._lock:
            table = self._library.newest()
            newest = above if table is None else table.version()
        return commits_between(self.store, above=above, up_to=newest)

    # ------------------------------------------------------------------------------- writing

    def create(self) -> TableSnapshot:
        """Create an empty table unless this stream's table exists; return its newest version."""
        assert self._stream is not None, "a table opened for reading is not created"
        assert self._cluster is not None
        found = self.find()
        if found is not None:
            return found
        properties = properties_of(self._stream, self._cluster, self._kind)
        try:
            with self._lock:
                self._library.create(
                    ROW_SCHEMA,
                    partition_by=["partition"],
                    name=self._stream.name,
                    properties=properties,
                )
        except (DeltaError, OSError) as cause:
            # Another process may have created it meanwhile; find() checks whose table it is.
            found = self.find()
            if found is None:
                raise RemoteTierUnavailableError(
                    f"cannot create the table {self.uri}: {brief(cause)}", uri=self.uri
                ) from cause
        self._store.make_durable([log_key(0)])
        return self.snapshot()

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
        """Add files and move cold ends by compare-and-set; see the port."""
        assert self._stream is not None, "a table opened for reading takes no commit"
        return self._commit(
            expected,
            check=lambda base: check_starts(base, moves),
            actions=[add_action(file) for file in files],
            transactions={
                self._transaction_id(expected, number): int(move.end)
                for number, move in moves.items()
            },
            commit_id=commit_id,
            metadata={
                RANGES: ranges_json,
                "headwater.lineage": lineage_json,
                **self._etags(files),
            },
        )

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
        """Remove and add files and set ranges in one commit, by compare-and-set; see the port."""
        transactions = {
            make(expected.cluster, _partition_id(expected.stream_uuid, number), self._kind): bound
            for number, move in moves.items()
            for make, bound in (
                (transaction_id, int(move.end)),
                (start_transaction_id, int(move.start)),
            )
            if bound > 0  # absent means 0
        }
        return self._commit(
            expected,
            check=lambda base: check_same(base, expected, removed, moves),
            actions=[
                *(remove_action(file, data_change=data_change) for file in removed),
                *(add_action(file, data_change=data_change) for file in added),
            ],
            transactions=transactions,
            commit_id=commit_id,
            metadata={
                FILES: json.dumps([account_of(file) for file in added], sort_keys=True),
                **self._etags(added),
                **({} if made_of is None else {MADE_OF: made_of}),
            },
        )

    def expire(
        self, expected: TableSnapshot, removed: Sequence[DataFile], entry: ExpiryEntry
    ) -> int:
        """Remove a partition's first files and move its start, by compare-and-set; see the port."""
        partition = _partition_id(expected.stream_uuid, entry.partition)
        moved = {start_transaction_id(expected.cluster, partition, self._kind): int(entry.end)}
        if expected.sparse_range(entry.partition):
            gone = sum(file.records_count or 0 for file in removed)
            left = expected.sparse[entry.partition].after_expiry(entry.range, gone)
            moved[left_transaction_id(expected.cluster, partition, self._kind)] = left.records_count
        return self._commit(
            expected,
            check=lambda base: check_expiry(base, expected, removed, entry),
            actions=[remove_action(file, data_change=True) for file in removed],
            transactions=moved,
            commit_id=entry.commit_id,
            metadata={EXPIRED: entry.to_text()},
        )

    def compact_keys(
        self,
        expected: TableSnapshot,
        removed: Sequence[DataFile],
        added: Sequence[NewFile],
        entry: KeyCompactionEntry,
    ) -> int:
        """Exchange a partition's first files for what is left, by compare-and-set; see the port."""
        at = (expected.cluster, _partition_id(expected.stream_uuid, entry.partition), self._kind)
        return self._commit(
            expected,
            check=lambda base: check_key_compaction(base, expected, removed, entry),
            actions=[
                *(remove_action(file, data_change=True) for file in removed),
                *(add_action(file) for file in added),
            ],
            transactions={
                whole_transaction_id(*at): int(entry.end),
                left_transaction_id(*at): entry.left.records_count,
            },
            commit_id=entry.commit_id,
            metadata={COMPACTED: entry.to_text(), **self._etags(added)},
        )

    def _commit(
        self,
        expected: TableSnapshot,
        *,
        check: Callable[[TableSnapshot], None],
        actions: Sequence[AddAction | RemoveAction],
        transactions: Transactions,
        commit_id: str,
        metadata: Mapping[str, str],
    ) -> int:
        """Commit the version after one that passes ``check``; this is the compare-and-set."""
        base = expected
        info = {COMMIT_ID: commit_id, **metadata}
        for attempt in range(_COMMIT_ATTEMPTS_MAX):
            behind = any(base.cold_end(number) < end for number, end in self._recorded().items())
            if behind or base.version < self._version_seen:
                base = self.snapshot()  # raises if the log was cut; a cut log accepts any commit
            check(base)
            if base is not expected:
                refuse_foreign(base, self.store)
            if self._commit_next(base, actions, transactions, info):
                self._version_seen = max(self._version_seen, base.version + 1)
                self._store.make_durable([log_key(base.version + 1)])
                return base.version + 1
            threading.Event().wait(random.uniform(0, _BACKOFF_S * 2**attempt))  # noqa: S311
            ours = [
                item for item in self.commits(above=base.version) if item.commit_id == commit_id
            ]
            if ours:  # the commit was written, and only the answer was lost
                self._store.make_durable([log_key(ours[0].version)])
                return ours[0].version
            later = self.snapshot()
            if later.version == base.version and attempt >= _UNMOVED_ATTEMPTS:
                self._refuse_unwritable(base.version)
            base = later
        raise RemoteTierUnavailableError(
            f"{self.uri}: other processes committed first {_COMMIT_ATTEMPTS_MAX} times in a row",
            uri=self.uri,
        )

    def _refuse_unwritable(self, version: int) -> None:
        """Raise an error if the table has features with which delta-rs cannot commit."""
        with self._lock:
            table = self._library.newest()
        features = set((table.protocol().writer_features if table else None) or ())
        unknown = sorted(features - _WRITABLE_FEATURES)
        if unknown:
            raise TableMismatchError(
                f"{self.uri} takes no commit after version {version}: another tool enabled "
                f"{unknown}, which this build cannot write. Nothing is shipped, reads stay exact; "
                "remove the features (ALTER TABLE … DROP FEATURE)",
                uri=self.uri,
                version=version,
                features=unknown,
            )

    def _etags(self, files: Sequence[NewFile]) -> dict[str, str]:
        """Return the ETags of the objects, by which a listing shows an exchanged object.

        A local folder has no ETags.
        """
        if self._store.config.kind == "local":
            return {}
        found = {one.path: one.etag or self._store.head(one.path).etag for one in files}
        known = {path: etag for path, etag in found.items() if etag is not None}
        return {ETAGS: json.dumps(known, sort_keys=True)} if known else {}

    def _transaction_id(self, snapshot: TableSnapshot, number: int) -> str:
        partition = _partition_id(snapshot.stream_uuid, number)
        return transaction_id(snapshot.cluster, partition, self._kind)

    def checkpoint(self) -> None:
        """Write a Delta checkpoint of the newest version, so that opening the table stays quick.

        After some checkpoints the proof of the version is stored too, so that proving stays quick.
        """
        with self._lock:
            self._library.checkpoint()
        with suppress(HeadwaterError):  # if the table is damaged, its next reader gets the error
            note_proof(self.snapshot(), self.store)

    def _commit_next(
        self,
        base: TableSnapshot,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Transactions,
        metadata: Mapping[str, str],
    ) -> bool:
        """Write version ``base.version + 1``; False when that version exists already."""
        try:
            with self._lock:
                return self._library.append(
                    base.version,
                    actions,
                    schema=ROW_SCHEMA,
                    partition_by=["partition"],
                    metadata=metadata,
                    transactions=transactions,
                )
        except (ObjectCorruptError, ObjectMissingError):
            self.find()  # raises the better error if the log was cut below the base
            raise

    # ------------------------------------------------------------------------------ translation

    def _snapshot_of(self, table: DeltaTable) -> TableSnapshot:
        """Translate a loaded version into a snapshot; refuse a table that has no exact reading.

        The snapshot made last is kept, for the next use of the same version.
        """
        made = self._made
        if made is not None and made[0] is table and made[1].version == table.version():
            return made[1]
        properties = dict(table.metadata().configuration)
        stream = self._owner(properties)
        cluster = properties.get("headwater.cluster", "")
        self._check_shape(table)
        files = self._files.of(table)
        numbers = {file.partition for file in files}
        transactions, names = self._transactions_of(table, stream, cluster, numbers)
        partitions_min = stream.config.partitions
        ranges = ranges_in(transactions, names, partitions_min=partitions_min, uri=self.uri)
        if unknown := numbers - ranges.keys():
            path = next(file.path for file in files if file.partition in unknown)
            raise unknown_partition(self.uri, path)
        snapshot = TableSnapshot(
            uri=self.uri,
            version=table.version(),
            stream_uuid=stream.uuid,
            cluster=cluster,
            properties=properties,
            files=files,
            ranges=ranges,
            table_id=str(table.metadata().id),
            sparse=sparse_in(transactions, names, ranges, uri=self.uri),
        )
        self._made = table, snapshot
        return snapshot

    def _transactions_of(
        self, table: DeltaTable, stream: Stream, cluster: str, numbers: Collection[int] = ()
    ) -> tuple[Transactions, TransactionNames]:
        """Return the transactions of a version, and what tells whose bound each of them is.

        Partitions that were added to the stream after the table's creation are known by their
        transactions. ``numbers`` names those of files, if the log does not have them any more.
        """
        known = stream if self._stream is None else self._stream
        counts = (stream.config.partitions, known.config.partitions)
        count = max([*counts, *(number + 1 for number in numbers)])
        ids = [
            make(cluster, _partition_id(stream.uuid, number), self._kind)
            for number in range(min(count, PARTITIONS_MAX))
            for make in _BOUNDS
        ]
        names = TransactionNames(cluster, stream.uuid, self._kind)
        return self._library.transactions(table, ids), names

    def _ends_of(
        self, table: DeltaTable | None, stream: Stream, cluster: str
    ) -> Mapping[int, Offset]:
        partitions_min = stream.config.partitions
        if table is None:
            return dict.fromkeys(range(partitions_min), Offset(0))
        transactions, names = self._transactions_of(table, stream, cluster)
        held = ranges_in(transactions, names, partitions_min=partitions_min, uri=self.uri)
        return {number: one.end for number, one in held.items()}

    def _owner(self, properties: Mapping[str, str]) -> Stream:
        """Return the stream in the table's properties; refuse the table if another was expected."""
        try:
            owner = Stream.from_dict(json.loads(properties["headwater.stream_json"]))
        except (KeyError, TypeError, ValueError, RecursionError, InvalidStreamError) as cause:
            raise TableMismatchError(
                f"{self.uri} is not a table of Headwater: its property headwater.stream_json is "
                "missing or not readable",
                uri=self.uri,
            ) from cause
        kind = properties.get(KIND_PROPERTY, "history")
        if kind != self._kind:
            raise TableMismatchError(
                f"{self.uri} is a table of kind {kind!r}, but kind {self._kind!r} was expected",
                uri=self.uri,
                expected=self._kind,
                found=kind,
            )
        version = properties.get("headwater.format_version")
        if version != str(FORMAT_VERSION):
            raise TableMismatchError(
                f"{self.uri} has table format {version!r}; this build knows only {FORMAT_VERSION}",
                uri=self.uri,
            )
        cluster = properties.get("headwater.cluster")
        expected = self._stream
        if expected is not None and (owner.uuid, cluster) != (expected.uuid, self._cluster):
            raise TableMismatchError(
                f"{self.uri} belongs to stream {owner.uuid} of cluster {cluster!r}, "
                f"not to {expected.uuid} of {self._cluster!r}; nothing is appended to it",
                uri=self.uri,
                expected=expected.uuid,
                found=owner.uuid,
            )
        return owner

    def _check_shape(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        features = set(protocol.reader_features or ()) - _HARMLESS_FEATURES
        if _DELETION_VECTORS in features and not self._hides_rows(table):
            features.remove(_DELETION_VECTORS)  # allowed in the table, and not used in this version
        if features or (protocol.min_reader_version > 1 and protocol.reader_features is None):
            way_out = "remove the features (ALTER TABLE … DROP FEATURE)"
            if features == {_DELETION_VECTORS}:
                way_out = (
                    "set delta.enableDeletionVectors = false, and RESTORE the table to the version "
                    "before the first change that wrote deletion vectors (DESCRIBE HISTORY)"
                )
            raise TableMismatchError(
                f"version {table.version()} of {self.uri} uses "
                f"{sorted(features) or 'column mapping'}; with that, the data files alone no "
                f"longer show which rows the table has. Nothing is read or shipped; {way_out}",
                uri=self.uri,
                version=table.version(),
                features=sorted(features),
            )
        schema = pa.schema(table.schema().to_arrow())
        wrong = [
            field.name
            for field in ROW_SCHEMA
            if schema.get_field_index(field.name) < 0 or schema.field(field.name).type != field.type
        ]
        if wrong or table.metadata().partition_columns != ["partition"]:
            raise TableMismatchError(
                f"{self.uri} does not have the columns of a stream's table: "
                f"{wrong or 'it is not partitioned by partition'}",
                uri=self.uri,
                columns=wrong,
            )

    def _hides_rows(self, table: DeltaTable) -> bool:
        """Tell whether a deletion vector hides rows in a version; True if they cannot be read."""

        def found() -> bool:
            return any(batch.num_rows for batch in table.deletion_vectors())

        try:
            return self._library.guarded(found, "read the deletion vectors of")
        except HeadwaterError:
            return True


def _partition_id(uuid: StreamUuid, number: int) -> PartitionId:
    return PartitionId(uuid, PartitionNumber(number))
