"""The executor's side of the source: one offset slice in, Arrow batches of one exact schema out.

Three rules. Every batch gets the schema in one place (:func:`conform`), because Spark checks only
the first batch of a task and the JVM trusts the rest. Every offset of the slice arrives once and in
order, or the read fails by name: Spark has no idea how many rows to expect. Nothing here depends on
planning-time state, for executors run copies.

pyarrow and the Flight client are imported when reading, not when Spark imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.errors import GapError, HeadwaterError, OverlapError, SchemaMismatchError
from broker.model.offsets import Offset
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import shapes
from spark_jobs.source.partitions import OffsetSlice, SliceTask
from spark_jobs.source.shapes import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

# Small log batches are joined up to this before they go to the JVM, which pays for each batch.
_ROWS_JOINED: Final = 8192
_BYTES_JOINED: Final = 4 * 1024 * 1024


class FetchedBatch(Protocol):
    """Rows of ``[base_offset, end_offset)``, as the client hands them out."""

    @property
    def batch(self) -> Any:
        """The rows, a pyarrow RecordBatch with the projected columns."""

    @property
    def base_offset(self) -> Offset:
        """First offset that the batch answers for."""

    @property
    def end_offset(self) -> Offset:
        """First offset after it."""


class FetchedBatches(Protocol):
    """An open read."""

    def __iter__(self) -> Iterator[FetchedBatch]:
        """Yield the batches in offset order."""

    def close(self) -> None:
        """End the read, also in the middle."""


class TailClient(Protocol):
    """What reading a slice needs of the client."""

    def fetch(
        self,
        stream: str,
        partition: int,
        start: Offset,
        end: Offset,
        *,
        columns: Sequence[str] | None = None,
        stream_uuid: str | None = None,
    ) -> FetchedBatches:
        """Open a read of the rows of ``[start, end)``."""


def read_task(
    task: SliceTask | None,
    *,
    server: str | None,
    columns: tuple[str, ...],
    emit: str,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield what a task of Spark is to give: its records, or the one row that names them.

    Args:
        task: the task; None is what Spark makes of a plan without tasks.
        server: the broker's address; None means HEADWATER_SERVER or the default.
        columns: what the read projects, added columns included.
        emit: ``records`` or ``ranges``.
        fail_on_data_loss: false skips records that retention has deleted.

    Raises:
        HeadwaterError: see :func:`read_slice`.
    """
    if task is None:
        return
    if emit == "ranges":
        yield shapes.range_row(task, columns)
        return
    rows = read_slice(
        client_of(server),
        task.piece,
        stream=task.stream,
        stream_uuid=task.stream_uuid,
        columns=shapes.stored(columns),
        fail_on_data_loss=fail_on_data_loss,
    )
    yield from shapes.dress(rows, columns, task.stream)


def read_slice(
    client: TailClient,
    task: OffsetSlice,
    *,
    stream: str,
    stream_uuid: str | None,
    columns: tuple[str, ...],
    fail_on_data_loss: bool = True,  # noqa: ARG001  (with the tiers)
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one slice in offset order; blocks on the network.

    Raises:
        GapError: an offset is missing, also when the answer ends early.
        OverlapError: an offset comes twice.
        HeadwaterError: what the broker answered, typed. Each carries its wire form as a note, so
            that it can be rebuilt from the text of Spark's exception.
    """
    schema = arrow_schema(columns)
    try:
        fetched = client.fetch(
            stream,
            task.partition,
            task.start,
            task.end,
            columns=list(columns),
            stream_uuid=stream_uuid,
        )
        try:
            yield from join_small(conform(batch, schema) for batch in complete(fetched, task))
        finally:
            fetched.close()  # a LIMIT ends the task in the middle of the slice
    except HeadwaterError as error:
        raise annotate(error) from None


def complete(fetched: Iterable[FetchedBatch], task: OffsetSlice) -> Iterator[pa.RecordBatch]:
    """Pass batches on while they continue the slice without a gap; refuse anything else."""
    due = task.start
    for part in fetched:
        where = f"partition {task.partition}, slice [{task.start}, {task.end})"
        if part.base_offset > due:
            raise _broken(GapError, f"{where}: expected offset {due}", task, due, part.base_offset)
        if part.base_offset < due or part.end_offset > task.end:
            raise _broken(
                OverlapError,
                f"{where}: got [{part.base_offset}, {part.end_offset}) at {due}",
                task,
                part.base_offset,
                part.end_offset,
            )
        if part.batch.num_rows != part.end_offset - part.base_offset:
            raise _broken(
                GapError,
                f"{where}: {part.batch.num_rows} rows for [{part.base_offset}, {part.end_offset})",
                task,
                part.base_offset,
                part.end_offset,
            )
        _check_offsets(part, task)
        due = part.end_offset
        if part.batch.num_rows:
            yield part.batch
    if due != task.end:
        where = f"partition {task.partition}, slice [{task.start}, {task.end})"
        raise _broken(GapError, f"{where}: the answer ended at {due}", task, due, task.end)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly ``schema``: its columns, order, types, all nullable.

    Raises:
        SchemaMismatchError: a column is missing, or its values do not fit the type.
    """
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        position = batch.schema.get_field_index(field.name)
        if position < 0:
            raise SchemaMismatchError(f"the broker sent no column {field.name!r}")
        column = batch.column(position)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as cause:
            raise SchemaMismatchError(f"column {field.name!r}: {cause}") from cause
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join neighbours until they are worth a trip to the JVM; order and rows are unchanged."""
    import pyarrow as pa  # noqa: PLC0415  (see the module docstring)

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS_JOINED or size >= _BYTES_JOINED:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def _check_offsets(part: FetchedBatch, task: OffsetSlice) -> None:
    """Compare the rows' own first and last offset with the envelope's, where they are projected."""
    position = part.batch.schema.get_field_index("offset")
    if position < 0 or part.batch.num_rows == 0:
        return
    offsets = part.batch.column(position)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if (first, last) != (part.base_offset, part.end_offset - 1):
        raise _broken(
            GapError,
            f"partition {task.partition}: rows run from {first} to {last}, announced were "
            f"[{part.base_offset}, {part.end_offset})",
            task,
            part.base_offset,
            part.end_offset,
        )


def _broken(
    kind: type[GapError | OverlapError], message: str, task: OffsetSlice, start: int, end: int
) -> HeadwaterError:
    return kind(message, partition=task.partition, start=start, end=end)
