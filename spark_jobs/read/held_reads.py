"""Remembers the cuts and certificates of the DataFrames that a unified read returned.

A DataFrame is found by its identity, and its entry goes when the Python object goes. DataFrames
derived from it have no entry, because Spark gives no link back. The lease belongs to the cut, not
to the Python object: a derived DataFrame may live longer than the returned one, so garbage
collection releases no lease.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import InvalidRequestError
from broker.model.certificate import Certificate
from broker.model.cut import Cut
from headwater.reads.lease_keeper import KEEPER
from tiering.keys.snapshot import LatestTable
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRead:
    """One unified read."""

    cut: Cut
    certificate: Certificate | None  # None: the read was made with certificate="none"
    latest: bool = False
    key_snapshot: LatestTable | None = None  # used by ``latest``; None: it read all records
    location: StoreConfig | None = None  # of the cut's table; None: the cut has no table


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQuery:
    """The result of a statement: the reads of its streams, by name."""

    reads: Mapping[str, HeldRead]


class HeldReads:
    """Reads and queries by DataFrame. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in the middle of our own code
        self._reads: dict[int, HeldRead] = {}
        self._queries: dict[int, HeldQuery] = {}

    def remember(self, rows: DataFrame, held: HeldRead) -> None:
        """Note the read of a DataFrame."""
        with self._lock:
            self._reads[id(rows)] = held
        weakref.finalize(rows, self._forget, id(rows)).atexit = False

    def remember_query(self, result: DataFrame, held: HeldQuery) -> None:
        """Note the reads of a result; when the result goes, their leases are no longer renewed."""
        with self._lock:
            self._queries[id(result)] = held
        weakref.finalize(result, self._forget_query, id(result)).atexit = False

    def query_of(self, result: DataFrame) -> HeldQuery | None:
        """Return the reads of a statement's result; None for any other DataFrame."""
        with self._lock:
            return self._queries.get(id(result))

    def of(self, rows: DataFrame) -> HeldRead:
        """Return the read of a DataFrame; raises InvalidRequestError if no read returned it."""
        with self._lock:
            held = self._reads.get(id(rows))
            query = self._queries.get(id(rows))
        if held is None and query is not None and len(query.reads) == 1:
            return next(iter(query.reads.values()))
        if held is None:
            raise InvalidRequestError(
                "headwater.read did not return this DataFrame; pass the returned DataFrame, from "
                "which this one was filtered or joined"
            )
        return held

    def _forget(self, identity: int) -> None:
        with self._lock:
            self._reads.pop(identity, None)

    def _forget_query(self, identity: int) -> None:
        with self._lock:
            held = self._queries.pop(identity, None)
        for read in held.reads.values() if held is not None else ():
            abandon(read.cut)


READS: Final = HeldReads()


def certificate(rows: DataFrame) -> Certificate:
    """Return the certificate of a DataFrame from a unified read.

    Raises:
        InvalidRequestError: the read was made without one, or the DataFrame is not from a read.
    """
    held = READS.of(rows)
    if held.certificate is None:
        raise InvalidRequestError('this read was made with certificate="none"')
    return held.certificate


def cut_of(rows: DataFrame) -> Cut:
    """Return the cut of a DataFrame from a unified read; ``.save()`` gives it as a line of text."""
    return READS.of(rows).cut


def release(what: DataFrame | Cut) -> bool:
    """End the lease of a DataFrame or a cut, or all leases of a SQL result.

    Returns whether a lease was held. A later action reads the records that still exist, or fails
    with a typed error; no action returns fewer rows.
    """
    if isinstance(what, Cut):
        return KEEPER.release(what.lease.lease_id)
    query = READS.query_of(what)
    if query is not None:
        held = [KEEPER.release(read.cut.lease.lease_id) for read in query.reads.values()]
        return any(held)
    return KEEPER.release(cut_of(what).lease.lease_id)


def abandon(cut: Cut) -> None:
    """Stop renewing a cut's lease; the lease still holds until it expires."""
    KEEPER.abandon(cut.lease.lease_id)


def release_all() -> int:
    """End every lease that this process holds for its reads; return their number."""
    return KEEPER.release_all()
