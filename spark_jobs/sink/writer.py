"""The classes that Spark calls to write; they hold plain values and are pickled to the tasks.

Rows are stored as tasks run: there is no commit, and a write that fails keeps what was stored. It
is completed by running it again under the same name, which a streaming query has by its checkpoint
and a batch write by the option ``idempotenceKey``.
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
    """What every task of a write has to know."""

    server: str | None
    stream: str
    stream_uuid: StreamUuid
    partitions_count: int
    key: str  # names a batch write; a streaming query's name is in its tasks
    timeout_ms: int


@dataclass(frozen=True)
class StoredRows(WriterCommitMessage):
    """What a task stored, by the stream's partition; ``repeated`` was there already."""

    records: dict[int, int] = field(default_factory=dict)
    repeated: int = 0


def plan(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> SinkPlan:
    """Check everything that can be checked before the first task; asks the broker.

    Raises:
        InvalidRequestError: a mode that is not append; an option that is not understood.
        SchemaMismatchError: these are not the columns of records.
        UnknownStreamError, StreamRecreatedError, UnavailableError.
    """
    if overwrite:
        raise InvalidRequestError(
            "a stream is a log: it only takes mode append, not overwrite or complete", field="mode"
        )
    given = parse(options, streaming=streaming)
    columns.check_schema([(one.name, one.dataType.simpleString()) for one in schema.fields])
    server = given.server or os.environ.get(_SERVER_VARIABLE)
    found = client_of(server).stream(given.stream)
    if given.stream_uuid not in (None, found.uuid):
        raise StreamRecreatedError(
            f"stream {given.stream} is {found.uuid} now, not {given.stream_uuid}",
            expected=given.stream_uuid,
            found=found.uuid,
        )
    return SinkPlan(
        server=server,
        stream=given.stream,
        stream_uuid=found.uuid,
        partitions_count=found.config.partitions,
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
        """Store one task's rows; on an executor."""
        task = _task().partitionId()
        return _store(
            self._plan, Origin(kind="write", key=self._plan.key, batch=0, task=task), iterator
        )


class HeadwaterStreamWriter(DataSourceStreamArrowWriter):
    """Appends a streaming query's rows to a stream."""

    def __init__(self, planned: SinkPlan) -> None:
        self._plan = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store one task's rows of one micro-batch; on an executor."""
        context = _task()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or not batch or not batch.isdigit():
            # Without them a retried task could not be told from new rows.
            raise annotate(InvalidRequestError("Spark did not tell this task its query and batch"))
        origin = Origin(kind="query", key=query, batch=int(batch), task=context.partitionId())
        return _store(self._plan, origin, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what tasks stored is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the batch is completed when the query runs again."""


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise annotate(InvalidRequestError("a write runs in a task of Spark's"))
    return context


def _store(planned: SinkPlan, origin: Origin, batches: Iterator[pa.RecordBatch]) -> StoredRows:
    try:
        return _stored(planned, origin, batches)
    except HeadwaterError as error:
        raise annotate(error) from None


def _stored(planned: SinkPlan, origin: Origin, batches: Iterator[pa.RecordBatch]) -> StoredRows:
    """Route rows to their partitions, cut them, send the cuts."""
    import numpy as np  # noqa: PLC0415  (Spark's planner loads this file and needs neither)
    import pyarrow as pa  # noqa: PLC0415

    from spark_jobs.sink.sender import PartitionSender  # noqa: PLC0415

    client = client_of(planned.server)
    lanes: dict[int, tuple[Cutter, PartitionSender]] = {}
    with ExitStack() as stack:

        def lane(partition: int) -> tuple[Cutter, PartitionSender]:
            if partition not in lanes:
                sender = PartitionSender(
                    client,
                    origin,
                    stream=planned.stream,
                    stream_uuid=planned.stream_uuid,
                    partition=partition,
                    timeout_ms=planned.timeout_ms,
                )
                stack.callback(sender.abandon)
                lanes[partition] = Cutter(), sender
            return lanes[partition]

        for rows in batches:
            records = columns.to_records(rows)
            partitions = columns.targets(
                rows, partitions_count=planned.partitions_count, task=origin.task
            )
            for partition in np.unique(partitions).tolist():
                chosen = partitions == partition
                part = records if chosen.all() else records.filter(pa.array(chosen))
                cutter, sender = lane(partition)
                for cut in cutter.add(part):
                    sender.send(cut)
        for cutter, sender in lanes.values():
            for cut in cutter.finish():
                sender.send(cut)
        for _, sender in lanes.values():
            sender.finish()
    return StoredRows(
        records={partition: sender.records_count for partition, (_, sender) in lanes.items()},
        repeated=sum(sender.repeated_count for _, sender in lanes.values()),
    )
