"""``spark.readStream.format("headwater")``: translates Spark's calls for the planner.

Spark builds this object twice: once in the long-lived process that plans a query, and once to
pickle it to the executors. So it holds only options. The planner is created at the first call, and
everything that an executor needs is in its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker.errors import HeadwaterError
from broker.model.ids import StreamUuid
from broker.model.offsets import OffsetRange
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import partitions, reader
from spark_jobs.source.batch_reader import packed, server_of
from spark_jobs.source.lookup import BrokerLookup
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.partitions import SliceTask, TableRef
from spark_jobs.source.stream_holds import StreamHolds
from spark_jobs.source.stream_offsets import QueryOffsets, parse_offsets
from spark_jobs.source.stream_planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _annotated(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Attach the wire form to our errors, because Spark reports errors as text."""

    @wraps(method)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        try:
            return method(*args, **options)
        except HeadwaterError as error:
            raise annotate(error) from None

    return call


class HeadwaterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the query's process, reads slices on executors."""

    def __init__(self, given: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = given
        self._names = names
        self._server = server_of(given)
        self._made: tuple[StreamPlanner, StreamHolds, BrokerLookup] | None = None

    # ------------------------------------------------------------------ the planning process

    @_annotated
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Return the beginning of a new query."""
        return self._json(self._planner.initial())

    @_annotated
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Return the end of the next batch, within the limits; ``start`` if there is no batch."""
        limited = not isinstance(limit, ReadAllAvailable)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        before = self._parsed(start)
        end = self._planner.latest(before, limited=limited, records_max=rows)
        return start if end is before else self._json(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return the limit of one batch from the options."""
        if self._options.records_per_trigger_max is not None:
            return ReadMaxRows(self._options.records_per_trigger_max)
        if self._options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger_max)
        return ReadAllAvailable()

    @_annotated
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Let the query end with the records that are committed now."""
        self._planner.prepare_available_now()

    @_annotated
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  (Spark's name)
        """Return the high watermarks, from which Spark's progress computes a query's backlog."""
        found = self._planner.reported()
        single = self._options.selection.single
        if found is None or (single is not None and single not in found.streams):
            return None
        return self._json(found)

    @_annotated
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a batch, small ones packed; equal offsets give equal slices."""
        ranges = self._parsed(start).ranges(self._parsed(end))
        if ranges:
            self._planner.require_history(self._parsed(end))
        asked = self._options
        total = sum(len(span) for _, spans in ranges.values() for span in spans.values())
        tasks = []
        for name, (uuid, spans) in ranges.items():
            size = sum(map(len, spans.values()))
            pieces = partitions.plan(
                spans,
                partitions_min=-(-asked.partitions_min * size // max(1, total)),
                records_max=asked.records_per_partition_max,
            )
            table = self._table(name, uuid, spans) if pieces else None
            keyring = self._options.keyring_file
            tasks += [SliceTask(name, uuid, piece, table, None, keyring) for piece in pieces]
        return packed(tasks, asked)

    def stop(self) -> None:
        """End the leases."""
        if self._made is not None:
            self._made[1].release()

    # ------------------------------------------------------------------ executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pack of slices."""
        return reader.read_tasks(
            partition.value,
            server=self._server,
            columns=self._names,
            emit=self._options.emit,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    # ------------------------------------------------------------------ helpers

    @property
    def _planner(self) -> StreamPlanner:
        return self._parts()[0]

    def _parts(self) -> tuple[StreamPlanner, StreamHolds, BrokerLookup]:
        if self._made is None:
            client = client_of(self._server)
            lookup, holds = BrokerLookup(client), StreamHolds(client)
            self._made = StreamPlanner(self._options, lookup, holds), holds, lookup
        return self._made

    def _table(
        self, name: str, uuid: StreamUuid, spans: Mapping[int, OffsetRange]
    ) -> TableRef | None:
        if self._options.emit == "ranges":
            return None
        starts = {number: span.start for number, span in spans.items()}
        return self._parts()[1].table(name, uuid, starts)

    def _json(self, offsets: QueryOffsets) -> dict[str, Any]:
        return offsets.to_json(self._options.selection.single)

    def _parsed(self, body: Mapping[str, Any]) -> QueryOffsets:
        selection = self._options.selection
        names: dict[str, str] = {}
        if selection.single is None and isinstance(body, dict) and "s" not in body:
            lookup = self._parts()[2]  # the checkpoint is from when the query had one stream
            names = {lookup.uuid(name): name for name in lookup.names(selection)}
        return parse_offsets(body, single=selection.single, names=names)
