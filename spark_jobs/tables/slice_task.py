"""One task of an append: reads a slice, transforms it, writes its files, returns their facts.

Runs on executors, in a worker that Spark reuses. The result is JSON; the driver checks that its
numbers agree.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.errors import HeadwaterError, SchemaMismatchError
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source.columns import ROW_COLUMNS
from spark_jobs.source.partitions import OffsetSlice
from spark_jobs.source.remaining import RemainingRecords
from spark_jobs.tables.file_writer import FileWriter, Output, WrittenFile
from spark_jobs.tables.model import Source, Transform, Transformed
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore, ObjectStore
from tiering.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.client import Client

_FACTS: Final = "facts string"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendWork:
    """The facts that every task of one append needs. Picklable; holds no secrets."""

    source: Source
    positions: tuple[str, str] | None
    transform: Transform | None
    main: Output
    rejects: Output | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWork:
    """One slice; ``rejects`` tells whether its rejected rows have to be written."""

    slice: OffsetSlice
    rejects: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDone:
    """The result of one slice."""

    number: int
    partition: int
    records_count: int
    gone_count: int  # records of the slice that key compaction has removed
    rows_count: int
    rejected_count: int
    dropped_count: int
    counts: Mapping[str, int]  # the transform's counters
    files: tuple[WrittenFile, ...]
    reject_files: tuple[WrittenFile, ...]
    attempt: int  # above 0: an earlier attempt of this task may have left files behind


def run_slice(
    work: AppendWork,
    part: SliceWork,
    number: int,
    *,
    client: Client,
    main: ObjectStore,
    rejects: ObjectStore | None,
    attempt: int = 0,
) -> SliceDone:
    """Read, transform and write one slice. Blocks on the network.

    Raises:
        HeadwaterError: a read, a write or the transform failed; nothing is committed.
    """
    piece = part.slice
    label = f"{piece.partition}-{piece.start:020}"
    rows_out = FileWriter(main, work.main, label)
    rejects_out = None
    if part.rejects and rejects is not None and work.rejects is not None:
        rejects_out = FileWriter(rejects, work.rejects, label)
    records = rows = rejected = dropped = 0
    counts: Counter[str] = Counter()
    remaining = RemainingRecords(
        client,
        piece,
        stream=work.source.stream,
        stream_uuid=work.source.stream_uuid,
        columns=columns_read(work.transform),
    )
    for batch in remaining:
        done = _transformed(work, batch)
        rows_out.add(done.rows)
        set_aside = 0 if done.rejected is None else done.rejected.num_rows
        if rejects_out is not None and done.rejected is not None:
            rejects_out.add(done.rejected)
        records += batch.num_rows
        rows += done.rows.num_rows
        rejected += set_aside
        dropped += done.dropped_count
        counts.update(done.counts)
    return SliceDone(
        number=number,
        partition=piece.partition,
        records_count=records,
        gone_count=remaining.gone_count,
        rows_count=rows,
        rejected_count=rejected,
        dropped_count=dropped,
        counts=counts,
        files=tuple(rows_out.finish()),
        reject_files=() if rejects_out is None else tuple(rejects_out.finish()),
        attempt=attempt,
    )


def columns_read(transform: Transform | None) -> tuple[str, ...]:
    """Return the row columns that a transform needs, always with partition and offset."""
    wanted = set(getattr(transform, "columns", None) or ROW_COLUMNS) | {"partition", "offset"}
    return tuple(name for name in ROW_COLUMNS if name in wanted)


def run_here(work: AppendWork, parts: Sequence[SliceWork]) -> list[SliceDone]:
    """Run every slice in this process, one after the other; for few records faster than a job."""
    return [
        run_slice(
            work,
            part,
            number,
            client=client_of(work.source.server),
            main=opened(work.main.store),
            rejects=None if work.rejects is None else opened(work.rejects.store),
        )
        for number, part in enumerate(parts)
    ]


def run_on_executors(
    spark: SparkSession, work: AppendWork, parts: Sequence[SliceWork]
) -> list[SliceDone]:
    """Run one task per slice in one Spark job; return the results in order. Blocks until the end.

    Raises:
        HeadwaterError: a task failed with this error, after Spark's retries.
    """
    from spark_jobs.failures import translated  # noqa: PLC0415

    plain = replace(
        work,
        main=work.main.without_secrets(),
        rejects=None if work.rejects is None else work.rejects.without_secrets(),
    )
    with translated():
        rows = (
            spark.range(0, len(parts), 1, len(parts))
            .mapInArrow(_AppendTask(plain, list(parts)), _FACTS)
            .collect()
        )
    done = [_from_json(row.facts) for row in rows]
    return sorted(done, key=lambda each: each.number)


class _AppendTask:
    """The function that Spark sends to executors: slice numbers in, results out."""

    def __init__(self, work: AppendWork, parts: list[SliceWork]) -> None:
        self._work = work
        self._parts = parts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  (tasks only)

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        work = self._work
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    done = run_slice(
                        work,
                        self._parts[number],
                        number,
                        client=client_of(work.source.server),
                        main=opened(work.main.store),
                        rejects=None if work.rejects is None else opened(work.rejects.store),
                        attempt=attempt,
                    )
                except HeadwaterError as error:
                    raise annotate(error) from None
                yield pa.RecordBatch.from_pydict({"facts": [_to_json(done)]})


def opened(config: StoreConfig) -> ErasableStore:
    """Open a store; credentials that the plan lacks come from this process's environment."""
    if config.kind == "s3" and config.credentials is None:
        here = StoreConfig.from_env(config.uri)
        config = replace(config, credentials=here.credentials, profile=here.profile)
    return open_store(config)


def _transformed(work: AppendWork, batch: pa.RecordBatch) -> Transformed:
    """Apply the transform, check that it covers every row, and add the position columns."""
    if work.transform is None:
        if work.positions is not None and work.positions != ("partition", "offset"):
            renamed = dict(zip(("partition", "offset"), work.positions, strict=True))
            names = [renamed.get(name, name) for name in batch.schema.names]
            batch = batch.rename_columns(names)
        return Transformed(rows=batch)
    made = work.transform(batch)
    done = made if isinstance(made, Transformed) else Transformed(rows=made)
    aside = 0 if done.rejected is None else done.rejected.num_rows
    accounted = done.rows.num_rows + aside + done.dropped_count
    if accounted != batch.num_rows or done.dropped_count < 0:
        raise SchemaMismatchError(
            f"the transform accounts for {accounted} of {batch.num_rows} rows; kept, rejected and "
            "dropped rows together must be all rows",
            rows=accounted,
        )
    if not done.rows.schema.equals(work.transform.output_schema):
        raise SchemaMismatchError(
            f"the transform returned the columns {done.rows.schema.names}, which differ from its "
            "output_schema in names or types"
        )
    return replace(done, rows=_positioned(work, batch, done))


def _positioned(work: AppendWork, batch: pa.RecordBatch, done: Transformed) -> pa.RecordBatch:
    rows = done.rows
    for name, source in zip(work.positions or (), ("partition", "offset"), strict=False):
        if rows.schema.get_field_index(name) >= 0:
            continue
        values = batch.column(source)
        if done.kept is not None:
            values = values.take(done.kept)
        if len(values) != rows.num_rows:
            raise SchemaMismatchError(
                f"the transform returned {rows.num_rows} of {batch.num_rows} rows without kept=, "
                f"the indices of these rows, so column {name} cannot be filled",
                column=name,
            )
        rows = rows.append_column(name, values)
    return rows


def _to_json(done: SliceDone) -> str:
    values: dict[str, Any] = {
        name: getattr(done, name)
        for name in SliceDone.__slots__
        if name not in ("files", "reject_files")
    }
    values["files"] = [file.to_dict() for file in done.files]
    values["reject_files"] = [file.to_dict() for file in done.reject_files]
    return json.dumps(values)


def _from_json(text: str) -> SliceDone:
    values = json.loads(text)
    for name in ("files", "reject_files"):
        values[name] = tuple(WrittenFile(**each) for each in values[name])
    return SliceDone(**values)
