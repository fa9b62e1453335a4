"""Exactly-once append of offset ranges to a Delta table: the library under every job.

    ranges ─ cut at the watermarks of version v ─ slices ─ tasks write Parquet ─ commit on v, or on
    a later version whose watermarks are the same: files, statistics and watermarks in one

Only the table decides what is appended: no checkpoint of a job, no name of a query. If several
appenders have one name (a second one, a killed one, a paused one that wakes up late), exactly one
commits a range, and the others get a typed error. Rejected rows go to a second table. That table is
committed first, so that every row is in one of the two tables. Its claims also note the transform:
if an append dies between the two commits, another transform may not judge the same rows again. Both
tables hold the term of each appender's transform; what another one has planned before for offsets
that the two may share is not committed.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.errors import (
    FencedError,
    GapError,
    InvalidRequestError,
    OverlapError,
    SchemaMismatchError,
    StaleWatermarkError,
    TableMismatchError,
)
from broker.model.offsets import OffsetRange
from spark_jobs.sessions import parallelism
from spark_jobs.tables import committing, plan, schema_match
from spark_jobs.tables.committing import CommittingTable, State
from spark_jobs.tables.file_writer import Output, WrittenFile
from spark_jobs.tables.model import Appended, Source, Target, Transform, Watermarks
from spark_jobs.tables.own_history import OwnHistory
from spark_jobs.tables.plan import AppendClaim, AppendFence, Begun
from spark_jobs.tables.schema_match import Fit
from spark_jobs.tables.slice_task import (
    AppendWork,
    SliceDone,
    SliceWork,
    run_here,
    run_on_executors,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

RECORDS_PER_TASK_MAX: Final = 1_000_000
RECORDS_PER_TASK_MIN: Final = 50_000  # with fewer, a second task costs more than it saves
RECORDS_HERE_MAX: Final = 5_000  # so few are written in this process, faster than in a Spark job
_TERMS_MAX: Final = 10  # if others begin terms at the same time

Run = Callable[[AppendWork, Sequence[SliceWork]], list[SliceDone]]

_log = logging.getLogger("headwater.tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """One table's part of an append."""

    table: CommittingTable
    state: State
    fit: Fit
    ranges: Mapping[int, OffsetRange]
    output: Output
    fence: AppendFence


class Appender:
    """Appends ranges of one stream to one table. One thread; make one per target and keep it."""

    def __init__(
        self,
        spark: SparkSession | None,
        target: Target,
        source: Source,
        transform: Transform | None = None,
        *,
        rejects: Target | None = None,
        run: Run | None = None,
    ) -> None:
        """Keep the arguments; makes no request.

        Args:
            spark: runs the tasks, classic or Connect; None only with ``run``.
            target: the table.
            source: the stream.
            transform: turns rows of the stream into rows of the table; None: rows stay the same.
            rejects: the table of rows that the transform rejects, see
                :meth:`spark_jobs.tables.model.Target.beside`. Created with the first append.
            run: runs the slices instead of Spark's executors, for example ``slice_task.run_here``.
        """
        if spark is None and run is None:
            raise InvalidRequestError("an appender needs a Spark session, or run= to run slices")
        if rejects is not None and getattr(transform, "rejected_schema", None) is None:
            raise InvalidRequestError("a table of rejects needs a transform with rejected_schema")
        if rejects is not None and rejects.app != target.app:
            raise InvalidRequestError(
                f"the two tables need one app, not {target.app!r} and {rejects.app!r}"
            )
        self._spark = spark
        self._run = run
        self._source = source
        self._transform = transform
        self._number = plan.transform_number(transform)
        self._positions = target.positions
        self._history = OwnHistory(source)
        self._main = CommittingTable(target, source)
        self._rejects = None if rejects is None else CommittingTable(rejects, source)

    def watermarks(self) -> Watermarks:
        """Return the table's watermarks, proved against its rows; creates nothing.

        Raises:
            TableMismatchError: the rows differ from the appended ones.
            StreamRecreatedError: the table was filled from another incarnation of the stream.
            ForeignHistoryError: the table holds records that the stream has lost.
        """
        state = self._main.find()
        if state is None:
            return Watermarks(version=-1, ends={}, starts={})
        self._history.require(state.mine, uri=self._main.target.uri)
        return Watermarks(
            version=state.snapshot.version,
            ends={number: claim.end for number, claim in state.mine.items()},
            starts={number: claim.start for number, claim in state.mine.items()},
            others=tuple(state.claims.others(self._main.target.app, self._source.stream_uuid)),
        )

    def begun(self) -> list[Begun]:
        """Return the ranges of which only the rejected rows are committed, of all appenders.

        Creates nothing. See :func:`spark_jobs.tables.plan.begun`.

        Raises:
            TableMismatchError, StreamRecreatedError: as for :meth:`watermarks`.
        """
        if self._rejects is None:
            return []
        return committing.begun(self._main, self._rejects, self._source.stream_uuid)

    def append(self, ranges: Mapping[int, OffsetRange], *, batch_id: str) -> Appended:
        """Append the part of these ranges that is not in the table yet, in one commit. Blocks.

        Offsets below the watermark are skipped; the first range of a partition may begin anywhere.

        Raises:
            GapError: a range begins above the watermark.
            OverlapError: an appender of another name has appended some of these offsets.
            ForeignHistoryError: the table holds records that the stream has lost; see
                :mod:`spark_jobs.tables.own_history`. Nothing was appended.
            StaleWatermarkError: another appender was first. Nothing of this append is in the
                table; a second call appends the rest.
            SchemaMismatchError: the rows do not fit the table; names the column. Or an append with
                another transform died between the two tables; then the error has the fact begun,
                and the fact app if an appender of another name began it.
            RemoteTierUnavailableError: the outcome is unknown; a second call finds out.
            HeadwaterError: a task failed to read the stream.
        """
        main, rejects = self._planned_both(ranges)
        if not main.ranges:
            return Appended(version=main.state.snapshot.version, ranges={})
        parts = self._parts(main, rejects)
        work = AppendWork(
            source=self._source,
            positions=self._positions,
            transform=self._transform,
            main=main.output,
            rejects=None if rejects is None else rejects.output,
        )
        here = self._history.now()
        try:
            done = self._done(work, parts)
            lineages = self._history.noted(main.ranges, here, uri=main.table.target.uri)
        except BaseException:
            _sweep(main, rejects)  # no commit was tried yet
            raise
        note = {
            "app": main.table.target.app,
            "stream": self._source.stream,
            "stream_uuid": self._source.stream_uuid,
            "batch_id": batch_id,
        }
        files = [file for each in done for file in each.files]
        try:
            if rejects is not None:
                self._commit_rejects(rejects, done, lineages, note)
                rejects = None  # its files are committed now
            version = self._commit(main, files, done, lineages, note)
        except (FencedError, OverlapError, TableMismatchError) as error:  # not committed for sure
            _log.warning("append_lost uri=%s: %s", main.table.target.uri, error)
            _sweep(main, rejects)
            raise
        if any(each.attempt for each in done):
            main.table.sweep(main.output.folder, keep=files)
        return Appended(
            version=version,
            ranges=main.ranges,
            rows_count=sum(each.rows_count for each in done),
            files_count=len(files),
            bytes_count=sum(file.size_bytes for file in files),
            rejected_count=sum(each.rejected_count for each in done),
            dropped_count=sum(each.dropped_count for each in done),
            gone_count=sum(each.gone_count for each in done),
            counts=sum((Counter(each.counts) for each in done), Counter()),
        )

    def _done(self, work: AppendWork, parts: Sequence[SliceWork]) -> list[SliceDone]:
        """Run the slices; check that the results cover every offset."""
        if self._run is not None:
            done = self._run(work, parts)
        elif sum(each.slice.records_count for each in parts) <= RECORDS_HERE_MAX:
            done = run_here(work, parts)
        else:
            assert self._spark is not None, "checked at the start"
            done = run_on_executors(self._spark, work, parts)
        _check_complete(parts, done)
        return done

    # ---------------------------------------------------------------------------- planning

    def _row_schema(self) -> pa.Schema:
        if self._transform is None:
            return schema_match.row_schema(self._positions)
        return schema_match.with_positions(self._transform.output_schema, self._positions)

    def _optional(self) -> tuple[str, ...]:
        """Return the columns that we add to the transform's; a user's table may lack them."""
        given = () if self._transform is None else self._transform.output_schema.names
        return tuple(name for name in self._positions or () if name not in given)

    def _planned(
        self,
        table: CommittingTable,
        ranges: Mapping[int, OffsetRange],
        rows: pa.Schema,
        optional: Sequence[str],
    ) -> _Planned:
        state = table.ensure(rows, ranges)
        wanted = plan.cut(ranges, state.mine)
        state, fit = table.fitted(state, rows, optional)
        wanted = plan.cut(wanted, state.mine)  # columns were added meanwhile, or rows appended
        fence = AppendFence(
            app=table.target.app,
            uuid=self._source.stream_uuid,
            transform=self._number,
            ranges=wanted,
            decoded=state.claims,
        )
        output = self._output(table, state, fit)
        return _Planned(
            table=table, state=state, fit=fit, ranges=wanted, output=output, fence=fence
        )

    def _planned_both(self, ranges: Mapping[int, OffsetRange]) -> tuple[_Planned, _Planned | None]:
        """Plan both tables, in one term of this transform; without a range, only the main one."""
        for _ in range(_TERMS_MAX):
            main = self._planned(self._main, ranges, self._row_schema(), self._optional())
            self._history.require(main.state.mine, uri=main.table.target.uri)
            if not main.ranges:
                return main, None
            others = main.state.claims.others(main.table.target.app, self._source.stream_uuid)
            plan.require_apart(main.ranges, others)
            rejects = self._planned_rejects(main)
            if rejects is None or self._number is None:
                return main, rejects
            term = plan.next_term(main.fence, rejects.state.claims)
            if term is None:
                return main, rejects
            with suppress(StaleWatermarkError):  # another one was first: look again
                if main.state.claims.term(main.fence.app, main.fence.uuid) != term:
                    main.table.enter(main.state, term, highest=True)
                rejects.table.enter(rejects.state, term, highest=False)
        raise StaleWatermarkError(
            f"appends that decode in another way began {_TERMS_MAX} times in a row while this one "
            f"was to begin, all for {self._main.target.uri}. Nothing of it was written"
        )

    def _planned_rejects(self, main: _Planned) -> _Planned | None:
        """Plan the rejected rows of the main ranges that are not in the rejected table yet.

        The watermark of the rejected table moves only when rows are rejected, so it may be lower
        than the main table's. It is higher if an append ended between the two commits; then the
        rows below it are not written again. They are those that the same transform rejects now.

        Raises:
            ForeignHistoryError: the rows below it are of records that the stream has lost.
            SchemaMismatchError: another transform rejected them.
            OverlapError: see :func:`spark_jobs.tables.plan.covered`.
        """
        if self._rejects is None:
            return None
        table = self._rejects
        schema = getattr(self._transform, "rejected_schema")  # noqa: B009  (checked at the start)
        state = table.ensure(schema, main.ranges)
        state, fit = table.fitted(state, schema, ())
        ahead = {
            number: state.mine[number]
            for number, wanted in main.ranges.items()
            if number in state.mine and state.mine[number].end > wanted.start
        }
        self._history.require(ahead, uri=table.target.uri)
        self._require_same_transform(main, ahead, table.target.uri)
        covered = plan.covered(main.fence, state.claims, ahead, table.target.uri)
        for number, claims in covered.items():
            for claim in claims:
                self._history.require({number: claim}, uri=table.target.uri)
        ranges = {}
        for number, wanted in main.ranges.items():
            claims = [*plan.known(ahead, number), *covered.get(number, ())]
            start = max([wanted.start, *(claim.end for claim in claims)])
            if start < wanted.end:
                ranges[number] = OffsetRange(start, wanted.end)
        output = self._output(table, state, fit)
        return _Planned(
            table=table, state=state, fit=fit, ranges=ranges, output=output, fence=main.fence
        )

    def _require_same_transform(
        self, main: _Planned, ahead: Mapping[int, AppendClaim], uri: str
    ) -> None:
        for number, claim in ahead.items():
            # A claim of an old build has no transform; a transform without identity has no number.
            if self._number is None or claim.transform in (None, self._number):
                continue
            begun = OffsetRange(main.ranges[number].start, claim.end)
            raise SchemaMismatchError(
                f"an append of partition {number} to {main.table.target.uri} was interrupted after "
                f"the rejected records of {begun} were committed to {uri}, and these records were "
                "decoded in another way than this append does: a record could be lost or doubled. "
                "Finish that append with the earlier schema and limits (a job does so when it is "
                "run again, by the table's pins), then append the rest. If the rows of the first "
                "table were removed on purpose, remove the second table, too",
                uri=uri,
                partition=number,
                start=int(begun.start),
                end=int(begun.end),
                begun=True,
            )

    def _output(self, table: CommittingTable, state: State, fit: Fit) -> Output:
        target = table.target
        return Output(
            store=target.store,
            folder=f"appended/{uuid.uuid4().hex}",
            fit=fit,
            stats_columns=schema_match.stats_columns(
                fit, state.snapshot.properties, target.positions or ()
            ),
            note={"app": target.app, "stream_uuid": self._source.stream_uuid},
        )

    def _parts(self, main: _Planned, rejects: _Planned | None) -> list[SliceWork]:
        at = {}
        if rejects is not None:
            at = {number: offsets.start for number, offsets in rejects.ranges.items()}
        found = plan.slices(
            main.ranges,
            tasks=1 if self._spark is None else parallelism(self._spark),
            records_min=RECORDS_PER_TASK_MIN,
            records_max=RECORDS_PER_TASK_MAX,
            at=at,
        )
        return [
            SliceWork(slice=each, rejects=each.partition in at and each.start >= at[each.partition])
            for each in found
        ]

    # ---------------------------------------------------------------------------- committing

    def _commit_rejects(
        self,
        rejects: _Planned,
        done: Sequence[SliceDone],
        lineages: Mapping[int, str],
        note: Mapping[str, Any],
    ) -> None:
        files = [file for each in done for file in each.reject_files]
        if not files:
            return
        rows: dict[int, int] = dict.fromkeys(rejects.ranges, 0)
        for each in done:
            for file in each.reject_files:
                rows[each.partition] += file.rows_count
        # A partition without rejected rows stays where it is.
        moving = {number: offsets for number, offsets in rejects.ranges.items() if rows[number]}
        try:
            self._commit_to(
                rejects, files, moving, rows, lineages=lineages, note=note, transform=self._number
            )
        except OverlapError as error:  # another appender has begun some: a new plan sees it
            raise StaleWatermarkError(
                f"an append of {error.facts['app']!r} has begun while rows were written for the "
                f"same offsets: {error.message}",
                **error.facts,
            ) from error

    def _commit(
        self,
        main: _Planned,
        files: Sequence[WrittenFile],
        done: Sequence[SliceDone],
        lineages: Mapping[int, str],
        note: Mapping[str, Any],
    ) -> int:
        rows = dict.fromkeys(main.ranges, 0)
        for each in done:
            rows[each.partition] += each.rows_count
        return self._commit_to(main, files, main.ranges, rows, lineages=lineages, note=note)

    def _commit_to(
        self,
        planned: _Planned,
        files: Sequence[WrittenFile],
        ranges: Mapping[int, OffsetRange],
        rows: Mapping[int, int],
        *,
        lineages: Mapping[int, str],
        note: Mapping[str, Any],
        transform: int | None = None,
    ) -> int:
        told = {
            **note,
            "ranges": {str(number): [int(r.start), int(r.end)] for number, r in ranges.items()},
            "rows": sum(rows.values()),
        }
        return planned.table.commit(
            planned.state,
            planned.fit,
            files,
            ranges,
            fence=planned.fence,
            rows=rows,
            lineages=lineages,
            transform=transform,
            commit_id=planned.output.folder,
            note=told,
        )


def _sweep(main: _Planned, rejects: _Planned | None) -> None:
    for each in (main, rejects):
        if each is not None:
            each.table.sweep(each.output.folder)


def _check_complete(parts: Sequence[SliceWork], done: Sequence[SliceDone]) -> None:
    """Refuse results that do not cover every offset of every slice exactly once.

    Raises:
        GapError: a slice is missing, doubled, or short.
        SchemaMismatchError: files and counts differ.
    """
    if [each.number for each in done] != list(range(len(parts))):
        raise GapError(f"{len(parts)} slices were given to tasks, but {len(done)} came back")
    for part, each in zip(parts, done, strict=True):
        piece = part.slice
        accounted = each.rows_count + each.rejected_count + each.dropped_count
        covered = each.records_count + each.gone_count
        if (each.partition, covered) != (piece.partition, piece.records_count):
            raise GapError(
                f"partition {piece.partition}, slice [{piece.start}, {piece.end}): "
                f"the task read {covered} offsets of partition {each.partition}",
                partition=piece.partition,
                start=int(piece.start),
                end=int(piece.end),
            )
        in_files = sum(file.rows_count for file in each.files)
        if accounted != each.records_count or in_files != each.rows_count:
            raise SchemaMismatchError(
                f"partition {piece.partition}, slice [{piece.start}, {piece.end}): "
                f"the task accounts for {accounted} of {each.records_count} records, and "
                f"{in_files} rows are in files"
            )
