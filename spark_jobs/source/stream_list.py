"""``emit=streams``: a row for each stream of the broker; Spark's catalog lists its tables by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.errors import HeadwaterError
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import shapes
from spark_jobs.source.lookup import make_contact
from spark_jobs.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


class StreamListReader(DataSourceReader):
    """Asks the broker for the streams when Spark plans; the only task returns the answer."""

    def __init__(self, given: SourceOptions, server: str | None) -> None:
        """Keep the selection of streams and the broker's address."""
        self._selection = given.selection
        self._server = server

    def partitions(self) -> list[InputPartition]:
        """Return the streams of the selection as the value of one partition."""
        client = client_of(self._server)
        try:
            make_contact(client)
            streams = client.streams()
        except HeadwaterError as error:
            raise annotate(error) from None
        wanted = self._selection.names
        if self._selection.pattern is not None:
            wanted = self._selection.matching(stream.name for stream in streams)
        rows = [
            (one.name, one.uuid, one.config.partitions) for one in streams if one.name in wanted
        ]
        return [InputPartition(tuple(rows))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield shapes.stream_rows(partition.value)
