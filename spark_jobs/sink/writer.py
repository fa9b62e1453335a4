"""The classes that Spark calls to write; they hold plain values and are pickled to the tasks.

Rows are stored while tasks run. There is no commit, and rows that a failed write has stored stay.
To complete a failed write, run it again under the same name: a streaming query has its name from
its checkpoint, a batch write from the option ``idempotenceKey``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from broker.errors import HeadwaterError, InvalidRequestError, StreamRecreatedError
from broker.model.ids import StreamUuid
from broker.model.partitioner import Partitioner
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.sink import columns
from spark_jobs.sink.cuts import Cutter, Origin
from spark_jobs.sink.options import parse

if TYPE_CHECKING:
    import pyarrow as pa

_SERVER_VARIABLE = "HEADWATER_SERVER"
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """The facts of a write that every task needs."""

    server: str | None
    stream: str
    stream_uuid: StreamUuid
    partitions_count: int
    partitioner: Partitioner
    key: str  # identifies a batch write; tasks of a streaming query use the query's id instead
    timeout_ms: int


@dataclass(frozen=True)
class StoredRows(WriterCommitMessage):
    """Numbers of rows that a task stored, by the stream's partition.

    ``repeated`` is the number of rows that an earlier attempt had stored already.
    """

    records: dict[int, int] = field(default_factory=dict)
    repeated: int = 0


def plan(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> SinkPlan:
    """Check everything that can be checked before the first task; asks the broker.

    Raises:
        InvalidRequestError: the mode is not append; an option is unknown or not valid.
        SchemaMismatchError: the columns cannot become records.
        UnknownStreamError, StreamRecreatedError, UnavailableError.
    """
    if overwrite:
        raise InvalidRequestError(
            "a stream is a log: it accepts only mode append, not overwrite or complete",
            field="mode",
        )
    given = parse(options, streaming=streaming)
    columns.check_schema([(one.name, one.dataType.simpleString()) for one in schema.fields])
    server = given.server or os.environ.get(_SERVER_VARIABLE)
    found = client_of(server).stream(given.stream)
    if given.stream_uuid not in (None, found.uuid):
        raise StreamRecreatedError(
            f"stream {given.stream} was created again: its uuid is {found.uuid} now, not "
            f"{given.stream_uuid}",
            expected=given.stream_uuid,
            found=found.uuid,
        )
    return SinkPlan(
        server=server,
        stream=given.stream,
        stream_uuid=found.uuid,
        partitions_count=found.config.partitions,
        partitioner=found.config.partitioner,
        key=given.idempotence_key or uuid.uuid4().hex,
        timeout_ms=given.delivery_timeout_ms,
    )


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> HeadwaterWriter:
    """Return the writer of a batch write; raises as :func:`plan`."""
    try:
        return HeadwaterWriter(plan(options, schema, overwrite=overwrite, streaming=False))
    except HeadwaterError as error:
        raise annotate(error) from None


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> HeadwaterStreamWriter:
    """Return the writer of a streaming query; raises as :func:`plan`."""
    try:
        return HeadwaterStreamWriter(plan(options, schema, overwrite=overwrite, streaming=True))
    except HeadwaterError as error:
        raise annotate(error) from None


class HeadwaterWriter(DataSourceArrowWriter):
    """Appends a DataFrame's rows to a stream."""

    def __init__(self, planned: SinkPlan) -> None:
        self._plan = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store one task's rows; runs on an executor."""
        task = _task().partitionId()
        return _store(
            self._plan, Origin(kind="write", key=self._plan.key, batch=0, task=task), iterator
        )


class HeadwaterStreamWriter(DataSourceStreamArrowWriter):
    """Appends a streaming query's rows to a stream."""

    def __init__(self, planned: SinkPlan) -> None:
        self._plan = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store one task's rows of one micro-batch; runs on an executor."""
        context = _task()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or not batch or not batch.isdigit():
            # Without them the rows of a retried task would look like new rows.
            raise annotate(
                InvalidRequestError("Spark did not give this task its query id and batch id")
            )
        origin = Origin(kind="query", key=query, batch=int(batch), task=context.partitionId())
        return _store(self._plan, origin, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the tasks have stored the rows already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the next run of the query completes the batch."""


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise annotate(InvalidRequestError("a write runs only in a task of Spark"))
    return context


def _store(planned: SinkPlan, origin: Origin, batches: Iterator[pa.RecordBatch]) -> StoredRows:
    try:
        return _stored(planned, origin, batches)
    except HeadwaterError as error:
        raise annotate(error) from None


def _stored(planned: SinkPlan, origin: Origin, batches: Iterator[pa.RecordBatch]) -> StoredRows:
    """Distribute rows to their partitions, divide them into cuts, and send the cuts."""
    import numpy as np  # noqa: PLC0415  (Spark's planner loads this file and needs neither)
    import pyarrow as pa  # noqa: PLC0415

    from spark_jobs.sink.sender import PartitionSender  # noqa: PLC0415

    client = client_of(planned.server)
    # Release 0.1 hashed keys as crc32 does, and gave a task's rows without a key to one partition.
    turn = origin.task + (origin.batch if planned.partitioner == "crc32" else 0)
    targets: dict[int, tuple[Cutter, PartitionSender]] = {}
    with ExitStack() as stack:

        def target_of(partition: int) -> tuple[Cutter, PartitionSender]:
            if partition not in targets:
                sender = PartitionSender(
                    client,
                    origin,
                    stream=planned.stream,
                    stream_uuid=planned.stream_uuid,
                    partition=partition,
                    timeout_ms=planned.timeout_ms,
                )
                stack.callback(sender.abandon)
                targets[partition] = Cutter(), sender
            return targets[partition]

        for rows in batches:
            records = columns.to_records(rows)
            partitions = columns.targets(rows, partitions_count=planned.partitions_count, turn=turn)
            for partition in np.unique(partitions).tolist():
                chosen = partitions == partition
                part = records if chosen.all() else records.filter(pa.array(chosen))
                cutter, sender = target_of(partition)
                for cut in cutter.add(part):
                    sender.send(cut)
        for cutter, sender in targets.values():
            for cut in cutter.finish():
                sender.send(cut)
        for _, sender in targets.values():
            sender.finish()
    return StoredRows(
        records={partition: sender.records_count for partition, (_, sender) in targets.items()},
        repeated=sum(sender.repeated_count for _, sender in targets.values()),
    )
