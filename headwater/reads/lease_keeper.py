"""Renews the leases of reads: one daemon thread per driver process.

An expired lease does not make a read wrong. Records and files that it held may then be deleted, and
a read of them fails with a typed error. So a lost lease is logged and remembered, and no read is
stopped. The thread exists only while leases are held. Leases are dropped when their session has
stopped and when the interpreter exits. The leases of a driver that dies expire by themselves.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from broker.errors import HeadwaterError, UnavailableError, UnknownLeaseError
from broker.model.cut import Lease
from broker.model.ids import LeaseId

LEASE_TTL_MS_DEFAULT: Final = 600_000  # ten minutes: outlives a restart of the broker
_RENEWALS_PER_TTL: Final = 3  # two may fail before the lease is in danger
_CHECK_S: Final = 5.0  # how often the thread checks whether the sessions still run
_RETRY_S: Final = 2.0  # pause after a broker did not answer

_log = logging.getLogger("headwater.read")


class LeaseClient(Protocol):
    """The methods of the client that the keeper uses, also from its own thread."""

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Extend a lease; raises UnknownLeaseError once it has expired."""

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease; an unknown lease is no error."""


@dataclass(slots=True, kw_only=True)
class _KeptLease:
    lease: Lease
    client: LeaseClient
    ttl_ms: int
    drop_at_end: bool
    what: str
    in_use: Callable[[], bool]
    renew_at_s: float  # monotonic
    lost: HeadwaterError | None = None


class LeaseKeeper:
    """Renews leases from :meth:`hold` until :meth:`release` or :meth:`abandon`. Any thread."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._held: dict[LeaseId, _KeptLease] = {}
        self._abandoned: deque[LeaseId] = deque()
        self._thread: threading.Thread | None = None

    def hold(
        self,
        lease: Lease,
        *,
        client: LeaseClient,
        ttl_ms: int,
        drop_at_end: bool,
        what: str,
        in_use: Callable[[], bool] = lambda: True,
    ) -> None:
        """Renew a lease three times per ``ttl_ms`` from now on.

        Args:
            lease: a live lease.
            client: a client of the broker that gave the lease.
            ttl_ms: time to live that each renewal requests.
            drop_at_end: end the lease on release; otherwise it expires by itself.
            what: description of the holder, for the log.
            in_use: called every few seconds; when it returns False, the lease is released.
        """
        held = _KeptLease(
            lease=lease,
            client=client,
            ttl_ms=ttl_ms,
            drop_at_end=drop_at_end,
            what=what,
            in_use=in_use,
            renew_at_s=self._monotonic_s() + ttl_ms / 1000 / _RENEWALS_PER_TTL,
        )
        with self._changed:
            self._held[lease.lease_id] = held
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="headwater-leases", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def release(self, lease_id: LeaseId) -> bool:
        """Stop renewing a lease, and drop it if ``drop_at_end`` says so; tell if it was held.

        If the broker cannot be reached, that is no error: the lease expires by itself.
        """
        with self._changed:
            held = self._held.pop(lease_id, None)
            self._changed.notify_all()
        if held is None:
            return False
        if held.drop_at_end and held.lost is None:
            try:
                held.client.drop_lease(lease_id)
            except HeadwaterError as error:
                _log.info("lease_left_to_expire lease_id=%s %s: %s", lease_id, held.what, error)
        return True

    def abandon(self, lease_id: LeaseId) -> None:
        """Stop renewing a lease soon, and let it expire. Takes no lock: finalizers may call it."""
        self._abandoned.append(lease_id)

    def release_all(self) -> int:
        """Release all leases; return their number."""
        return sum(self.release(lease_id) for lease_id in self.held())

    def held(self) -> list[LeaseId]:
        """Return the leases that are being renewed."""
        with self._changed:
            return list(self._held)

    def lost(self, lease_id: LeaseId) -> HeadwaterError | None:
        """Return the error by which a held lease was lost; None if it is not lost."""
        with self._changed:
            held = self._held.get(lease_id)
            return None if held is None else held.lost

    def tick(self) -> None:
        """Renew the leases that are due; release those no longer in use. Blocks on the network."""
        now_s = self._monotonic_s()
        with self._changed:
            while self._abandoned:
                self._held.pop(self._abandoned.popleft(), None)
            everything = list(self._held.values())
        for held in everything:
            if not held.in_use():
                self.release(held.lease.lease_id)
            elif held.lost is None and held.renew_at_s <= now_s:
                self._renew(held, now_s)

    def _renew(self, held: _KeptLease, now_s: float) -> None:
        lease_id = held.lease.lease_id
        try:
            held.lease = held.client.renew_lease(lease_id, ttl_ms=held.ttl_ms)
            held.renew_at_s = now_s + held.ttl_ms / 1000 / _RENEWALS_PER_TTL
        except UnknownLeaseError as error:
            held.lost = error
            _log.warning(
                "lease_lost lease_id=%s %s: records and files that it held may be deleted now; a "
                "read of deleted records fails, and no read returns fewer rows",
                lease_id,
                held.what,
            )
        except UnavailableError as error:
            held.renew_at_s = now_s + min(_RETRY_S, held.ttl_ms / 10_000)
            _log.warning("lease_renewal_failed lease_id=%s %s: %s", lease_id, held.what, error)
        except HeadwaterError as error:
            held.lost = error
            _log.warning("lease_lost lease_id=%s %s: %s", lease_id, held.what, error)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._held:
                    self._thread = None
                    return
                now_s = self._monotonic_s()
                due_s = [held.renew_at_s - now_s for held in self._held.values() if not held.lost]
                self._changed.wait(min(_CHECK_S, max(0.0, min(due_s, default=_CHECK_S))))
            self.tick()


KEEPER: Final = LeaseKeeper()
atexit.register(KEEPER.release_all)
