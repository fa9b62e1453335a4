"""``spark.read.format("headwater")``: ranges planned once on the driver, read on executors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.errors import HeadwaterError
from broker.model.ids import StreamUuid
from broker.model.offsets import OffsetRange
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import partitions, reader
from spark_jobs.source.lookup import BrokerLookup, without_times
from spark_jobs.source.options import SERVER_VARIABLE, SourceOptions
from spark_jobs.source.partitions import OffsetSlice, SliceTask, TableRef
from spark_jobs.source.positions import is_explicit, of_stream
from spark_jobs.source.stream_offsets import recreated

if TYPE_CHECKING:
    import pyarrow as pa

_Ranges = tuple[StreamUuid | None, dict[int, OffsetRange]]


class HeadwaterReader(DataSourceReader):
    """Plans slices on the driver, reads them on executors."""

    def __init__(self, given: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = given
        self._names = names
        # The variable is the driver's: executors may live where nobody set it.
        self._server = given.server or os.environ.get(SERVER_VARIABLE)

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per slice; Spark calls this once per DataFrame."""
        try:
            ranges = self._ranges()
        except HeadwaterError as error:
            raise annotate(error) from None
        total = sum(len(span) for _, spans in ranges.values() for span in spans.values())
        cut = self._options.cut
        table = None
        if cut is not None and cut.table_version is not None:
            table = TableRef(cut.table_uri, cut.cluster)
        return [
            InputPartition(SliceTask(name, uuid, piece, table))
            for name, (uuid, spans) in ranges.items()
            for piece in self._slices(spans, total)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        return reader.read_task(
            partition.value,
            server=self._server,
            columns=self._names,
            emit=self._options.emit,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _slices(self, spans: dict[int, OffsetRange], total: int) -> list[OffsetSlice]:
        size = sum(map(len, spans.values()))
        return partitions.plan(
            spans,
            partitions_min=-(-self._options.partitions_min * size // max(1, total)),
            records_max=self._options.records_per_partition_max,
        )

    def _ranges(self) -> dict[str, _Ranges]:
        """Return what to read of each stream; asks the broker only for what options leave open."""
        lookup = BrokerLookup(client_of(self._server))
        names = lookup.names(self._options.selection)
        return {name: self._stream_ranges(lookup, name) for name in names}

    def _stream_ranges(self, lookup: BrokerLookup, name: str) -> _Ranges:
        asked = self._options
        assert asked.starting is not None, "a batch's options have a default"
        starting = of_stream(asked.starting, name, option="startingOffsets")
        ending = of_stream(asked.ending, name, option="endingOffsets")
        uuid = asked.stream_uuid if asked.cut is None else asked.cut.stream_uuid
        if is_explicit(starting) and is_explicit(ending):
            if uuid is None and asked.emit == "ranges":
                uuid = lookup.uuid(name)
            return uuid, partitions.resolve(name, starting, ending, None)
        stream = lookup.positions(name, asked.selection)
        if uuid not in {None, stream.uuid}:
            raise recreated(name, str(uuid), stream.uuid)
        return stream.uuid, partitions.resolve(
            name,
            without_times(lookup, stream, starting),
            without_times(lookup, stream, ending),
            stream.ranges,
        )
