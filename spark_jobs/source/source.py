"""The classes that Spark sees: ``spark.read.format("headwater")``.

Spark pickles them by reference and builds them in worker processes, so this module is importable,
imports neither pyarrow nor the Flight client, and its objects hold plain values only.

There is no ``pushFilters`` on purpose: Spark 4.2 keeps pushed filters on an object that DataFrames
share, and a reused DataFrame then silently returns wrong rows. Narrow a read by options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.errors import HeadwaterError, StreamRecreatedError
from broker.model.offsets import OffsetRange
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import columns, partitions, reader
from spark_jobs.source.options import SERVER_VARIABLE, SourceOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa


class HeadwaterDataSource(DataSource):
    """Offset ranges of one stream. Options: see :mod:`spark_jobs.source.options`."""

    def __init__(self, options: dict[str, str]) -> None:  # Spark passes it by this name
        super().__init__(options)
        try:
            self._options = parse(options)
        except HeadwaterError as error:
            raise annotate(error) from None

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "headwater"

    def schema(self) -> str:
        """Return the projection of option ``columns``; never asks a server."""
        return columns.ddl(self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; a schema given by the user is a projection."""
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        try:
            names = columns.check_types(fields, where="the schema of the read")
        except HeadwaterError as error:
            raise annotate(error) from None
        return HeadwaterReader(self._options, names)


class HeadwaterReader(DataSourceReader):
    """Plans slices on the driver, reads them on executors."""

    def __init__(self, given: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = given
        self._names = names
        # The variable is the driver's: executors may live where nobody set it.
        self._server = given.server or os.environ.get(SERVER_VARIABLE)
        self._stream_uuid = given.stream_uuid

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per slice; Spark calls this once per DataFrame."""
        asked = self._options
        try:
            ranges = partitions.resolve(asked, None if asked.explicit() else self._retained())
        except HeadwaterError as error:
            raise annotate(error) from None
        slices = partitions.plan(
            ranges,
            partitions_min=asked.partitions_min,
            records_max=asked.records_per_partition_max,
        )
        return [InputPartition(piece) for piece in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        if partition.value is None:  # what Spark makes of an empty list of partitions
            return iter(())
        return reader.read_slice(
            client_of(self._server),
            partition.value,
            stream=self._options.stream,
            stream_uuid=self._stream_uuid,
            columns=self._names,
        )

    def _retained(self) -> dict[int, OffsetRange]:
        """Ask the broker for ``[start, high watermark)`` of every partition."""
        found = client_of(self._server).describe(self._options.stream)
        wanted = self._options.stream_uuid
        if wanted is not None and found.stream.uuid != wanted:
            raise StreamRecreatedError(
                f"stream {self._options.stream} is {found.stream.uuid} now, not {wanted}",
                expected=wanted,
                found=found.stream.uuid,
            )
        # From now on the read is of this incarnation: executors pass the uuid on.
        self._stream_uuid = found.stream.uuid
        return {
            part.partition: OffsetRange(part.start, part.high_watermark)
            for part in found.partitions
        }
