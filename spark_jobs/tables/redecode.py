"""Decodes rejected rows again and moves those that decode now into the decoded table.

There are two commits per file of rejected rows, each by compare-and-set. The first adds the rows
that decode now to the decoded table. The second replaces the file by one without these rows. If the
process dies in between, the rows are in both tables; the next run finds them in the decoded table
and only removes them from the rejected one, also if they do not decode in that run. Rows above
every watermark of the decoded table stay, because their append has not ended yet. The counts of
rows change with the rows, so that both tables can still be proved. Runs in the driver, one file at
a time, and each file in batches.

A rejected row does not name its stream, so both tables have to be of one stream alone.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.schema import ROW_SCHEMA
from broker.errors import FencedError, SchemaMismatchError, TableMismatchError
from spark_jobs.tables import schema_match
from spark_jobs.tables.committing import CommittingTable, State
from spark_jobs.tables.file_writer import FileWriter, Output, WrittenFile
from spark_jobs.tables.model import POSITIONS_DEFAULT, Source, Target, Transform, Transformed
from spark_jobs.tables.slice_task import opened

_BATCH_BYTES_MAX: Final = 32 * 1024 * 1024  # of rejected rows that are decoded at once

_Place = tuple[int, int]  # partition and offset

_log = logging.getLogger("headwater.tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redecoded:
    """The result of one run."""

    examined_count: int = 0
    rows_count: int = 0  # moved into the decoded table
    rejected_count: int = 0  # still rejected
    waiting_count: int = 0  # rows of appends that have not ended


class Redecoder:
    """Moves rows between two tables. One thread; any number of processes."""

    def __init__(
        self, target: Target, rejects: Target, source: Source, transform: Transform
    ) -> None:
        """Keep the arguments; makes no request. ``transform`` takes whole rows and may reject."""
        self._main = CommittingTable(target, source)
        self._rejects = CommittingTable(rejects, source)
        self._source = source
        self._transform = transform

    def run(self) -> Redecoded:
        """Process every file of rejected rows once. Blocks.

        Raises:
            TableMismatchError: a table holds records of another stream, too, or no rows can be
                taken out of the rejected table. Nothing was moved.
            StaleWatermarkError: another run moved the same rows; run again.
            HeadwaterError: as for an append.
        """
        state = self._rejects.find()
        if state is None:
            return Redecoded()
        self._rejects.require_removable(state)
        self._require_one_stream(state)
        counts: Counter[str] = Counter()
        for path in self._rejects.paths(state):
            counts.update(self._file(path))
        return Redecoded(
            examined_count=counts["examined"],
            rows_count=counts["rows"],
            rejected_count=counts["rejected"],
            waiting_count=counts["waiting"],
        )

    def _file(self, path: str) -> Mapping[str, int]:
        """Decode the rows of one file again; move those that decode now."""
        places = _places(self._rejects.read_columns(path, POSITIONS_DEFAULT))
        state = self._main.find()
        if state is None or not places:
            return {"examined": len(places), "waiting": len(places)}
        self._require_one_stream(state)
        held = {
            at: holder
            for at in places
            if (holder := _holder(state, self._source.stream_uuid, *at)) is not None
        }
        present = self._present(state, held)
        new = {at: holder for at, holder in held.items() if at not in present}
        moving = present | (self._add(path, state, new) if new else set())
        if moving:
            self._take_out(path, moving)
        moved = sum(at in moving for at in places)
        waiting = sum(at not in held for at in places)
        return {
            "examined": len(places),
            "rows": moved,
            "rejected": len(places) - moved - waiting,
            "waiting": waiting,
        }

    def _add(
        self, path: str, state: State, wanted: Mapping[_Place, tuple[str, int]]
    ) -> set[_Place]:
        """Commit the wanted rows that decode now to the decoded table; return their places.

        Raises:
            StaleWatermarkError: another run has moved rows since ``state``.
        """
        names = self._main.target.positions or POSITIONS_DEFAULT
        added: set[_Place] = set()
        files = _NewFiles(self._main, state, self._source, optional=names)
        with files:
            for stored in self._rejects.read_batches(path, bytes_max=_BATCH_BYTES_MAX):
                rows, places = self._decoded(stored, wanted)
                if places:
                    files.add(_with_positions(rows, places, names))
                    added.update(places)
            if added:
                files.commit(Counter(wanted[at] for at in added))
        return added

    def _decoded(
        self, stored: pa.RecordBatch, wanted: Mapping[_Place, tuple[str, int]]
    ) -> tuple[pa.RecordBatch, list[_Place]]:
        """Return the rows of the wanted places that decode now, and their places."""
        places = _places(stored)
        done = self._transform(_as_rows(stored))
        if not isinstance(done, Transformed) or (done.kept is None and done.rejected is not None):
            raise SchemaMismatchError("the transform rejects rows without kept=, the rows it kept")
        kept = list(range(stored.num_rows)) if done.kept is None else done.kept.to_pylist()
        chosen = [row for row, at in enumerate(kept) if places[at] in wanted]
        return (
            done.rows.take(pa.array(chosen, pa.int64())),
            [places[kept[row]] for row in chosen],
        )

    def _take_out(self, path: str, moving: set[_Place]) -> None:
        """Replace a file of rejected rows by one with only the rows that stay."""
        state = self._rejects.find()
        assert state is not None, "it was read just now"
        gone: Counter[int] = Counter()
        files = _NewFiles(self._rejects, state, self._source, optional=())
        with files:
            for stored in self._rejects.read_batches(path, bytes_max=_BATCH_BYTES_MAX):
                places = _places(stored)
                stays = [row for row, at in enumerate(places) if at not in moving]
                gone.update(number for number, offset in places if (number, offset) in moving)
                if stays:
                    files.add(stored.take(pa.array(stays, pa.int64())))
            # A rejected row does not name its appender, and only the sum of the counts is compared.
            taken: Counter[tuple[str, int]] = Counter()
            for (app, _, number), claim in state.claims.of.items():
                part = min(gone[number], claim.rows_count)
                if part:
                    taken[app, number] -= part
                    gone[number] -= part
            files.commit(taken, removed=(path,))

    def _require_one_stream(self, state: State) -> None:
        """Refuse a table that holds records of another stream, too."""
        uuid_ = self._source.stream_uuid
        others = sorted({stream for _, stream, _ in state.claims.of} - {uuid_})
        if others:
            raise TableMismatchError(
                f"{state.snapshot.uri} holds records of stream {others[0]} and of stream {uuid_}. "
                "A rejected record does not name its stream, so records cannot be decoded again "
                "where two streams share a table. Nothing was moved",
                uri=state.snapshot.uri,
                expected=uuid_,
                found=others[0],
            )

    def _present(self, state: State, wanted: Mapping[_Place, object]) -> set[_Place]:
        """Return which of these rows the table has already, read from its files."""
        if not wanted:
            return set()
        found: set[_Place] = set()
        low, high = min(at for _, at in wanted), max(at for _, at in wanted)
        names = self._main.target.positions or POSITIONS_DEFAULT
        for path, partition in self._main.paths_holding(state, low, high):
            rows = self._main.read_columns(path, names)
            offsets = rows.column(names[1]).to_pylist()
            numbers = (
                rows.column(names[0]).to_pylist()
                if names[0] in rows.column_names
                else [partition] * len(offsets)
            )
            found.update(at for at in zip(numbers, offsets, strict=True) if at in wanted)
        return found


class _NewFiles:
    """The files of one commit. Leaving the block by an error removes files of no commit."""

    def __init__(
        self, table: CommittingTable, state: State, source: Source, *, optional: Sequence[str]
    ) -> None:
        self._table = table
        self._state = state
        self._source = source
        self._optional = optional
        self._folder = f"appended/{uuid.uuid4().hex}"
        self._writer: FileWriter | None = None
        self._is_tried = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        if not self._is_tried or isinstance(error, FencedError | TableMismatchError):
            self._table.sweep(self._folder)

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows; the first ones open the files, and add columns if the target allows it."""
        if self._writer is None:
            names = self._table.target.positions or POSITIONS_DEFAULT
            state, fit = self._table.fitted(self._state, rows.schema, self._optional)
            properties = state.snapshot.properties
            output = Output(
                store=self._table.target.store,
                folder=self._folder,
                fit=fit,
                stats_columns=schema_match.stats_columns(fit, properties, names),
                note={"app": self._table.target.app, "stream_uuid": self._source.stream_uuid},
            )
            self._writer = FileWriter(opened(output.store), output, "redecoded")
            # The table was searched for the rows in the claims' version, before any column came.
            self._state = replace(state, claims=self._state.claims)
        self._writer.add(rows)

    def commit(
        self, counts: Mapping[tuple[str, int], int], *, removed: tuple[str, ...] = ()
    ) -> None:
        """Commit the files and the changes of the counts; errors as for ``replace``."""
        files: list[WrittenFile] = [] if self._writer is None else self._writer.finish()
        self._is_tried = True
        self._table.replace(
            self._state,
            files,
            removed,
            counts=counts,
            commit_id=self._folder,
            note={"redecode": True, "stream_uuid": self._source.stream_uuid},
        )


def _holder(state: State, stream: str, number: int, offset: int) -> tuple[str, int] | None:
    """Return the appender whose range has an offset; None if no range has it yet."""
    for (app, uuid_, partition), claim in state.claims.of.items():
        if (uuid_, partition) == (stream, number) and claim.start <= offset < claim.end:
            return app, number
    return None


def _places(stored: pa.Table | pa.RecordBatch) -> list[_Place]:
    return list(
        zip(
            stored.column("partition").to_pylist(),
            stored.column("offset").to_pylist(),
            strict=True,
        )
    )


def _as_rows(stored: pa.RecordBatch) -> pa.RecordBatch:
    """Return rejected rows in the form of the stream's rows."""
    columns = [pc.cast(stored.column(each.name), each.type) for each in ROW_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def _with_positions(
    rows: pa.RecordBatch, places: Sequence[_Place], names: tuple[str, str]
) -> pa.RecordBatch:
    """Return rows with the position columns; a transform may have them already."""
    for name, values, kind in zip(
        names, zip(*places, strict=True), (pa.int32(), pa.int64()), strict=True
    ):
        if rows.schema.get_field_index(name) < 0:
            rows = rows.append_column(name, pa.array(values, kind))
    return rows
