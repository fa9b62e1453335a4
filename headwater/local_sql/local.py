"""Answers a statement in this process: the same cut, lease and certificate as a read with Spark.

The rows of each stream come from :class:`headwater.reads.history.History`, so a query ends with an
error where a read would. A stream that a query names twice is read twice, from the same cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.model.certificate import Certificate
from headwater.local_sql.duckdb_engine import EngineRefusedError, RowSource, run
from headwater.local_sql.expressions import NeedsSparkError
from headwater.local_sql.translation import Translated, translate_statement
from headwater.reads.history import History
from headwater.reads.instant import at_one_instant
from headwater.reads.leases import held_cut
from spark_jobs.read.stream_names import stream_named

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client
    from headwater.local_sql.parsing import Statement


def resolve(statement: Statement, client: Client) -> dict[str, str]:
    """Return for each relation of a statement the stream that it means, as Spark would.

    Raises:
        UnknownStreamError: a relation is not a stream; tables of a catalog are not streams.
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
    _client: Client
    _cuts: Mapping[str, Cut]
    _complete: dict[str, History] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Run the query and yield its rows. Blocks.

        Raises:
            NeedsSparkError: DuckDB met a value that it converts in another way than Spark, or has
                not enough memory. No row was yielded.
            HeadwaterError: a stream could not be read exactly; see :class:`History`.
        """
        tables = {name: self._table(name) for name in self._query.streams}
        try:
            yield from run(self._query.sql, len(self.columns), tables)
        except EngineRefusedError as error:
            raise NeedsSparkError(str(error)) from error

    def proofs(self) -> list[tuple[Certificate, Cut]]:
        """Return certificate and cut of each stream that was read to its end, after the rows."""
        return [(history.certificate(), history.cut) for history in self._complete.values()]

    def _table(self, name: str) -> RowSource:
        wanted = self._query.streams[name]
        cut = self._cuts[name]

        def batches() -> Iterator[pa.RecordBatch]:
            history = History(self._client, cut)
            yield from history.batches(wanted)
            self._complete[name] = history

        return RowSource(pa.schema([ROW_SCHEMA.field(column) for column in wanted]), batches)


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
        columns = tuple(name for name, _ in query.columns)
        yield LocalAnswer(columns, records_count, query, client, cuts)
