"""Answers a statement in this process: the same cut, lease and certificate as a read with Spark.

The rows of each stream come from :class:`headwater.reads.history.History`, so a query ends with an
error where a read would. A stream that a query names twice is read twice, from the same cut.

A person waits for the answer, so what takes time overlaps: while libraries are imported, the store
answers, and while DuckDB computes, the next rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from broker.model.certificate import Certificate
from headwater.local_sql.background import begun
from headwater.local_sql.expressions import NeedsSparkError
from headwater.local_sql.stream_rows import StreamRows
from headwater.local_sql.translation import Translated, table_name, translate_statement
from headwater.reads.instant import at_one_instant
from headwater.reads.leases import held_cut
from spark_jobs.read.stream_names import stream_named

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client
    from headwater.local_sql.parsing import Statement

if find_spec("duckdb") is None:  # which is imported later
    raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")


def resolve(statement: Statement, client: Client) -> dict[str, str]:
    """Return for each relation of a statement the stream that it means, as Spark would.

    Raises:
        UnknownStreamError: a relation is not a stream; tables of a catalog are not streams.
        InvalidRequestError: several streams have the name of a relation, apart from case.
    """
    names = [stream.name for stream in client.streams()]
    return {wanted: stream_named(wanted, names) for wanted in statement.relations}


@dataclass
class LocalAnswer:
    """The answer to one statement. Single use.

    Attributes:
        columns: The names of the result's columns.
        records_count: The records of all cuts together.
    """

    columns: tuple[str, ...]
    records_count: int
    _query: Translated
    _streams: dict[str, StreamRows]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Run the query and yield its rows. Blocks.

        Raises:
            NeedsSparkError: DuckDB met a value that it converts in another way than Spark, or has
                not enough memory. No row was yielded.
            HeadwaterError: a stream could not be read exactly; see :class:`History`.
        """
        for stream in self._streams.values():
            stream.begin()
        from headwater.local_sql.duckdb_engine import (  # noqa: PLC0415 - imported meanwhile
            EngineRefusedError,
            RowSource,
            run,
        )

        tables = {
            table_name(self._query.streams, name): RowSource(stream.schema, stream.batches)
            for name, stream in self._streams.items()
        }
        try:
            yield from run(self._query.sql, len(self.columns), tables)
        except EngineRefusedError as error:
            raise NeedsSparkError(str(error)) from error

    def proofs(self) -> list[tuple[Certificate, Cut]]:
        """Return certificate and cut of each stream that was read to its end, after the rows."""
        return [proof for one in self._streams.values() if (proof := one.proof()) is not None]


@contextmanager
def answer(
    statement: Statement, client: Client, *, records_max: int | None = None
) -> Iterator[LocalAnswer]:
    """Take the cuts of a statement's streams, all at one moment, and hold them meanwhile. Blocks.

    Args:
        statement: A parsed statement.
        client: A client of the broker.
        records_max: The most records to read here; None means no limit.

    Raises:
        NeedsSparkError: the statement is not a query, has a part that only Spark answers as Spark
            does, or reads more records than ``records_max``.
        UnknownStreamError: a name is no stream.
        HeadwaterError: a cut could not be taken.
    """
    begun(partial(import_module, "headwater.reads.history"))  # while the broker answers
    streams = resolve(statement, client)
    query = translate_statement(statement, streams)
    with ExitStack() as stack:
        cuts = {name: stack.enter_context(held_cut(client, name)) for name in query.streams}
        if cuts:
            cuts = at_one_instant(cuts, client)
        records_count = sum(cut.records_count for cut in cuts.values())
        if records_max is not None and records_count > records_max:
            raise NeedsSparkError(
                f"{records_count:,} records; up to {records_max:,} are read without Spark"
            )
        rows = {name: StreamRows(client, cut, query.streams[name]) for name, cut in cuts.items()}
        yield LocalAnswer(tuple(name for name, _ in query.columns), records_count, query, rows)
