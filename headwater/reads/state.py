"""A consumer that asks for state: the newest record of each key at a cut, then what comes after it.

The state is exact at one cut, whose offsets are known: the newest record of each key, without
tombstones, by partition and offset (reads/latest.py). The records after the cut come from the
client's own consumer, from exactly the offsets at which the state ends: all of them, tombstones
too. So a table of keys that is filled with the state, and then changed by each later record, is the
state of the stream at :attr:`StateConsumer.positions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from broker.errors import InvalidRequestError
from broker.model.certificate import Certificate
from broker.model.cut import Cut
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.client.consumer import Consumer
from headwater.reads.history import History
from headwater.reads.latest import state_by_partition
from headwater.reads.leases import held_cut


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of one partition, in offset order."""

    partition: int
    rows: pa.RecordBatch
    is_state: bool  # False: records after the cut, each offset once


class StateConsumer:
    """An iterator over the state of a stream at :attr:`cut`, then over later records.

    Use it in a ``with`` statement. The lease of the cut is held until the state is complete, and
    the reads of what comes after it have begun. One thread at a time.
    """

    def __init__(
        self,
        stream: str,
        *,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        server: str | Client | None = None,
    ) -> None:
        """Take a cut of the stream and check its table; see :func:`consume_state`."""
        self._follow = follow
        self._columns = columns
        self._tail: Consumer | None = None
        with ExitStack() as stack:
            # A client of the caller's stays open.
            self._client = (
                server if isinstance(server, Client) else stack.enter_context(Client(server))
            )
            self._holding = stack.enter_context(ExitStack())
            self.cut: Cut = self._holding.enter_context(held_cut(self._client, stream))
            self._history = History(self._client, self.cut)
            self._state = state_by_partition(self._history, columns)
            self._open = stack.pop_all()

    @property
    def positions(self) -> dict[int, Offset] | None:
        """The next offset of each partition; None until the state is complete."""
        if not self._history.complete:
            return None
        ends = {part.partition: part.end for part in self.cut.partitions}
        return ends if self._tail is None else {**ends, **self._tail.positions}

    @property
    def certificate(self) -> Certificate:
        """What was checked of the cut.

        Raises:
            InvalidRequestError: the state is not complete yet.
        """
        if not self._history.complete:
            raise InvalidRequestError("the certificate of a state comes after its last row")
        return self._history.certificate()

    def __iter__(self) -> StateConsumer:
        return self

    def __next__(self) -> StateRows:
        """Return the next rows; with ``follow``, after the state it blocks until there are any.

        Raises:
            HeadwaterError: as :meth:`History.batches`, then as :class:`Consumer`.
        """
        if self._tail is None:
            found = next(self._state, None)
            if found is not None:
                return StateRows(*found, is_state=True)
            if self._follow and self._history.complete:
                self._tail = self._open.enter_context(self._later())
            self._holding.close()
        if self._tail is None:
            raise StopIteration
        one = next(self._tail)
        return StateRows(one.partition, one.fetched.batch, is_state=False)

    def close(self) -> None:
        """End the reads and the lease; a second call does nothing."""
        self._follow = False
        self._state.close()
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _later(self) -> Consumer:
        return self._client.consume(
            self.cut.stream,
            {part.partition: int(part.end) for part in self.cut.partitions},
            columns=self._columns,
            follow=True,
            stream_uuid=self.cut.stream_uuid,
        )


def consume_state(
    stream: str,
    *,
    columns: Sequence[str] | None = None,
    follow: bool = False,
    server: str | Client | None = None,
) -> StateConsumer:
    """Read the newest record of each key, exactly as of one cut; with ``follow``, go on after it.

    The state comes from the key snapshot (``headwater job snapshot``) and the records after it; if
    there is none, from all records. Its keys are in memory while it is read, its values are not.
    Deleted keys are absent; after the state, a tombstone is a row whose value is null.

    Args:
        stream: The stream's name.
        columns: Names of the record's columns, in the order of the result; None means all.
        follow: After the state, return each later record of every partition, without an end.
        server: A client of the brokers, or an address; the default is HEADWATER_SERVER, then this
            machine.

    Raises:
        UnknownStreamError, UnavailableError.
        SchemaMismatchError: ``columns`` is not a list of names of the record's columns.
        CorruptDataError: the state cannot be exact; a subclass says why.
    """
    return StateConsumer(stream, columns=columns, follow=follow, server=server)
