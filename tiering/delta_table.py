"""The table port on delta-rs. The only file that knows deltalake.

The fence (DESIGN §6.4): a commit is written as version ``v + 1`` of exactly the version ``v`` in
which the cold ends were checked, with ``If-None-Match`` and no retry by the library. If anybody
committed in between, we load the newer version, check again and try again. delta-rs by itself
accepts the same transaction version twice in a row, so the check here is what refuses it.

delta-rs reports most failures as text. We do not parse it: after a failure to load, the log's
files are listed through the object store, and what is missing there is named.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    HeadwaterError,
    InvalidStreamError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    StaleColdEndError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from tiering.deadline import call_with_deadline
from tiering.delta_log import (
    CHECKPOINT,
    LOG_FILE,
    Transactions,
    commits_between,
    fold,
    log_key,
    transactions_at,
)
from tiering.object_store import ObjectStore
from tiering.table import (
    FORMAT_VERSION,
    Commit,
    DataFile,
    NewFile,
    TableSnapshot,
    properties_of,
    start_transaction_id,
    transaction_id,
)

_T = TypeVar("_T")

_COMMIT_ATTEMPTS_MAX: Final = 10
_BACKOFF_S: Final = 0.02
_FOLD_COMMITS_MAX: Final = 100  # beyond it a checkpoint is nearer
# These change how a table's log is kept, not what its data files mean.
_HARMLESS_FEATURES: Final = frozenset({"v2Checkpoint", "vacuumProtocolCheck", "timestampNtz"})
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_NO_RETRY: Final = 0


class DeltaStreamTable:
    """The Delta table of one stream. Any thread; commits of one object take turns."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        stream: Stream | None = None,
        cluster: str | None = None,
        storage_options: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """Bind to the folder that ``store`` is rooted at; makes no request.

        Without ``stream`` the table says itself whose it is, and only reading is possible.
        """
        self._store = store
        self._stream = stream
        self._cluster = cluster
        self._storage_options = storage_options
        self._deadline_s = store.config.upload_deadline_s
        self._lock = threading.Lock()
        self._newest: DeltaTable | None = None
        self._known: tuple[int, Transactions] | None = None  # transactions as of a version

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self._store.config.uri

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder."""
        return self._store

    # ------------------------------------------------------------------------------- reading

    def find(self, *, cold_end_min: Mapping[int, int] | None = None) -> TableSnapshot | None:
        """Load the newest version; None when there is none. See the port."""
        with self._lock:
            table = self._load_newest()
            snapshot = None if table is None else self._snapshot_of(table)
        for partition, least in (cold_end_min or {}).items():
            found = 0 if snapshot is None else snapshot.ranges[partition].end
            if found < least:
                raise TableRolledBackError(
                    f"{self.uri} ends at offset {found} of partition {partition}, but [.., {least})"
                    " was committed to it before; its log was cut or restored from an older copy",
                    uri=self.uri,
                    partition=partition,
                    expected=least,
                    found=found,
                )
        return snapshot

    def snapshot(self, version: int | None = None) -> TableSnapshot:
        """Load one version, or the newest; raises ObjectMissingError when it is not there."""
        if version is not None:
            return self._snapshot_of(self._opened(version))
        found = self.find()
        if found is None:
            raise ObjectMissingError(f"there is no table at {self.uri}", key="_delta_log")
        return found

    def commits(self, *, above: int) -> list[Commit]:
        """Return our commits above a version, oldest first; see the port."""
        with self._lock:
            table = self._load_newest()
            newest = above if table is None else table.version()
        return commits_between(self._store, above=above, up_to=newest)

    # ------------------------------------------------------------------------------- writing

    def create(self) -> TableSnapshot:
        """Create the table, empty, unless this stream's exists; return its newest version."""
        assert self._stream is not None, "a table opened for reading is not created"
        assert self._cluster is not None
        found = self.find()
        if found is not None:
            return found
        properties = properties_of(self._stream, self._cluster)
        try:
            call_with_deadline(
                lambda: DeltaTable.create(
                    self.uri,
                    schema=ROW_SCHEMA,
                    mode="error",
                    partition_by=["partition"],
                    name=self._stream.name if self._stream else None,
                    configuration=properties,
                    storage_options=self._storage_options(),
                    # A retry would put the loser's table, with a new id, over the winner's.
                    commit_properties=CommitProperties(max_commit_retries=_NO_RETRY),
                    post_commithook_properties=_NO_HOOKS,
                    raise_if_key_not_exists=False,
                ),
                seconds=self._deadline_s,
                what=f"create {self.uri}",
            )
        except (DeltaError, OSError) as cause:
            # Somebody else may have created it just now; then it is theirs or ours, and find tells.
            found = self.find()
            if found is None:
                raise RemoteTierUnavailableError(
                    f"cannot create the table {self.uri}: {_brief(cause)}", uri=self.uri
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
    ) -> int:
        """Add files and move cold ends by compare-and-set; see the port."""
        assert self._stream is not None, "a table opened for reading takes no commit"
        base = expected
        for attempt in range(_COMMIT_ATTEMPTS_MAX):
            _check_starts(base, moves)
            if self._committed_next(base, files, moves, commit_id, ranges_json):
                self._store.make_durable([log_key(base.version + 1)])
                return base.version + 1
            threading.Event().wait(random.uniform(0, _BACKOFF_S * 2**attempt))  # noqa: S311
            ours = [
                item for item in self.commits(above=base.version) if item.commit_id == commit_id
            ]
            if ours:  # it was written, and only the answer was lost
                self._store.make_durable([log_key(ours[0].version)])
                return ours[0].version
            base = self.snapshot()
        raise RemoteTierUnavailableError(
            f"{self.uri}: other commits won {_COMMIT_ATTEMPTS_MAX} times in a row", uri=self.uri
        )

    def checkpoint(self) -> None:
        """Write a Delta checkpoint of the newest version, so that opening stays quick."""
        with self._lock:
            table = self._load_newest()
            if table is None:
                return
            self._guarded(table.create_checkpoint, "checkpoint")
            version = table.version()
        written = [
            info.key
            for info in self._store.list(f"_delta_log/{version:020}.checkpoint")
            if CHECKPOINT.match(info.key)
        ]
        self._store.make_durable([*written, "_delta_log/_last_checkpoint"])

    def _committed_next(
        self,
        base: TableSnapshot,
        files: Sequence[NewFile],
        moves: Mapping[int, OffsetRange],
        commit_id: str,
        ranges_json: str,
    ) -> bool:
        """Write version ``base.version + 1``; False when that version exists already."""
        app_ids = {
            partition: transaction_id(base.cluster, _partition_id(base.stream_uuid, partition))
            for partition in moves
        }
        with self._lock:
            table = self._newest
            if table is None or table.version() != base.version:
                table = self._opened(base.version)
            try:
                self._guarded(
                    lambda: table.create_write_transaction(
                        [_add_action(file) for file in files],
                        mode="append",
                        schema=ROW_SCHEMA,
                        partition_by=["partition"],
                        post_commithook_properties=_NO_HOOKS,
                        commit_properties=CommitProperties(
                            custom_metadata={
                                "headwater.commit_id": commit_id,
                                "headwater.ranges": ranges_json,
                            },
                            max_commit_retries=_NO_RETRY,
                            app_transactions=[
                                Transaction(app_ids[partition], move.end)
                                for partition, move in moves.items()
                            ],
                        ),
                    ),
                    "commit",
                )
            except CommitFailedError:
                return False
        return True

    # ------------------------------------------------------------------------------ the library

    def _load_newest(self) -> DeltaTable | None:
        """Return the newest version, by a step forward from the last one where that is sound."""
        table = self._newest
        if table is not None:
            try:
                # A version that has vanished means that the log was cut: then look again in full.
                self._store.head(log_key(table.version()))
                self._guarded(table.update_incremental, "update")
            except (ObjectMissingError, ObjectCorruptError, RemoteTierUnavailableError) as error:
                self._newest = self._known = None
                if isinstance(error, RemoteTierUnavailableError):
                    raise
            else:
                return table
        try:
            self._newest = self._opened(None)
        except ObjectMissingError as error:
            if error.facts.get("key") == "_delta_log":
                return None
            raise
        return self._newest

    def _opened(self, version: int | None) -> DeltaTable:
        def load() -> DeltaTable:
            return DeltaTable(self.uri, version=version, storage_options=self._storage_options())

        try:
            return self._guarded(load, "open", version=version)
        except ObjectCorruptError:
            # The log looked whole when it was listed afterwards: perhaps it had only just grown,
            # by somebody else's first commit. If it is really damaged, it still is.
            return self._guarded(load, "open", version=version)

    def _guarded(self, call: Callable[[], _T], what: str, version: int | None = None) -> _T:
        """Run a call of the library under the deadline and translate what it raises."""
        try:
            return call_with_deadline(call, seconds=self._deadline_s, what=f"{what} {self.uri}")
        except CommitFailedError:
            raise
        except (DeltaError, TableNotFoundError, OSError) as cause:
            self._newest = None
            raise self._diagnosed(cause, what, version) from cause
        except RemoteTierUnavailableError:
            self._newest = None
            raise

    def _diagnosed(self, cause: Exception, what: str, version: int | None) -> HeadwaterError:
        """Look at the log's files to say what is wrong; the store's own errors pass through."""
        versions, checkpoints = [], []
        for info in self._store.list("_delta_log/"):
            if match := LOG_FILE.match(info.key):
                versions.append(int(match[1]))
            elif match := CHECKPOINT.match(info.key):
                checkpoints.append(int(match[1]))
        if not versions and not checkpoints:
            return ObjectMissingError(f"there is no table at {self.uri}", key="_delta_log")
        newest = max([*versions, *checkpoints])
        if version is not None and version > newest:
            return ObjectMissingError(
                f"{self.uri} has no version {version}; its newest is {newest}",
                key=log_key(version),
            )
        first = max(
            (mark for mark in checkpoints if version is None or mark <= version), default=-1
        )
        last = newest if version is None else version
        present = set(versions)
        for number in range(first + 1, last + 1):
            if number not in present:
                return ObjectMissingError(
                    f"commit {number} is missing from the log of {self.uri}", key=log_key(number)
                )
        if isinstance(cause, OSError):
            return RemoteTierUnavailableError(f"{what} {self.uri}: {_brief(cause)}", uri=self.uri)
        return ObjectCorruptError(
            f"{what} {self.uri}: {_brief(cause)}", key="_delta_log", uri=self.uri
        )

    # ------------------------------------------------------------------------------ translation

    def _snapshot_of(self, table: DeltaTable) -> TableSnapshot:
        """Read a loaded version into our words; refuse what we cannot vouch for."""
        properties = dict(table.metadata().configuration)
        stream = self._owner(properties)
        cluster = properties.get("headwater.cluster", "")
        self._check_shape(table)
        transactions = self._transactions_of(table, stream, cluster)
        ranges = {}
        for number in range(stream.config.partitions):
            partition = _partition_id(stream.uuid, number)
            end = transactions.get(transaction_id(cluster, partition), 0)
            start = transactions.get(start_transaction_id(cluster, partition), 0)
            if not 0 <= start <= end:
                raise TableMismatchError(
                    f"{self.uri}: partition {number} starts at {start} and ends at {end}",
                    uri=self.uri,
                    partition=number,
                )
            ranges[number] = OffsetRange(Offset(start), Offset(end))
        return TableSnapshot(
            uri=self.uri,
            version=table.version(),
            stream_uuid=stream.uuid,
            cluster=cluster,
            properties=properties,
            files=self._files_of(table, partitions=stream.config.partitions),
            ranges=ranges,
        )

    def _transactions_of(self, table: DeltaTable, stream: Stream, cluster: str) -> Transactions:
        """Return a version's transactions, from those of an earlier one where they are known."""
        version = table.version()
        try:
            if self._known is not None and 0 <= version - self._known[0] <= _FOLD_COMMITS_MAX:
                above, known = self._known
                found = fold(self._store, known, above=above, up_to=version)
            else:
                found = transactions_at(self._store, version)
        except ObjectMissingError:
            # The log was cleaned up, or its checkpoints have a form we do not read: ask for each.
            ids = [
                make(cluster, _partition_id(stream.uuid, number))
                for number in range(stream.config.partitions)
                for make in (transaction_id, start_transaction_id)
            ]
            answers = {
                app_id: self._guarded(partial(table.transaction_version, app_id), "transactions")
                for app_id in ids
            }
            found = {app_id: answer for app_id, answer in answers.items() if answer is not None}
        if self._known is None or version >= self._known[0]:
            self._known = (version, found)
        return found

    def _owner(self, properties: Mapping[str, str]) -> Stream:
        """Return the stream that the table says it belongs to, if that is the expected one."""
        try:
            owner = Stream.from_dict(json.loads(properties["headwater.stream_json"]))
        except (KeyError, TypeError, ValueError, RecursionError, InvalidStreamError) as cause:
            raise TableMismatchError(
                f"{self.uri} is not a table of Headwater's: no readable headwater.stream_json",
                uri=self.uri,
            ) from cause
        version = properties.get("headwater.format_version")
        if version != str(FORMAT_VERSION):
            raise TableMismatchError(
                f"{self.uri} has table format {version!r}; this build knows {FORMAT_VERSION}",
                uri=self.uri,
            )
        cluster = properties.get("headwater.cluster")
        expected = self._stream
        if expected is not None and (owner.uuid, cluster) != (expected.uuid, self._cluster):
            raise TableMismatchError(
                f"{self.uri} belongs to stream {owner.uuid} of cluster {cluster!r}, "
                f"not to {expected.uuid} of {self._cluster!r}; it is not appended to",
                uri=self.uri,
                expected=expected.uuid,
                found=owner.uuid,
            )
        return owner

    def _check_shape(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        features = set(protocol.reader_features or ()) - _HARMLESS_FEATURES
        if features or (protocol.min_reader_version > 1 and protocol.reader_features is None):
            raise TableMismatchError(
                f"{self.uri} uses {sorted(features) or 'column mapping'}, with which its files no "
                "longer say by themselves which rows the table has",
                uri=self.uri,
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
                f"{self.uri} does not have our columns: {wrong or 'not partitioned by partition'}",
                uri=self.uri,
                columns=wrong,
            )

    def _files_of(self, table: DeltaTable, *, partitions: int) -> tuple[DataFile, ...]:
        actions = pa.table(table.get_add_actions(flatten=True))
        names = ("path", "size_bytes", "partition.partition", "num_records", "min.offset")
        columns = [_column(actions, name) for name in (*names, "max.offset")]
        files = []
        for path, size, partition, count, least, greatest in zip(*columns, strict=True):
            known = None not in (count, least, greatest)
            if partition is None or not 0 <= partition < partitions or "://" in path:
                raise TableMismatchError(
                    f"{self.uri} lists {path}, which is not of a partition of this stream",
                    uri=self.uri,
                    path=path,
                )
            files.append(
                DataFile(
                    path=path,
                    size_bytes=size,
                    partition=partition,
                    records_count=count,
                    min_offset=Offset(least) if known else None,
                    max_offset=Offset(greatest) if known else None,
                )
            )
        return tuple(
            sorted(files, key=lambda file: (file.partition, file.min_offset or 0, file.path))
        )


def _check_starts(base: TableSnapshot, moves: Mapping[int, OffsetRange]) -> None:
    for partition, move in moves.items():
        found = base.cold_end(partition)
        if found != move.start:
            raise StaleColdEndError(
                f"partition {partition} of {base.uri} ends at {found}, not at {move.start}",
                partition=partition,
                expected=int(move.start),
                found=int(found),
            )


def _add_action(file: NewFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={"partition": str(file.partition)},
        modification_time=file.modified_us // 1000,
        data_change=True,
        stats=file.stats_json,
    )


def _partition_id(uuid: StreamUuid, number: int) -> PartitionId:
    return PartitionId(uuid, PartitionNumber(number))


def _column(actions: pa.Table, name: str) -> list[Any]:
    if name in actions.column_names:
        values: list[Any] = actions.column(name).to_pylist()
        return values
    return [None] * actions.num_rows


def _brief(cause: BaseException) -> str:
    """Return the first words of a library's message; the whole is in the chained error."""
    return " ".join(str(cause).split())[:300]
