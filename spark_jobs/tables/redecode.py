"""Decodes rejected rows again and moves those that decode now into the decoded table.

There are two commits per file of rejected rows, each by compare-and-set. The first adds the rows
that decode now to the decoded table. The second replaces the file by one without these rows. If the
process dies in between, the rows are in both tables; the next run finds them in the decoded table
and only removes them from the rejected one. Rows above every watermark of the decoded table stay,
because their append has not ended yet. The counts of rows change with the rows, so that both tables
can still be proved. Runs in the driver, one file at a time.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.schema import ROW_SCHEMA
from broker.errors import FencedError, SchemaMismatchError
from spark_jobs.tables import schema_match
from spark_jobs.tables.committing import CommittingTable, State
from spark_jobs.tables.file_writer import FileWriter, Output, WrittenFile
from spark_jobs.tables.model import Source, Target, Transform, Transformed
from spark_jobs.tables.slice_task import opened
from tiering.read.parquet_source import read_columns

_POSITIONS: Final = ("partition", "offset")

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
            StaleWatermarkError: another run moved the same rows; run again.
            HeadwaterError: as for an append.
        """
        state = self._rejects.find()
        if state is None:
            return Redecoded()
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
        stored = read_columns(self._rejects.store, path).combine_chunks()
        state = self._main.find()
        if state is None or stored.num_rows == 0:
            return {"examined": stored.num_rows, "waiting": stored.num_rows}
        held = [_holder(state, self._source.stream_uuid, *at) for at in _places(stored)]
        batch = _as_rows(stored)
        done = self._transform(batch)
        if not isinstance(done, Transformed) or (done.kept is None and done.rejected is not None):
            raise SchemaMismatchError("the transform rejects rows without kept=, the rows it kept")
        kept = list(range(batch.num_rows)) if done.kept is None else done.kept.to_pylist()
        decoded = [(row, at) for row, at in enumerate(kept) if held[at] is not None]
        moving = {at for _, at in decoded}
        present = self._present(state, [_places(stored)[at] for at in moving])
        new = [(row, at) for row, at in decoded if _places(stored)[at] not in present]
        if new:
            places = [_places(stored)[at] for _, at in new]
            rows = done.rows.take(pa.array([row for row, _ in new], pa.int64()))
            self._add(state, rows, places)
        if moving:
            stays = [at for at in range(stored.num_rows) if at not in moving]
            gone = Counter(_places(stored)[at][0] for at in moving)
            self._take_out(path, stored.take(pa.array(stays, pa.int64())), gone)
        waiting = sum(holder is None for holder in held)
        return {
            "examined": stored.num_rows,
            "rows": len(moving),
            "rejected": stored.num_rows - len(moving) - waiting,
            "waiting": waiting,
        }

    def _add(self, state: State, rows: pa.RecordBatch, places: list[tuple[int, int]]) -> None:
        """Commit decoded rows to the table; raises if another run has moved rows meanwhile."""
        names = self._main.target.positions or _POSITIONS
        for name, values, kind in zip(
            names, zip(*places, strict=True), (pa.int32(), pa.int64()), strict=True
        ):
            if rows.schema.get_field_index(name) < 0:
                rows = rows.append_column(name, pa.array(values, kind))
        state, fit = self._main.fitted(state, rows.schema, names)
        output = Output(
            store=self._main.target.store,
            folder=f"appended/{uuid.uuid4().hex}",
            fit=fit,
            stats_columns=schema_match.stats_columns(fit, state.snapshot.properties, names),
            note={"app": self._main.target.app, "stream_uuid": self._source.stream_uuid},
        )
        files = _written(output, rows)
        added = Counter(
            holder
            for at in places
            if (holder := _holder(state, self._source.stream_uuid, *at)) is not None
        )
        self._committed(self._main, state, output.folder, files, added)

    def _take_out(self, path: str, stays: pa.Table, gone: Mapping[int, int]) -> None:
        """Replace a file of rejected rows by one with only the rows that stay."""
        state = self._rejects.find()
        assert state is not None, "it was read just now"
        folder = f"appended/{uuid.uuid4().hex}"
        files: list[WrittenFile] = []
        if stays.num_rows:
            names = self._rejects.target.positions or _POSITIONS
            _, fit = self._rejects.fitted(state, stays.schema, ())
            output = Output(
                store=self._rejects.target.store,
                folder=folder,
                fit=fit,
                stats_columns=schema_match.stats_columns(fit, state.snapshot.properties, names),
                note={"app": self._rejects.target.app, "stream_uuid": self._source.stream_uuid},
            )
            files = _written(output, stays.to_batches()[0])
        # A rejected row does not name its appender, and only the sum of the counts is compared.
        left = Counter(gone)
        taken: Counter[tuple[str, int]] = Counter()
        for (app, stream, number), claim in state.claims.of.items():
            if stream == self._source.stream_uuid and left[number]:
                part = min(left[number], claim.rows_count)
                taken[app, number] -= part
                left[number] -= part
        self._committed(self._rejects, state, folder, files, taken, removed=(path,))

    def _committed(
        self,
        table: CommittingTable,
        state: State,
        folder: str,
        files: list[WrittenFile],
        counts: Mapping[tuple[str, int], int],
        *,
        removed: tuple[str, ...] = (),
    ) -> None:
        try:
            table.replace(
                state,
                files,
                removed,
                counts=counts,
                commit_id=folder,
                note={"redecode": True, "stream_uuid": self._source.stream_uuid},
            )
        except FencedError:
            table.sweep(folder)
            raise

    def _present(self, state: State, places: list[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return which of these rows the table has already, read from its files."""
        if not places:
            return set()
        wanted = set(places)
        found: set[tuple[int, int]] = set()
        low, high = min(at for _, at in places), max(at for _, at in places)
        names = self._main.target.positions or _POSITIONS
        for path, partition in self._main.paths_holding(state, low, high):
            rows = read_columns(self._main.store, path, list(names))
            offsets = rows.column(names[1]).to_pylist()
            numbers = (
                rows.column(names[0]).to_pylist()
                if names[0] in rows.column_names
                else [partition] * len(offsets)
            )
            found |= wanted & set(zip(numbers, offsets, strict=True))
        return found


def _holder(state: State, stream: str, number: int, offset: int) -> tuple[str, int] | None:
    """Return the appender whose range has an offset; None if no range has it yet."""
    for (app, uuid_, partition), claim in state.claims.of.items():
        if (uuid_, partition) == (stream, number) and claim.start <= offset < claim.end:
            return app, number
    return None


def _places(stored: pa.Table) -> list[tuple[int, int]]:
    return list(
        zip(
            stored.column("partition").to_pylist(),
            stored.column("offset").to_pylist(),
            strict=True,
        )
    )


def _as_rows(stored: pa.Table) -> pa.RecordBatch:
    """Return rejected rows in the form of the stream's rows."""
    columns = [pc.cast(stored.column(each.name), each.type).combine_chunks() for each in ROW_SCHEMA]
    arrays = [one.chunk(0) if isinstance(one, pa.ChunkedArray) else one for one in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _written(output: Output, rows: pa.RecordBatch) -> list[WrittenFile]:
    writer = FileWriter(opened(output.store), output, "redecoded")
    writer.add(rows)
    return writer.finish()
