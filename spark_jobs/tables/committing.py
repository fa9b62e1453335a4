"""One target table: reads its claims, proves them, and commits the next rows.

A *claim* is what the transactions of an appender state: its range of a partition, and the number of
its rows. The fence: files are written for the watermarks of one version. They are committed on that
version, or on a later one that has exactly these watermarks and still has the columns for which the
files were written, and is still in the same term of a transform. Otherwise the appender has lost
the race and raises a typed error.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from broker.errors import (
    ObjectMissingError,
    RemoteTierUnavailableError,
    SchemaMismatchError,
    StaleWatermarkError,
    StreamRecreatedError,
    TableMismatchError,
    TableRolledBackError,
    UnavailableError,
)
from broker.model.offsets import OffsetRange
from spark_jobs.tables import plan, schema_match
from spark_jobs.tables.file_writer import WrittenFile
from spark_jobs.tables.model import POSITIONS_DEFAULT, Source, Target
from spark_jobs.tables.plan import AppendClaim, AppendClaims, AppendFence, Begun, TransformTerm
from spark_jobs.tables.row_counts import FileRows, check_rows
from spark_jobs.tables.schema_match import Fit
from tiering.read.lake import storage_options_of
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store
from tiering.table.delta_append import AddedFile, AppendSnapshot, AppendTable, FileStats

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS_MAX: Final = 30
_BACKOFF_S: Final = 0.02
_BACKOFF_S_MAX: Final = 1.0
_APPEND_ONLY: Final = "delta.appendOnly"
_CHECKPOINT_EVERY: Final = 20  # versions between checkpoints, if the table has no such property

_log = logging.getLogger("headwater.tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The table at one version, with its claims; ``mine`` are those of this appender."""

    snapshot: AppendSnapshot
    claims: AppendClaims
    mine: Mapping[int, AppendClaim]


class CommittingTable:
    """A target and its fence. One thread."""

    def __init__(self, target: Target, source: Source) -> None:
        """Keep the arguments; makes no request."""
        self._target = target
        self._source = source
        self._store = open_store(target.store)
        self._table = AppendTable(self._store, storage_options=storage_options_of(self._store))
        self._proved = -1  # the version whose rows were counted, or our own commit on top of it
        self._newest: tuple[int, str] | None = None  # the newest version seen, and the table's id
        self._properties: Mapping[str, str] = {}
        self._counted: dict[str, int] = {}  # rows with an offset, for files without statistics

    @property
    def store(self) -> ObjectStore:
        """The objects below the table's folder."""
        return self._store

    @property
    def target(self) -> Target:
        """The target of this appender."""
        return self._target

    def find(self, partitions: Iterable[int] = ()) -> State | None:
        """Load the newest version and prove it; None if there is no table.

        Raises:
            TableMismatchError: the rows differ from the appended ones, or rows cannot be appended
                to this table safely.
            TableRolledBackError: the table is older than a version that this object saw.
            StreamRecreatedError: this appender filled it from another incarnation of the stream.
        """
        app, uuid = self._target.app, self._source.stream_uuid
        ids = [each for number in partitions for each in plan.all_ids(app, uuid, number)]
        ids += plan.term_ids(app, uuid)
        snapshot = self._table.find(ids)
        self._require_progress(snapshot)
        if snapshot is None:
            return None
        claims = plan.claims_of(snapshot.transactions)
        strangers = claims.strangers(app, uuid)
        if strangers:
            raise StreamRecreatedError(
                f"{snapshot.uri} was filled by {app!r} from stream {strangers[0]}, but "
                f"{self._source.stream} is {uuid} now; use another app name or another table",
                expected=strangers[0],
                found=uuid,
            )
        self._prove(snapshot, claims)
        return State(
            snapshot=snapshot,
            claims=claims,
            mine=claims.mine(app, uuid),
        )

    def ensure(self, rows: pa.Schema, partitions: Iterable[int]) -> State:
        """Return the newest version; create a table for such rows if there is none.

        Raises:
            ObjectMissingError: there is no table, and ``target.create`` is False.
            SchemaMismatchError: no table can have such rows.
        """
        found = self.find(partitions)
        if found is not None:
            return found
        target = self._target
        if not target.create:
            raise ObjectMissingError(
                f"there is no table at {target.uri}, and the target has create=False: create the "
                "table, correct the URI, or leave create out",
                key="_delta_log",
            )
        self._table.create(
            schema_match.new_table(rows, target.partition_by),
            partition_by=target.partition_by,
            name=None,
            properties=target.properties,
        )
        found = self.find(partitions)
        assert found is not None, "it was created"
        return found

    def fitted(self, state: State, rows: pa.Schema, optional: Sequence[str]) -> tuple[State, Fit]:
        """Match rows with the table; add columns first if ``target.evolve`` allows it.

        Raises:
            SchemaMismatchError: names the column that does not match.
        """
        asked = self._target.partition_by
        for _ in range(_ATTEMPTS_MAX):
            snapshot = state.snapshot
            if asked and tuple(asked) != snapshot.partition_columns:
                raise SchemaMismatchError(
                    f"{snapshot.uri} is partitioned by {list(snapshot.partition_columns)}, not by "
                    f"{list(asked)}"
                )
            fit = schema_match.match(
                rows,
                snapshot.schema,
                partition_columns=snapshot.partition_columns,
                evolve=self._target.evolve,
                optional=optional,
            )
            if not fit.additions:
                return state, fit
            if self._table.add_columns(snapshot, fit.additions):
                _log.info(
                    "columns_added uri=%s columns=%s",
                    snapshot.uri,
                    ",".join(each.name for each in fit.additions),
                )
            again = self.find(state.mine)
            assert again is not None, "find raises if the table is gone"
            state = again
        raise self._too_busy()

    def commit(
        self,
        planned: State,
        fit: Fit,
        files: Sequence[WrittenFile],
        ranges: Mapping[int, OffsetRange],
        *,
        fence: AppendFence,
        rows: Mapping[int, int],
        lineages: Mapping[int, str],
        transform: int | None,
        commit_id: str,
        note: Mapping[str, Any],
    ) -> int:
        """Add files and move watermarks, all or nothing; return the version, which is durable.

        Raises:
            StaleWatermarkError: the watermarks, the columns or the term differ from those for which
                the files were written. Nothing was committed.
            OverlapError: an appender of another name has appended some of these offsets.
            RemoteTierUnavailableError: the outcome is unknown; the next append finds out.
        """
        app, uuid = self._target.app, self._source.stream_uuid

        def transactions(state: State) -> dict[str, int]:
            plan.require_term(fence, planned.claims, state.claims)
            plan.require_unmoved(planned.mine, state.mine, ranges)
            known = planned.claims.others(app, uuid)  # the plan took these into account
            others = [each for each in state.claims.others(app, uuid) if each not in known]
            plan.require_apart(ranges, others)
            self._require_shape(planned, state, fit)
            return plan.moved(
                app, uuid, state.mine, ranges, rows, lineages=lineages, transform=transform
            )

        text = f"headwater {app} {_ranges_text(ranges)}"
        return self._committed(
            planned, files, transactions, commit_id=commit_id, note=note, text=text
        )

    def enter(self, planned: State, term: TransformTerm, *, highest: bool) -> None:
        """Put the table into a term of this appender, durably.

        ``highest`` also requires a number above those of all appenders. The decoded table requires
        it, so no number is there twice; the rejected table follows.

        Raises:
            StaleWatermarkError: another append has begun a term since ``planned``.
            RemoteTierUnavailableError: the outcome is unknown.
        """
        app, uuid = self._target.app, self._source.stream_uuid
        number_id, transform_id = plan.term_ids(app, uuid)
        assert term.transform is not None, "a transform begins a term"
        moves = {number_id: term.number, transform_id: term.transform}

        def transactions(state: State) -> dict[str, int]:
            below = term.number if highest else None
            plan.require_own_term(planned.claims, state.claims, app, uuid, below=below)
            return moves

        text = f"headwater {self._target.app} term {term.number}"
        self._committed(
            planned, [], transactions, commit_id=f"term/{uuid4().hex}", note=moves, text=text
        )

    def replace(
        self,
        planned: State,
        files: Sequence[WrittenFile],
        removed: Sequence[str],
        *,
        counts: Mapping[tuple[str, int], int],
        commit_id: str,
        note: Mapping[str, Any],
    ) -> int:
        """Add and remove files below the watermarks, and change the counts of rows accordingly.

        ``counts`` has the changes, per (app, partition) of this stream. Errors as for
        :meth:`commit` and :meth:`require_removable`; StaleWatermarkError also if another process
        rewrote a file of ``removed``.
        """
        uuid = self._source.stream_uuid

        def transactions(state: State) -> dict[str, int]:
            if removed:
                self.require_removable(state)
            keys = [(app, uuid, number) for app, number in counts]
            now = {key: state.claims.of.get(key) for key in keys}
            there = {file.path for file in self._table.files(state.snapshot, ())}
            if now != {key: planned.claims.of.get(key) for key in keys} or set(removed) - there:
                raise StaleWatermarkError(
                    f"{state.snapshot.uri} has changed since version {planned.snapshot.version}; "
                    "run the job again",
                    expected=planned.snapshot.version,
                    found=state.snapshot.version,
                )
            return plan.recounted(state.claims, uuid, counts)

        gone = [
            file for file in self._table.files(planned.snapshot, ()) if file.path in set(removed)
        ]
        text = f"headwater {self._target.app} redecode"
        return self._committed(
            planned, files, transactions, commit_id=commit_id, note=note, text=text, removed=gone
        )

    def _committed(
        self,
        planned: State,
        files: Sequence[WrittenFile],
        transactions: Callable[[State], dict[str, int]],
        *,
        commit_id: str,
        note: Mapping[str, Any],
        text: str,
        removed: Sequence[FileStats] = (),
    ) -> int:
        """Commit on the first version whose state ``transactions`` accepts; see :meth:`commit`."""
        metadata = {
            "headwater.commit_id": commit_id,
            "headwater.append": json.dumps(note),
            "userMetadata": text,
        }
        added = [_added(file) for file in files]
        state = planned
        for attempt in range(_ATTEMPTS_MAX):
            base = state.snapshot.version
            moves = transactions(state)
            try:
                done = self._table.commit(
                    state.snapshot, added, transactions=moves, metadata=metadata, removed=removed
                )
            except RemoteTierUnavailableError:
                found = self._table.committed_as(commit_id, above=base)
                if found is None:
                    raise
                return self._note_own_version(found, base)
            if done:
                return self._note_own_version(base + 1, base)
            found = self._table.committed_as(commit_id, above=base)
            if found is not None:  # the commit was written, and only the answer was lost
                return self._note_own_version(found, base)
            pause = min(_BACKOFF_S_MAX, _BACKOFF_S * 2**attempt)
            threading.Event().wait(random.uniform(0, pause))  # noqa: S311  (no secret)
            again = self.find(planned.mine)
            assert again is not None, "find raises if the table is gone"
            state = again
        raise self._too_busy()

    def require_removable(self, state: State) -> None:
        """Check that rows may be taken out of the table.

        Raises:
            TableMismatchError: its properties forbid that.
        """
        if state.snapshot.properties.get(_APPEND_ONLY, "").lower() == "true":
            raise TableMismatchError(
                f"{state.snapshot.uri} has the property {_APPEND_ONLY}, so no rows can be taken "
                "out of it. Remove the property, then run the job again",
                uri=state.snapshot.uri,
            )

    def read_columns(self, path: str, names: Sequence[str]) -> pa.Table:
        """Read those of the named columns that a data file has."""
        return self._table.read_columns(path, names)

    def read_batches(self, path: str, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Read a data file in order, in batches of about ``bytes_max`` bytes at most."""
        return self._table.read_batches(path, bytes_max=bytes_max)

    def paths(self, state: State) -> list[str]:
        """Return the data files of a version."""
        return [file.path for file in self._table.files(state.snapshot, ())]

    def paths_holding(self, state: State, low: int, high: int) -> list[tuple[str, int | None]]:
        """Return the files that may hold offsets ``low`` to ``high``, with their partition."""
        partition, offset = self._target.positions or POSITIONS_DEFAULT
        found = []
        for file in self._table.files(state.snapshot, (partition, offset)):
            least, greatest = file.least[offset], file.greatest[offset]
            if None not in (least, greatest) and (greatest < low or least > high):
                continue
            found.append((file.path, file.least[partition]))
        return found

    def sweep(self, folder: str, *, keep: Sequence[WrittenFile] = ()) -> None:
        """Delete the files of an append's own folder, except ``keep``; only logs a failure.

        Call this only if it is certain that no commit names the other files. If a task still runs
        and stores a file later, that file stays an orphan until a VACUUM of the table.
        """
        kept = {file.path for file in keep}
        try:
            orphans = [info.key for info in self._store.list(f"{folder}/") if info.key not in kept]
            self._store.erase(orphans)
        except UnavailableError as error:
            _log.warning("orphans_left uri=%s folder=%s: %s", self._target.uri, folder, error)

    def _note_own_version(self, version: int, base: int) -> int:
        """Note a version of our own: if its base was counted, its rows need no counting."""
        if version == base + 1 and self._proved == base:
            self._proved = version
        if self._newest is not None:
            self._newest = (max(version, self._newest[0]), self._newest[1])
        if version % _checkpoint_interval(self._properties) == 0:
            try:
                self._table.checkpoint()
            except RemoteTierUnavailableError as error:  # the commit is valid without it
                _log.warning("checkpoint_failed uri=%s error=%s", self._target.uri, error)
        return version

    def _require_progress(self, snapshot: AppendSnapshot | None) -> None:
        """Refuse a table that was rolled back or replaced while this object was in use."""
        if self._newest is not None:
            version, table_id = self._newest
            if snapshot is None or snapshot.version < version or snapshot.table_id != table_id:
                found = "no table" if snapshot is None else f"version {snapshot.version}"
                raise TableRolledBackError(
                    f"{self._target.uri} was at version {version}, but there is {found} now: its "
                    "log was cut, or the table was replaced",
                    uri=self._target.uri,
                    expected=version,
                    found=-1 if snapshot is None else snapshot.version,
                )
        if snapshot is not None:
            self._newest = (snapshot.version, snapshot.table_id)
            self._properties = snapshot.properties

    def _require_shape(self, planned: State, found: State, fit: Fit) -> None:
        before, now = planned.snapshot, found.snapshot
        if before is now or schema_match.still_fits(fit, now.schema, now.partition_columns):
            return
        raise StaleWatermarkError(
            f"the columns of {now.uri} changed between versions {before.version} and "
            f"{now.version}, while rows were written for it; append again",
            expected=before.version,
            found=now.version,
        )

    def _prove(self, snapshot: AppendSnapshot, claims: AppendClaims) -> None:
        """Count the table's rows, once per version that another process committed."""
        positions = self._target.positions
        if snapshot.version == self._proved or not self._target.verify or positions is None:
            return
        partition, offset = positions
        if any(snapshot.schema.get_field_index(name) < 0 for name in positions):
            return
        files = []
        for file in self._table.files(snapshot, positions):
            least, greatest = file.least[partition], file.greatest[partition]
            rows = _rows_with_offset(file.records_count, file.nulls[offset])
            if rows is None:  # a file without statistics, or from before the column was added
                rows = self._counted.get(file.path)
                if rows is None:
                    rows = self._table.count_values(file.path, offset)
                self._counted[file.path] = rows
            files.append(
                FileRows(
                    path=file.path,
                    rows_count=rows,
                    partition=least if least == greatest else None,
                    min_offset=file.least[offset],
                    max_offset=file.greatest[offset],
                )
            )
        check_rows(files, claims, uri=snapshot.uri)
        self._proved = snapshot.version

    def _too_busy(self) -> RemoteTierUnavailableError:
        return RemoteTierUnavailableError(
            f"{self._target.uri}: other processes committed first {_ATTEMPTS_MAX} times in a row",
            uri=self._target.uri,
        )


def begun(main: CommittingTable, rejects: CommittingTable, uuid: str) -> list[Begun]:
    """Return the ranges of which only the rejected rows are committed, of all appenders.

    Without the first table nothing was begun: an append creates it before it commits rows. Creates
    nothing; errors as for :meth:`CommittingTable.find`.
    """
    rejected = rejects.find()
    if rejected is None or not rejected.claims.of:
        return []
    decoded = main.find()
    return [] if decoded is None else plan.begun(decoded.claims, rejected.claims, uuid)


def _rows_with_offset(count: int | None, nulls: int | None) -> int | None:
    """Return the number of rows with an offset; None if the file has no such statistics."""
    if count == 0:
        return 0
    return None if count is None or nulls is None else count - nulls


def _checkpoint_interval(properties: Mapping[str, str]) -> int:
    text = properties.get("delta.checkpointInterval", "")
    return int(text) if text.isdigit() and int(text) > 0 else _CHECKPOINT_EVERY


def _added(file: WrittenFile) -> AddedFile:
    return AddedFile(
        path=file.path,
        size_bytes=file.size_bytes,
        partition_values=file.partition_values,
        modified_us=file.modified_us,
        stats_json=file.stats_json,
    )


def _ranges_text(ranges: Mapping[int, OffsetRange]) -> str:
    return " ".join(f"{number}:{offsets}" for number, offsets in sorted(ranges.items()))
