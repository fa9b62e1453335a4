"""The rows of one stream of a statement, read ahead of the engine that computes with them.

The store is asked for the table's log as soon as the cut is known, and the first read begins before
the engine asks for it. Each batch is read on a thread while the batch before it is in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from headwater.local_sql.background import begun
from headwater.reads.table_access import table_location
from tiering.table.log_copy import store_for_one_read

if TYPE_CHECKING:
    from broker.model.certificate import Certificate
    from broker.model.cut import Cut
    from headwater.client import Client
    from headwater.reads.history import History


class StreamRows:
    """Reads one cut, anew at each scan. Any thread.

    Attributes:
        schema: The columns of the batches.
    """

    def __init__(self, client: Client, cut: Cut, columns: Sequence[str]) -> None:
        """Ask the store for the log of the cut's table, and wait for nothing."""
        self.schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        self._client = client
        self._cut = cut
        self._complete: History | None = None
        version = cut.table_version
        self._store = (
            None
            if version is None
            else begun(lambda: store_for_one_read(table_location(client, cut), version))
        )
        self._first: _Read | None = None

    def begin(self) -> None:
        """Begin the first read, and wait for nothing but imports."""
        self._first = self._read()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows; errors as for :class:`headwater.reads.history.History`."""
        read, self._first = self._first or self._read(), None
        rows, coming = read
        while (batch := coming.result()) is not None:
            coming = begun(partial(next, rows, None))
            yield batch

    def proof(self) -> tuple[Certificate, Cut] | None:
        """Return certificate and cut, if a read has come to its end."""
        return None if self._complete is None else (self._complete.certificate(), self._cut)

    def _read(self) -> _Read:
        from headwater.reads.history import History  # noqa: PLC0415 - while the store answers

        def rows() -> Iterator[pa.RecordBatch]:
            store = None if self._store is None else self._store.result()
            history = History(self._client, self._cut, store=store)
            yield from history.batches(self.schema.names)
            self._complete = history

        rest = rows()
        return rest, begun(partial(next, rest, None))


_Read = tuple[Iterator[pa.RecordBatch], Future[pa.RecordBatch | None]]  # the rest, the first batch
