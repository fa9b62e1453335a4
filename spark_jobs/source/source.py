"""The class behind Spark's format ``headwater``.

Spark pickles the class by reference and builds it in worker processes. So this module is
importable, imports neither pyarrow nor the Flight client, and its objects hold plain values only.

There is no ``pushFilters`` on purpose: Spark 4.2 keeps pushed filters on an object that DataFrames
share, and a reused DataFrame then silently returns wrong rows. Use options to narrow a read.
"""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from broker.errors import HeadwaterError
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import columns, jvm_plan
from spark_jobs.source.batch_plan import StreamPlan, at_moment, drop, in_connect, make_plan
from spark_jobs.source.batch_reader import HeadwaterReader, server_of
from spark_jobs.source.options import SourceOptions, columns_of, parse_batch, parse_stream
from spark_jobs.source.stream_list import StreamListReader
from spark_jobs.source.stream_reader import HeadwaterStreamReader


class HeadwaterDataSource(DataSource):
    """Offset ranges of streams, bounded or not. Options: see :mod:`spark_jobs.source.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "headwater"

    _plans: tuple[StreamPlan, ...] | None = None
    _fixed: SourceOptions | None = None  # the options with the cut that ``asOf`` asked for

    def schema(self) -> str | StructType:
        """Return the projection that the options ask for; Spark calls this within ``load()``.

        A batch read is planned here, so that its rows are those of the moment of ``load()``: this
        is the only call in ``load()`` whose object Spark keeps. It is not known yet whether the
        read will be a batch. So an error of planning is ignored here; it is raised again later if
        the read is a batch. With ``asOf`` it is raised here, because a missing table of the catalog
        is an error for a batch and for a stream. The cut that ``asOf`` takes also fixes the read in
        Spark Connect, for as long as Spark keeps this object: one statement. For a table of the
        catalog the schema also says which files the JVM may read.
        """
        try:
            names, known = columns_of(self.options)
            if "asof" in {name.lower() for name in self.options}:
                self._take_cut()
            if self._fixed is not None and self._fixed.files_by_jvm:
                return self._with_files(names)
        except HeadwaterError as error:
            raise annotate(error) from None
        if self._fixed is None and not in_connect():
            with suppress(HeadwaterError):
                given = parse_batch(self.options)
                if given.lease is None and given.emit != "streams":
                    self._plans = make_plan(given, client_of(server_of(given)), patience_s=0)
        return columns.ddl(names, known)

    def _take_cut(self) -> None:
        try:
            given = parse_batch(self.options)
        except HeadwaterError:
            parse_stream(self.options)  # options that only a stream may have; else it raises, too
            return
        client = client_of(server_of(given))
        self._fixed = at_moment(given, client)
        self._plans = make_plan(self._fixed, client)

    def _with_files(self, names: tuple[str, ...]) -> StructType:
        assert self._fixed is not None, "asOf has fixed the read"
        assert self._fixed.cut is not None, "asOf has fixed the read"
        assert self._plans is not None, "asOf has planned the read"
        client = client_of(server_of(self._fixed))
        return jvm_plan.schema_with_plan(names, self._fixed.cut, self._plans[0], client)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; a schema given by the user, or by the JVM, is a projection."""
        try:
            given = self._fixed or parse_batch(self.options)
            if given.emit == "streams":
                return StreamListReader(given, server_of(given))
            told = jvm_plan.told_of(schema)
            return HeadwaterReader(given, _names(given, schema), self._plans, told)
        except HeadwaterError as error:
            raise annotate(error) from None

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return the streaming reader; a schema given by the user is a projection."""
        try:
            given = parse_stream(self.options)
            if self._plans is not None:  # not a batch; a streaming query takes its own leases
                drop(self._plans, client_of(server_of(given)))
                self._plans = self._fixed = None
            return HeadwaterStreamReader(given, _names(given, schema))
        except HeadwaterError as error:
            raise annotate(error) from None

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write; see :mod:`spark_jobs.sink`."""
        from spark_jobs.sink import writer  # noqa: PLC0415  (reads do not need it)

        return writer.batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; see :mod:`spark_jobs.sink`."""
        from spark_jobs.sink import writer  # noqa: PLC0415  (reads do not need it)

        return writer.stream_writer(self.options, schema, overwrite=overwrite)


def _names(given: SourceOptions, schema: StructType) -> tuple[str, ...]:
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    where = "the schema of the read"
    return columns.check_types(fields, where=where, known=given.known_columns())
