"""Chooses the broker for a read, and another broker after a failure.

The leader comes first, because it knows the high watermark. If the leader does not answer, the read
asks each other replica once, waits, and begins again, until no row has come for the time limit. A
read that follows a single broker asks it again for as long: it may be restarted.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

import pyarrow as pa

from broker.codec.flight.protocol import ReadRequest
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    NoAnswerError,
    NotLeaderError,
    StreamRecreatedError,
)
from headwater.client.address import Address
from headwater.client.brokers import Brokers, ToldPlace
from headwater.client.throttle import throttle_ms

RETRY_MS = 30_000  # a read that has had no row for so long fails
IDLE_MS: Final = 2_000  # after so long without rows, a following read checks the broker
_PROBE_MS: Final = 2_000
_BACKOFF_MS_MIN: Final = 20
_BACKOFF_MS_MAX: Final = 500


class Call(Protocol):
    """A do_get that runs."""

    def read(self) -> tuple[pa.RecordBatch, bytes] | None:
        """Return the next batch and its mark, or None at the end. Blocks."""

    def cancel(self) -> None:
        """Make the running and every later read end. Any thread."""


class ReadOpener(Protocol):
    """Opens a read, and opens it again elsewhere."""

    def get(self, request: ReadRequest) -> Call:
        """Open a read; raises a HeadwaterError if there is no broker to ask now."""

    def again(self, error: HeadwaterError) -> bool:
        """Tell whether the read should continue after this error; waits before another attempt."""

    def progressed(self) -> None:
        """Note that rows came."""

    def stop(self) -> None:
        """End all waits of the route. Any thread."""

    def lost(self) -> HeadwaterError | None:
        """Check a silent broker; return why the read must leave it, else None. Blocks."""


class ReadRoute:
    """One read of one partition. One call at a time, except :meth:`stop`."""

    def __init__(
        self, brokers: Brokers, request: ReadRequest, *, retry_ms: int | None = None
    ) -> None:
        self._brokers = brokers
        self._request = request
        self._retry_ms = RETRY_MS if retry_ms is None else retry_ms
        self._at: Address | None = None
        self._failed: list[Address] = []  # brokers not to ask, until each of them has failed
        # Brokers that failed since the last rows came, and whether it was by a damaged copy.
        self._damaged: dict[Address, bool] = {}
        self._failing_since_ms: float | None = None
        self._backoff_ms = _BACKOFF_MS_MIN
        self._stopped = threading.Event()

    def stop(self) -> None:
        """See ``ReadOpener.stop``."""
        self._stopped.set()

    def get(self, request: ReadRequest) -> Call:
        """See ``ReadOpener.get``."""
        self._at = self._choose()
        return self._brokers.connection(self._at).get(request)

    def _choose(self) -> Address:
        brokers = self._brokers
        if not brokers.several:
            return brokers.known()[0]
        place = self._place()
        leader = [] if place.address is None else [place.address]
        if self._request.uncommitted:
            if not leader:
                raise NotLeaderError(f"{self._request.stream}/{place.partition} has no leader now")
            return leader[0]
        known = brokers.known()
        holders = [at for one in place.replicas if (at := brokers.address_of(one)) is not None]
        for one in dict.fromkeys([*leader, *holders, *(known if not holders else [])]):
            if one not in self._failed:
                return one
        self._failed.clear()
        return leader[0] if leader else known[0]

    def _place(self) -> ToldPlace:
        request = self._request
        return self._brokers.place(request.stream, request.partition, request.stream_uuid)

    def again(self, error: HeadwaterError) -> bool:
        """See ``ReadOpener.again``: another replica may have the records that one lacks."""
        several = self._brokers.several
        worth = error.retriable or (several and isinstance(error, CorruptDataError))
        if not worth or isinstance(error, StreamRecreatedError):
            return False
        asked_ms = throttle_ms(error)
        if not several and not self._request.follow and not asked_ms:
            return False  # only a read with ``follow`` waits for a restart of a single broker
        now_ms = time.monotonic() * 1000
        if self._failing_since_ms is None:
            self._failing_since_ms, self._backoff_ms = now_ms, _BACKOFF_MS_MIN
        elif isinstance(error, CorruptDataError) and self._are_all_damaged():
            return False  # every broker was asked
        elif now_ms + self._backoff_ms > self._failing_since_ms + self._retry_ms:
            return False
        if self._at is not None and not asked_ms:
            self._note_failure(self._at, error)
        if self._stopped.wait(max(self._backoff_ms, asked_ms) / 1000):
            return False
        self._backoff_ms = min(2 * self._backoff_ms, _BACKOFF_MS_MAX)
        return True

    def _note_failure(self, at: Address, error: HeadwaterError) -> None:
        self._failed.append(at)
        self._damaged[at] = isinstance(error, CorruptDataError)
        if isinstance(error, NoAnswerError):
            self._brokers.avoid(at)

    def _are_all_damaged(self) -> bool:
        """Whether the broker that was asked, and each other one that failed, has told of damage."""
        return self._at in self._damaged and all(self._damaged.values())

    def progressed(self) -> None:
        """See ``ReadOpener.progressed``."""
        if self._failing_since_ms is not None:
            self._failing_since_ms = None
            self._failed.clear()
            self._damaged.clear()

    def lost(self) -> HeadwaterError | None:
        """See ``ReadOpener.lost``: the broker does not answer, or is reported as not in sync."""
        at = self._at
        if at is None or not self._brokers.several:
            return None
        try:
            self._brokers.connection(at).action("brokers", {}, timeout_ms=_PROBE_MS)
        except HeadwaterError as error:
            return error
        try:
            place = self._place()
        except HeadwaterError:
            return None
        in_sync = {self._brokers.address_of(one) for one in place.isr}
        if place.leader is not None and None not in in_sync and at not in in_sync:
            return NotLeaderError(f"the broker at {at.url} is not in sync")
        return None
