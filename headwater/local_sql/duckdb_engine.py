"""DuckDB, in memory, over Arrow streams: the only module that imports it.

A connection reads the tables that it was given and nothing else: no file, no network, no extension.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import duckdb
import pyarrow as pa

from broker.errors import HeadwaterError

# DuckDB reads a stream through Arrow's engine, which warns on stderr of each buffer whose address
# is no multiple of its item's size. x86 and ARM read such buffers well.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")

Batches = Callable[[], Iterator[pa.RecordBatch]]

_ROWS_PER_BATCH: Final = 8192
_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": "1GB",
    "max_temp_directory_size": "0KB",  # Spark runs queries that do not fit in memory
}


class EngineRefusedError(Exception):
    """DuckDB did not run the query, or stopped at a value; the text is DuckDB's."""


class RowSource:
    """A table whose rows are read anew, from the first to the last, at each scan.

    Args:
        schema: The columns.
        batches: Starts a read.
    """

    def __init__(self, schema: pa.Schema, batches: Batches) -> None:
        self._schema = schema
        self._batches = batches
        self.failure: Exception | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of the rows; no row is read before DuckDB takes the first one."""
        reader = pa.RecordBatchReader.from_batches(self._schema, self._rows())
        return reader.__arrow_c_stream__(requested_schema)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. An error is kept, because Arrow passes on only its text."""
        try:
            yield from self._batches()
        except Exception as error:
            self.failure = error
            raise


def run(sql: str, columns_count: int, tables: Mapping[str, RowSource]) -> Iterator[tuple[Any, ...]]:
    """Run one query to its end, then yield its rows as Python values; times have the zone UTC.

    The whole answer is computed before its first row is given, so an error comes before any row.
    Blocks.

    Raises:
        EngineRefusedError: DuckDB cannot bind the query, met a value that it converts in another
            way than Spark, or has not enough memory.
        HeadwaterError: a table could not be read.
    """
    names = ", ".join(f"c{index}" for index in range(columns_count))
    connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
    try:
        connection.execute("SET TimeZone='UTC'")
        with _alone():
            for name, source in tables.items():
                connection.register(name, source)
        connection.execute("SET enable_external_access=false")
        connection.execute("SET lock_configuration=true")
        with _alone():
            connection.execute(f"CREATE TEMP TABLE temp.answer({names}) AS {sql}")
        cursor = connection.execute("FROM temp.answer")
        while rows := cursor.fetchmany(_ROWS_PER_BATCH):
            yield from rows
    except duckdb.Error as error:
        for source in tables.values():
            if isinstance(source.failure, HeadwaterError):
                raise source.failure from error
        raise EngineRefusedError(str(error).splitlines()[0]) from error
    finally:
        with suppress(duckdb.Error):
            connection.close()


@contextmanager
def _alone() -> Iterator[None]:
    """Let DuckDB project and filter by itself.

    It would ask pyarrow.dataset to do that, if it can be imported: 50 ms, and another engine whose
    comparisons would have to equal Spark's, too. The tables give the wanted columns already.
    """
    name = "pyarrow.dataset"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # an import raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[name]
