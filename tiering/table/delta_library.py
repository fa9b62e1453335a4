"""delta-rs on one table's folder: open, step forward, commit a version, checkpoint.

Stream tables (delta_table.py) and tables of jobs (delta_append.py) share this code. It is the
fence: a commit is written as version ``v + 1`` of exactly the version ``v`` that the caller
checked, with ``If-None-Match`` and without a retry by the library. The second of two writers gets
False, reads the table again and decides anew.

delta-rs reports most failures as text. We do not parse it: after a failure, the log's files are
listed through the object store, and the error names the missing file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction

from broker.codec.checksum import crc32c
from broker.errors import (
    HeadwaterError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
)
from tiering.store.deadline import call_with_deadline
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.table.delta_log import (
    CHECKPOINT,
    LAST_CHECKPOINT,
    LOG_FILE,
    Transactions,
    fold,
    log_key,
    transactions_at,
)
from tiering.table.log_copy import LogCopy, empty_copy, fetch_log

_T = TypeVar("_T")

NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
NO_RETRY: Final = 0
_FOLD_COMMITS_MAX: Final = 100  # with more commits, starting from a checkpoint is cheaper


class DeltaLibrary:
    """One table's log, read and written by delta-rs. Not thread-safe: its owner has a lock."""

    def __init__(
        self,
        store: ObjectStore,
        storage_options: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """Bind to the folder that ``store`` is rooted at; makes no request."""
        self._store = store
        self._storage_options = storage_options
        self._copy = store if isinstance(store, LogCopy) else None  # of a remote table's log
        self._deadline_s = store.config.upload_deadline_s
        self._older: LogCopy | None = None  # of a version below the copy's checkpoint
        self._newest: DeltaTable | None = None
        # The version that was opened last in a folder, and the log's files up to it.
        self._read: tuple[list[ObjectInfo], DeltaTable] | None = None
        self._known: tuple[int, Transactions] | None = None  # a version and its transactions

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self._store.config.uri

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder, with its log as it was loaded last."""
        return self._copy or self._store

    def newest(self) -> DeltaTable | None:
        """Return the newest version; if possible by an update of the version loaded last."""
        found = self._from_copy(None)
        if found is None and self._copy is not None:
            return None  # the log was listed, and there is none
        return found or self.newest_in_store()

    def newest_in_store(self) -> DeltaTable | None:
        """Return the newest version as :meth:`newest`, for calls that write more than a commit."""
        table = self._newest
        if table is not None and self._copy is None:
            try:
                # If that version's commit is gone, the log was cut: then load the table anew.
                self._store.head(log_key(table.version()))
                self.guarded(table.update_incremental, "update")
            except (ObjectMissingError, ObjectCorruptError, RemoteTierUnavailableError) as error:
                self._newest = self._known = None
                if isinstance(error, RemoteTierUnavailableError):
                    raise
            else:
                return table
        try:
            table = self._loaded(None)
        except ObjectMissingError as error:
            if error.facts.get("key") == "_delta_log":
                return None
            raise
        if self._copy is None:
            self._newest = table
        return table

    def at(self, version: int) -> DeltaTable:
        """Return one version; the version that was loaded last costs no request."""
        table = self._newest
        return table if table is not None and table.version() == version else self.opened(version)

    def opened(self, version: int) -> DeltaTable:
        """Load one version; raises ObjectMissingError if it does not exist."""
        if self._store.config.kind == "local":
            return self._in_folder(version)
        return self._from_copy(version) or self._loaded(version)

    def _in_folder(self, version: int) -> DeltaTable:
        """Load one version from a local folder; once, while its log is the same."""
        later = log_key(version + 1).removesuffix(".json")
        log = [  # names that are no number belong to every version
            info
            for info in self._store.list("_delta_log/")
            if not later <= info.key < "_delta_log/_"
        ]
        if self._read is None or self._read[0] != log or self._read[1].version() != version:
            if self._known is not None and not self._has_same_commit(self._known[0], log):
                self._known = None  # of a table that was in this folder before
            self._read = log, self._loaded(version)
        return self._read[1]

    def _has_same_commit(self, version: int, log: Sequence[ObjectInfo]) -> bool:
        """Tell whether a commit is in a folder's log as it was at the last look."""
        before = [] if self._read is None else self._read[0]
        commits = [{one for one in side if one.key == log_key(version)} for side in (before, log)]
        return commits[0] == commits[1] != set()

    def _from_copy(self, version: int | None) -> DeltaTable | None:
        """Bring the copy of the log forward and load a version; None without one, or a table."""
        known = self._copy
        copy = fetch_log(self._store, version, known=known)
        if copy is None:
            if known is not None:
                self._copy = self._newest = self._known = None
            return None
        if known is not None and version is not None and version < known.base:
            self._older = copy  # delta-rs may still read its folder
            return self._in_copy(copy, version)
        self._copy = copy
        if known is None or known.folder != copy.folder:
            self._newest = self._known = None
        if copy.version < 0:
            return None
        if self._newest is None:
            self._newest = self._in_copy(copy, copy.version)
        elif self._newest.version() != copy.version:
            self.guarded(self._newest.update_incremental, "update")
        return self._newest if version in {None, copy.version} else self._in_copy(copy, version)

    def _in_copy(self, copy: LogCopy, version: int | None) -> DeltaTable:
        return self.guarded(lambda: DeltaTable(copy.folder, version=version), "open", version)

    def _loaded(self, version: int | None) -> DeltaTable:
        """Load one version, or the newest, from the store."""

        def load() -> DeltaTable:
            return DeltaTable(self.uri, version=version, storage_options=self._storage_options())

        try:
            return self.guarded(load, "open", version=version)
        except ObjectCorruptError:
            # The log was whole when it was listed after the failure. Perhaps another process wrote
            # its first commit between the two. If the log is damaged, the second try fails too.
            return self.guarded(load, "open", version=version)

    def create(
        self,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str],
        name: str | None,
        properties: Mapping[str, str],
    ) -> bool:
        """Write version 0 of an empty table; False if the folder has a table already.

        Errors of the library are not translated.
        """
        copy = None
        if self._store.config.kind != "local":
            if next(self._store.list("_delta_log/"), None) is not None:
                return False
            copy = self._copy = empty_copy(self._store)
            self._newest = self._known = None
        call_with_deadline(
            lambda: DeltaTable.create(
                self.uri if copy is None else str(copy.folder),
                schema=schema,
                mode="error",
                partition_by=list(partition_by),
                name=name,
                configuration=dict(properties),
                storage_options=self._storage_options() if copy is None else None,
                # With a retry, the second of two creators would write version 1 with a new table id
                # on top of the first one's table.
                commit_properties=CommitProperties(max_commit_retries=NO_RETRY),
                post_commithook_properties=NO_HOOKS,
                raise_if_key_not_exists=False,
            ),
            seconds=self._deadline_s,
            what=f"create {self.uri}",
        )
        return copy is None or self._put(copy, 0)

    def append(
        self,
        base: int,
        actions: Sequence[AddAction | RemoveAction],
        *,
        schema: pa.Schema,
        partition_by: Sequence[str],
        metadata: Mapping[str, Any],
        transactions: Mapping[str, int],
    ) -> bool:
        """Write version ``base + 1``; False when that version exists already.

        Raises RemoteTierUnavailableError when the outcome is unknown.
        """
        return self.write(
            base,
            lambda table: table.create_write_transaction(
                list(actions),
                mode="append",
                schema=schema,
                partition_by=list(partition_by),
                post_commithook_properties=NO_HOOKS,
                commit_properties=CommitProperties(
                    custom_metadata=dict(metadata),
                    max_commit_retries=NO_RETRY,
                    app_transactions=[
                        Transaction(app_id, version) for app_id, version in transactions.items()
                    ],
                ),
            ),
            "commit",
        )

    def write(self, base: int, commit: Callable[[DeltaTable], object], what: str) -> bool:
        """Write version ``base + 1`` by one commit of the library, without a retry; else False.

        With a copy of the log, the library writes the commit into the copy, and this is put into
        the store: one request. Raises as :meth:`append`.
        """
        table = self.at(base)
        copy = self._copy
        if copy is not None and base != copy.version:
            return False  # the next version is in the copy, so it exists
        try:
            self.guarded(lambda: commit(table), what)
        except (CommitFailedError, SchemaMismatchError):
            return False
        return copy is None or self._put(copy, base + 1)

    def _put(self, copy: LogCopy, version: int) -> bool:
        """Put a commit that the library wrote into the copy; False if the version is taken."""
        written = copy.folder / log_key(version)
        body, stored = written.read_bytes(), None
        try:
            stored = self._store.put_if_absent(log_key(version), body, crc32c=crc32c(body))
        finally:
            if stored is None:
                written.unlink()
        return stored is not None

    def checkpoint(self) -> None:
        """Write a Delta checkpoint of the newest version, so that opening stays quick."""
        table = self.newest_in_store()
        if table is None:
            return
        self.guarded(table.create_checkpoint, "checkpoint")
        written = [
            info.key
            for info in self._store.list(f"_delta_log/{table.version():020}.checkpoint")
            if CHECKPOINT.match(info.key)
        ]
        self._store.make_durable([*written, LAST_CHECKPOINT])

    def transactions(self, table: DeltaTable, ids: Sequence[str]) -> Transactions:
        """Return a version's transactions: all if the log is whole, else those of ``ids``."""
        version = table.version()
        try:
            if self._known is not None and 0 <= version - self._known[0] <= _FOLD_COMMITS_MAX:
                above, known = self._known
                found = fold(self.store, known, above=above, up_to=version)
            else:
                found = transactions_at(self.store, version)
        except ObjectMissingError:
            # The log was cleaned up, or its checkpoints have a form that we do not read: ask
            # delta-rs for each id.
            answers = {
                app_id: self.guarded(partial(table.transaction_version, app_id), "transactions")
                for app_id in ids
            }
            # Not kept: the next call may ask for other ids.
            return {app_id: answer for app_id, answer in answers.items() if answer is not None}
        if self._known is None or version >= self._known[0]:
            self._known = (version, found)
        return found

    def guarded(self, call: Callable[[], _T], what: str, version: int | None = None) -> _T:
        """Run a call of the library under the deadline and translate its errors."""
        try:
            return call_with_deadline(call, seconds=self._deadline_s, what=f"{what} {self.uri}")
        except (CommitFailedError, SchemaMismatchError):
            raise
        except (DeltaError, TableNotFoundError, OSError) as cause:
            self._newest = None
            raise self._diagnosed(cause, what, version) from cause
        except RemoteTierUnavailableError:
            self._newest = None
            raise

    def _diagnosed(self, cause: Exception, what: str, version: int | None) -> HeadwaterError:
        """List the log's files to find out what is wrong; errors of the store pass unchanged."""
        versions, checkpoints, hinted = [], [], False
        for info in self._store.list("_delta_log/"):
            if match := LOG_FILE.match(info.key):
                versions.append(int(match[1]))
            elif match := CHECKPOINT.match(info.key):
                checkpoints.append(int(match[1]))
            hinted = hinted or info.key == LAST_CHECKPOINT
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
        if hinted and not checkpoints:
            return ObjectMissingError(
                f"{self.uri}: {LAST_CHECKPOINT} names a checkpoint, and the log has none. The "
                "commits are all there, so delete that file; the next checkpoint writes it again",
                key=LAST_CHECKPOINT,
                uri=self.uri,
            )
        if isinstance(cause, OSError):
            return RemoteTierUnavailableError(f"{what} {self.uri}: {brief(cause)}", uri=self.uri)
        return ObjectCorruptError(
            f"{what} {self.uri}: {brief(cause)}", key="_delta_log", uri=self.uri
        )


def add_actions_of(table: DeltaTable) -> pa.Table:
    """Return a version's add actions, one row each, statistics flattened."""
    return pa.table(table.get_add_actions(flatten=True))


def column(actions: pa.Table, name: str) -> list[Any]:
    """Return a column of :func:`add_actions_of`; all None if there is no such column."""
    if name in actions.column_names:
        values: list[Any] = actions.column(name).to_pylist()
        return values
    return [None] * actions.num_rows


def brief(cause: BaseException) -> str:
    """Return the beginning of a library's message; the chained error has all of it."""
    return " ".join(str(cause).split())[:300]
