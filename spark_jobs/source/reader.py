"""The executor's side of the source: one offset slice in, Arrow batches of one exact schema out.

There are three rules. Every batch gets its schema in one place (:func:`conform`), because Spark
checks only the first batch of a task and the JVM trusts the rest. Every offset of the slice arrives
once and in order, or the read fails with a typed error: Spark cannot know how many rows to expect.
Nothing here depends on state of the planning process, because executors run copies.

pyarrow and the Flight client are imported when reading, not when Spark imports this module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.errors import (
    CompactedRangeError,
    EncryptionKeyError,
    FencedError,
    GapError,
    HeadwaterError,
    ObjectMissingError,
    OffsetOutOfRangeError,
    OverlapError,
    SchemaMismatchError,
    UnavailableError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import shapes
from spark_jobs.source.left import read_left
from spark_jobs.source.lookup import PATIENCE_S, Backoff, patiently
from spark_jobs.source.partitions import OffsetSlice, SliceTask, TableRef
from spark_jobs.source.shapes import arrow_schema
from spark_jobs.source.task_history import checked
from spark_jobs.source.task_lease import kept_alive
from spark_jobs.source.tiers import Tiers

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client import Client

# Small log batches are joined up to this size, because each batch costs time in the JVM.
_ROWS_JOINED: Final = 8192
_BYTES_JOINED: Final = 4 * 1024 * 1024

_log = logging.getLogger("headwater.read")


class FetchedBatch(Protocol):
    """The rows of ``[base_offset, end_offset)`` from the client."""

    @property
    def batch(self) -> Any:
        """The rows, a pyarrow RecordBatch with the projected columns."""

    @property
    def base_offset(self) -> Offset:
        """First offset that the batch covers."""

    @property
    def end_offset(self) -> Offset:
        """First offset after the batch."""


class FetchedBatches(Protocol):
    """An open read."""

    def __iter__(self) -> Iterator[FetchedBatch]:
        """Yield the batches in offset order."""

    def close(self) -> None:
        """End the read, even before the last batch."""


class TailClient(Protocol):
    """The method of the client that reading a slice needs."""

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


@dataclass(slots=True)
class RowOrigin:
    """Where the rows of a Spark task come from."""

    by_broker: bool = False  # whether a broker was asked for some of them


def read_tasks(
    tasks: Sequence[SliceTask] | None,
    *,
    server: str | None,
    columns: tuple[str, ...],
    emit: str,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Spark task: the records of its slices, or a row that names each range.

    Args:
        tasks: the slices, one after the other; Spark passes None for a plan without tasks.
        server: the broker's address; None means HEADWATER_SERVER or the default.
        columns: the columns of the read, with the added columns.
        emit: ``records`` or ``ranges``.
        fail_on_data_loss: False skips records that retention has deleted.

    Raises:
        ForeignHistoryError: the stream has lost records that a batch read names.
        HeadwaterError: see :func:`read_slice`.
    """
    if not tasks:
        return
    if emit == "ranges":
        for task in tasks:
            yield shapes.range_row(task, columns)
        return
    client = client_of(server)
    origin = RowOrigin()

    def rows() -> Iterator[pa.RecordBatch]:
        for (stream, lease_id), group in groupby(tasks, key=attrgetter("stream", "lease_id")):
            with kept_alive(client, stream, lease_id):
                for task in group:
                    if task.left is not None:
                        origin.by_broker = True
                        yield from shapes.add_columns(_left(client, task, columns), columns, stream)
                        continue
                    records = read_slice(
                        client,
                        task.piece,
                        stream=stream,
                        stream_uuid=task.stream_uuid,
                        columns=shapes.stored(columns),
                        table=task.table,
                        keyring_file=task.keyring_file,
                        fail_on_data_loss=fail_on_data_loss,
                        origin=origin,
                    )
                    yield from shapes.add_columns(records, columns, stream)

    found = rows() if len(tasks) == 1 else join_small(rows())
    try:
        yield from checked(found, tasks, client, asks_broker=lambda: origin.by_broker)
    except HeadwaterError as error:
        raise annotate(error) from None


def _left(client: Client, task: SliceTask, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield what key compaction has left of a slice, as :func:`read_slice` does."""
    assert task.left is not None, "the caller has checked this"
    assert task.stream_uuid is not None, "the plan of a batch read has it"
    stored = shapes.stored(columns)
    schema = arrow_schema(stored)
    try:
        found = read_left(
            client,
            task.piece,
            task.left,
            stream=task.stream,
            stream_uuid=task.stream_uuid,
            columns=stored,
        )
        yield from join_small(conform(batch, schema) for batch in found)
    except HeadwaterError as error:
        raise annotate(error) from None


def read_slice(
    client: Client,
    task: OffsetSlice,
    *,
    stream: str,
    stream_uuid: str | None,
    columns: tuple[str, ...],
    table: TableRef | None = None,
    keyring_file: str = "",
    fail_on_data_loss: bool = True,
    origin: RowOrigin | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one slice in offset order, from the tier that has them; blocks.

    If the broker restarts meanwhile, the read waits for it and goes on after the last row.

    Args:
        client: a client of the broker.
        task: the slice to read.
        stream: the stream's name.
        stream_uuid: the incarnation; None means the stream that has the name now.
        columns: names of ROW_SCHEMA, in the wanted order.
        table: the stream's table; with None the broker is asked when the table is needed.
        keyring_file: the keys of an encrypted table; empty: those of the environment, if any.
        fail_on_data_loss: False skips records that retention has deleted.
        origin: notes where the rows come from.

    Raises:
        GapError: an offset is missing, for example because the answer ends early.
        CompactedRangeError: key compaction has removed records of the slice; ``end`` says up to
            where.
        OverlapError: an offset comes twice.
        OffsetOutOfRangeError: records of the slice were deleted, or never existed.
        HeadwaterError: an error of either tier. Each error carries its wire form as a note, from
            which it can be rebuilt out of the text of Spark's exception.
    """
    try:
        uuid = patiently(lambda: client.stream(stream).uuid) if stream_uuid is None else stream_uuid
        tiers = Tiers(client, stream, StreamUuid(uuid), table, keyring_file=keyring_file)
        position = task.start
        backoff = Backoff(PATIENCE_S)
        origin = RowOrigin() if origin is None else origin
        while position < task.end:
            piece = OffsetSlice(task.partition, position, task.end)
            try:
                rows = read_tier(
                    client,
                    tiers,
                    piece,
                    stream=stream,
                    stream_uuid=uuid,
                    columns=columns,
                    origin=origin,
                )
                for batch in join_small(rows):
                    position = Offset(position + batch.num_rows)
                    backoff.progressed()
                    yield batch
            except OffsetOutOfRangeError as error:
                position = _after_loss(error, piece, fail_on_data_loss=fail_on_data_loss)
            except (UnavailableError, FencedError) as error:
                backoff.wait(error)
    except HeadwaterError as error:
        raise annotate(error) from None


def read_tier(
    client: TailClient,
    tiers: Tiers,
    piece: OffsetSlice,
    *,
    stream: str,
    stream_uuid: str,
    columns: tuple[str, ...],
    origin: RowOrigin,
) -> Iterator[pa.RecordBatch]:
    """Yield rows from the start of a piece on, from one tier; this may be only a part of it.

    The rows also end early if a file has disappeared from the table, or if a key is missing and may
    have been wrapped anew. The caller calls again for the rest.
    """
    files = tiers.cold(piece)
    if files is None:
        origin.by_broker = True
        yield from read_tail(client, piece, stream=stream, stream_uuid=stream_uuid, columns=columns)
        return
    schema = arrow_schema(columns)
    try:
        for batch in files.read(piece.partition, schema):
            yield conform(batch, schema)
    except ObjectMissingError as error:
        tiers.renew(files, error)
    except EncryptionKeyError as error:
        tiers.learn(files, error)


def read_tail(
    client: TailClient,
    task: OffsetSlice,
    *,
    stream: str,
    stream_uuid: str | None,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one slice in offset order, from the broker.

    Raises:
        HeadwaterError: as :func:`read_slice`, without the notes.
    """
    schema = arrow_schema(columns)
    fetched = client.fetch(
        stream,
        task.partition,
        task.start,
        task.end,
        columns=list(columns),
        stream_uuid=stream_uuid,
    )
    try:
        for batch in complete(fetched, task):
            yield conform(batch, schema)
    finally:
        fetched.close()  # needed because a LIMIT ends the task in the middle of the slice


def complete(fetched: Iterable[FetchedBatch], task: OffsetSlice) -> Iterator[pa.RecordBatch]:
    """Yield batches while they continue the slice without a gap; raise for anything else."""
    due = task.start
    for part in fetched:
        where = f"partition {task.partition}, slice [{task.start}, {task.end})"
        if part.base_offset > due:
            text = f"{where}: expected offset {due}, got {part.base_offset}"
            raise _broken(GapError, text, task, due, part.base_offset)
        if part.base_offset < due or part.end_offset > task.end:
            raise _broken(
                OverlapError,
                f"{where}: got [{part.base_offset}, {part.end_offset}), expected offset {due}",
                task,
                part.base_offset,
                part.end_offset,
            )
        if part.batch.num_rows < part.end_offset - part.base_offset:
            raise CompactedRangeError(
                f"{where}: key compaction has left {part.batch.num_rows} records of "
                f"[{part.base_offset}, {part.end_offset}). A read that may be repeated in part "
                "needs each of them: read what is left by headwater.read, and let a stream begin "
                f"where the cut of that read ends, or at {part.end_offset}",
                partition=task.partition,
                start=part.base_offset,
                end=part.end_offset,
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
    """Return the batch with exactly the columns, order and types of ``schema``, all nullable.

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
    """Join small neighbours, because each batch costs time in the JVM; rows stay in order."""
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


def _after_loss(
    error: OffsetOutOfRangeError, piece: OffsetSlice, *, fail_on_data_loss: bool
) -> Offset:
    """Return the offset after the deleted records; raises if ``fail_on_data_loss``."""
    start = error.facts.get("start")
    if fail_on_data_loss or not isinstance(start, int) or start <= piece.start:
        raise error
    end = min(piece.end, Offset(start))
    _log.warning(
        "data_loss records [%d, %d) of partition %d are gone; the read goes on after them, because "
        "failOnDataLoss is false",
        piece.start,
        end,
        piece.partition,
    )
    return end


def _check_offsets(part: FetchedBatch, task: OffsetSlice) -> None:
    """Compare the first and last offset of the rows, if they are projected, with the range."""
    position = part.batch.schema.get_field_index("offset")
    if position < 0 or part.batch.num_rows == 0:
        return
    offsets = part.batch.column(position)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if (first, last) != (part.base_offset, part.end_offset - 1):
        raise _broken(
            GapError,
            f"partition {task.partition}: the rows have offsets {first} to {last}, but the batch "
            f"was announced as [{part.base_offset}, {part.end_offset})",
            task,
            part.base_offset,
            part.end_offset,
        )


def _broken(
    kind: type[GapError | OverlapError], message: str, task: OffsetSlice, start: int, end: int
) -> HeadwaterError:
    return kind(message, partition=task.partition, start=start, end=end)
