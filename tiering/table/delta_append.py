"""A Delta table that jobs append to, on delta-rs: any schema, and not only our own tables.

A version is a value: schema, partition columns, properties, and every application transaction. A
commit is version ``v + 1`` of exactly the version ``v`` that the caller checked, or nothing is
committed; the caller (spark_jobs/tables) decides what to check. Two kinds of tables are refused,
with the reason: tables that constrain rows by more than types, and tables whose data files alone do
not show the rows (deletion vectors, for example).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from broker.errors import ObjectMissingError, RemoteTierUnavailableError, TableMismatchError
from tiering.read.parquet_source import count_values, read_batches, read_columns
from tiering.store.object_store import ObjectStore
from tiering.table.delta_library import (
    NO_HOOKS,
    NO_RETRY,
    DeltaLibrary,
    add_actions_of,
    brief,
    column,
)
from tiering.table.delta_log import commits_between, log_key
from tiering.table.table import Commit

# Features with which a plain append is valid. Some may constrain rows: _refusal checks for that.
_WRITABLE: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # readers of the feed take inserts from the added files
        "checkConstraints",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_CONSTRAINING: Final = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
    "CURRENT_DEFAULT": "has a default",
    "__CHAR_VARCHAR_TYPE_STRING": "is of type CHAR or VARCHAR",
}
_LEGACY_WRITER_MAX: Final = 4  # above it: column mapping, identity columns, or named features


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSnapshot:
    """One version of the table. Immutable."""

    uri: str
    version: int
    table_id: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    transactions: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file to commit: already in the store, at ``path`` below the table."""

    path: str
    size_bytes: int
    partition_values: Mapping[str, str | None]  # as Delta spells them
    modified_us: int
    stats_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStats:
    """A version's statistics of one file; None where there are none."""

    path: str
    size_bytes: int
    records_count: int | None
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]
    nulls: Mapping[str, int | None]


class AppendTable:
    """One table's folder. Any thread; a lock lets one call of an object run at a time.

    Every method may raise RemoteTierUnavailableError, ObjectMissingError (a part of the log is
    gone), ObjectCorruptError, and TableMismatchError (rows cannot be appended safely).
    """

    def __init__(
        self, store: ObjectStore, *, storage_options: Callable[[], dict[str, str]] = dict
    ) -> None:
        """Bind to the folder that ``store`` is rooted at; makes no request."""
        self._store = store
        self._lock = threading.Lock()
        self._library = DeltaLibrary(store, storage_options)

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self._store.config.uri

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder."""
        return self._store

    def find(self, ids: Sequence[str] = ()) -> AppendSnapshot | None:
        """Load the newest version; None when there is no table.

        ``ids`` are the wanted transactions. They are requested one by one if a part of the log is
        gone; otherwise all transactions are read.
        """
        with self._lock:
            table = self._library.newest()
            return None if table is None else self._snapshot_of(table, ids)

    def create(
        self,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str],
        name: str | None,
        properties: Mapping[str, str],
    ) -> AppendSnapshot:
        """Create an empty table unless the folder has one; return the newest version."""
        try:
            with self._lock:
                self._library.create(
                    schema, partition_by=partition_by, name=name, properties=properties
                )
        except (DeltaError, OSError) as cause:
            # Another process may have created the table meanwhile; then find returns that one.
            found = self.find()
            if found is None:
                raise RemoteTierUnavailableError(
                    f"cannot create the table {self.uri}: {brief(cause)}", uri=self.uri
                ) from cause
            return found
        self._store.make_durable([log_key(0)])
        found = self.find()
        assert found is not None, "it was created"
        return found

    def add_columns(self, base: AppendSnapshot, fields: Sequence[pa.Field]) -> bool:
        """Add nullable columns as version ``base.version + 1``; False when that exists already."""
        with self._lock:
            wanted = Schema.from_arrow(pa.schema(list(fields))).fields
            done = self._library.write(
                base.version,
                lambda table: table.alter.add_columns(
                    list(wanted),
                    commit_properties=CommitProperties(max_commit_retries=NO_RETRY),
                    post_commithook_properties=NO_HOOKS,
                ),
                "add columns to",
            )
        if done:
            self._store.make_durable([log_key(base.version + 1)])
        return done

    def commit(
        self,
        base: AppendSnapshot,
        files: Sequence[AddedFile],
        *,
        transactions: Mapping[str, int],
        metadata: Mapping[str, Any],
        removed: Sequence[FileStats] = (),
    ) -> bool:
        """Add files, remove others, set transactions, all as version ``base.version + 1``.

        Returns False if that version exists already. Then either another process wrote it, or this
        commit succeeded and only its answer was lost: :meth:`committed_as` tells which. The same
        holds after RemoteTierUnavailableError.
        """
        with self._lock:
            done = self._library.append(
                base.version,
                [
                    *(_add_action(file) for file in files),
                    *(_remove_action(file) for file in removed),
                ],
                schema=base.schema,
                partition_by=base.partition_columns,
                metadata=metadata,
                transactions=transactions,
            )
        if done:
            self._store.make_durable([log_key(base.version + 1)])
        return done

    def committed_as(self, commit_id: str, *, above: int) -> int | None:
        """Return the version above ``above`` with this commit id, made durable, or None."""
        with self._lock:
            table = self._library.newest()
            newest = above if table is None else table.version()
        found: list[Commit] = commits_between(self._library.store, above=above, up_to=newest)
        for commit in found:
            if commit.commit_id == commit_id:
                self._store.make_durable([log_key(commit.version)])
                return commit.version
        return None

    def files(self, snapshot: AppendSnapshot, columns: Sequence[str]) -> list[FileStats]:
        """Return every file of a version with the statistics of these columns.

        For a partition column, the file's partition value is both the least and the greatest.
        """
        with self._lock:
            actions = add_actions_of(self._library.at(snapshot.version))
        counts, sizes = column(actions, "num_records"), column(actions, "size_bytes")
        facts: dict[str, tuple[list[Any], list[Any], list[Any]]] = {}
        for name in columns:
            if name in snapshot.partition_columns:
                values = column(actions, f"partition.{name}")
                nulls = [
                    count if value is None else 0
                    for value, count in zip(values, counts, strict=True)
                ]
                facts[name] = (values, values, nulls)
            else:
                facts[name] = (
                    column(actions, f"min.{name}"),
                    column(actions, f"max.{name}"),
                    column(actions, f"null_count.{name}"),
                )
        return [
            FileStats(
                path=path,
                size_bytes=sizes[row],
                records_count=counts[row],
                least={name: facts[name][0][row] for name in columns},
                greatest={name: facts[name][1][row] for name in columns},
                nulls={name: facts[name][2][row] for name in columns},
            )
            for row, path in enumerate(column(actions, "path"))
        ]

    def count_values(self, path: str, name: str) -> int:
        """Read a data file and count its rows that have a value in a column."""
        return count_values(self._store, self._key(path), name)

    def read_columns(self, path: str, names: Sequence[str]) -> pa.Table:
        """Read those of the named columns that a data file has."""
        return read_columns(self._store, self._key(path), names)

    def read_batches(self, path: str, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Read a data file in batches; see :func:`tiering.read.parquet_source.read_batches`."""
        yield from read_batches(self._store, self._key(path), bytes_max=bytes_max)

    def _key(self, path: str) -> str:
        """Return the key of a data file. A foreign writer may have escaped the path in the log."""
        if "%" not in path:
            return path
        try:
            self._store.head(path)
        except ObjectMissingError:
            return unquote(path)
        return path

    def checkpoint(self) -> None:
        """Write a Delta checkpoint of the newest version, so that opening stays quick."""
        with self._lock:
            self._library.checkpoint()

    def _snapshot_of(self, table: DeltaTable, ids: Sequence[str]) -> AppendSnapshot:
        metadata = table.metadata()
        properties = dict(metadata.configuration)
        refusal = _refusal(table, properties)
        if refusal is not None:
            raise TableMismatchError(
                f"{self.uri} {refusal}; rows are not appended to such a table", uri=self.uri
            )
        return AppendSnapshot(
            uri=self.uri,
            version=table.version(),
            table_id=str(metadata.id),
            schema=pa.schema(table.schema().to_arrow()),
            partition_columns=tuple(metadata.partition_columns),
            properties=properties,
            transactions=dict(self._library.transactions(table, ids)),
        )


def _refusal(table: DeltaTable, properties: Mapping[str, str]) -> str | None:
    """Return the reason why rows cannot be appended safely; None if they can."""
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    foreign = sorted(features - _WRITABLE)
    if properties.get("delta.columnMapping.mode", "none") != "none":
        return "uses column mapping"
    if foreign:
        return f"uses {', '.join(foreign)}"
    if protocol.writer_features is None and protocol.min_writer_version > _LEGACY_WRITER_MAX:
        return f"needs writer version {protocol.min_writer_version}"
    if "headwater.stream_json" in properties:
        return "is a stream's own table, which only the broker and its jobs write"
    for name in properties:
        if name.startswith("delta.constraints."):
            return f"has the constraint {name.removeprefix('delta.constraints.')}"
    if "delta.setTransactionRetentionDuration" in properties:
        return (
            "forgets transactions (delta.setTransactionRetentionDuration), and with them the "
            "appender's watermarks"
        )
    for field in json.loads(table.schema().to_json())["fields"]:
        for key, what in _CONSTRAINING.items():
            if key in (field.get("metadata") or {}):
                return f"has column {field['name']}, which {what}"
    return None


def _remove_action(file: FileStats) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        data_change=True,
        deletion_timestamp=time.time_ns() // 1_000_000,
        size=file.size_bytes,
        partition_values={},
    )


def _add_action(file: AddedFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition_values),
        modification_time=file.modified_us // 1000,
        data_change=True,
        stats=file.stats_json,
    )
