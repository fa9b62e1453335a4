"""Keeping the leases of reads alive: one daemon thread per driver process.

A lease that runs out does not make a read wrong: what it held may then be deleted, and a read of
what is gone fails by name. So losing a lease is logged and remembered, and nothing is stopped.
The thread exists only while something is held. Leases are dropped when their session has stopped
and when the interpreter exits; a driver that dies without saying so is covered by their expiry.
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
_LOOK_S: Final = 5.0  # how often the thread asks whether sessions are still there
_RETRY_S: Final = 2.0  # after a broker that did not answer

_log = logging.getLogger("headwater.read")


class LeaseClient(Protocol):
    """What keeping a lease needs of the client. Called from the keeper's thread too."""

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int) -> Lease:
        """Extend a lease; raises UnknownLeaseError once it has expired."""

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease; an unknown one is fine."""


@dataclass(slots=True, kw_only=True)
class _Held:
    lease: Lease
    client: LeaseClient
    ttl_ms: int
    drop_at_end: bool
    what: str
    in_use: Callable[[], bool]
    renew_at_s: float  # monotonic
    lost: HeadwaterError | None = None


class LeaseKeeper:
    """Renews what it is told to hold, until it is told otherwise. Any thread may call."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._held: dict[LeaseId, _Held] = {}
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
            client: how to reach the broker that gave it.
            ttl_ms: what each renewal asks for.
            drop_at_end: also end the lease on release; else it just runs out.
            what: named in the log.
            in_use: asked every few seconds; once false the lease is released.
        """
        held = _Held(
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
        """Stop renewing a lease, and drop it if it is ours to drop; tell whether it was held.

        A broker that cannot be reached is no error: the lease will run out.
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
        """Stop renewing a lease, soon, and let it run out. Takes no lock: finalizers may call."""
        self._abandoned.append(lease_id)

    def release_all(self) -> int:
        """Release everything; return how many leases that were."""
        return sum(self.release(lease_id) for lease_id in self.held())

    def held(self) -> list[LeaseId]:
        """Return the leases that are being renewed."""
        with self._changed:
            return list(self._held)

    def lost(self, lease_id: LeaseId) -> HeadwaterError | None:
        """Return why a held lease is gone, None while it is fine."""
        with self._changed:
            held = self._held.get(lease_id)
            return None if held is None else held.lost

    def tick(self) -> None:
        """Renew what is due and release what is no longer in use. Blocks on the network."""
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

    def _renew(self, held: _Held, now_s: float) -> None:
        lease_id = held.lease.lease_id
        try:
            held.lease = held.client.renew_lease(lease_id, ttl_ms=held.ttl_ms)
            held.renew_at_s = now_s + held.ttl_ms / 1000 / _RENEWALS_PER_TTL
        except UnknownLeaseError as error:
            held.lost = error
            _log.warning(
                "lease_lost lease_id=%s %s: what it held may be deleted now; a read of anything "
                "that is gone will fail, none returns fewer rows",
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
                self._changed.wait(min(_LOOK_S, max(0.0, min(due_s, default=_LOOK_S))))
            self.tick()


KEEPER: Final = LeaseKeeper()
atexit.register(KEEPER.release_all)
