"""What is known about the DataFrames that a unified read returned: their cuts and certificates.

A DataFrame is found by identity and forgotten with it; DataFrames derived from it are not listed,
because Spark offers no link back. The lease belongs to the cut, not to the Python object: a derived
DataFrame may outlive the one that was returned, so garbage collection releases nothing.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import InvalidRequestError
from broker.model.certificate import Certificate
from broker.model.cut import Cut
from spark_jobs.leases import KEEPER
from tiering.key_snapshot import LatestTable


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRead:
    """One unified read."""

    cut: Cut
    certificate: Certificate | None  # None: none was asked for
    latest: bool = False
    key_snapshot: LatestTable | None = None  # what ``latest`` began with; None: the first record


class HeldReads:
    """Reads by DataFrame. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in the middle of our own code
        self._reads: dict[int, HeldRead] = {}

    def remember(self, rows: Any, held: HeldRead) -> None:
        """Note what a DataFrame is."""
        with self._lock:
            self._reads[id(rows)] = held
        weakref.finalize(rows, self._forget, id(rows)).atexit = False

    def of(self, rows: Any) -> HeldRead:
        """Return what a DataFrame is; raises InvalidRequestError for one not from ``read``."""
        with self._lock:
            held = self._reads.get(id(rows))
        if held is None:
            raise InvalidRequestError(
                "this is not a DataFrame that headwater.read returned; ask the one that you "
                "filtered or joined it from"
            )
        return held

    def _forget(self, identity: int) -> None:
        with self._lock:
            self._reads.pop(identity, None)


READS: Final = HeldReads()


def certificate(rows: Any) -> Certificate:
    """Return the certificate of a DataFrame from a unified read.

    Raises:
        InvalidRequestError: the read was made without one, or the DataFrame is not from a read.
    """
    held = READS.of(rows)
    if held.certificate is None:
        raise InvalidRequestError('this read was made with certificate="none"')
    return held.certificate


def cut_of(rows: Any) -> Cut:
    """Return the cut of a DataFrame from a unified read; ``.save()`` makes it one line of text."""
    return READS.of(rows).cut


def release(what: Any) -> bool:
    """End the lease of a DataFrame or a cut; tell whether it was still held.

    Later actions read what is still there, or fail by name; none returns fewer rows.
    """
    cut = what if isinstance(what, Cut) else cut_of(what)
    return KEEPER.release(cut.lease.lease_id)


def release_all() -> int:
    """End every lease that this process holds for its reads; return how many."""
    return KEEPER.release_all()
