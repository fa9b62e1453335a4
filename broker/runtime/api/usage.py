"""What each principal uses of this broker, by the quotas in the metadata that is applied here.

The decisions are in ``broker/core/access/quotas.py``. Here are the lock, the clock and the present
quotas. A quota that has changed counts from the next question on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from broker.core.access.principal_table import PrincipalTable
from broker.core.access.quotas import Quotas, Throttled
from broker.errors import QuotaExceededError
from broker.model.access import ANONYMOUS, Caller
from broker.model.quota import Flow, Quota
from broker.ports.system import Clock
from broker.runtime.metadata.metadata_log import WaitingMetadata

_OWNER: Final = "owner"  # of Caller.via: somebody who has to be able to correct every quota


class Usage:
    """Implements ``UsageApi``."""

    def __init__(self, metadata: WaitingMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._quotas = Quotas()
        self._table: tuple[Sequence[Quota], PrincipalTable[Quota]] = ((), PrincipalTable({}))

    def ask(self, caller: Caller, flow: Flow, *, ticket: int, amount: int) -> int:
        """See ``UsageApi.ask``."""
        with self._lock:
            return self._quotas.ask(
                self._quota_of(caller),
                caller.principal,
                caller.via,
                flow,
                ticket=ticket,
                amount=amount,
                now_ms=self._clock.monotonic_ms(),
            )

    def leave(self, caller: Caller, flow: Flow, *, ticket: int) -> None:
        """See ``UsageApi.leave``."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            self._quotas.leave(caller.principal, caller.via, flow, ticket=ticket, now_ms=now_ms)

    def request(self, caller: Caller) -> None:
        """See ``UsageApi.request``."""
        with self._lock:
            quota = self._quota_of(caller)
            if quota is None:
                return
            now_ms = self._clock.monotonic_ms()
            wait_ms = self._quotas.request(quota, caller.principal, caller.via, now_ms=now_ms)
        if wait_ms:
            raise QuotaExceededError(
                f"{caller.principal!r} may make {quota.requests_per_s} requests a second at each "
                f"broker: try again in {wait_ms} ms",
                principal=caller.principal,
                limit="requests_per_s",
                throttle_ms=wait_ms,
            )

    def enter(self, caller: Caller) -> None:
        """See ``UsageApi.enter``."""
        with self._lock:
            quota = self._quota_of(caller)
            now_ms = self._clock.monotonic_ms()
            entered = self._quotas.enter(quota, caller.principal, now_ms=now_ms)
        if not entered:
            assert quota is not None, "somebody without a quota is not refused"
            raise QuotaExceededError(
                f"{caller.principal!r} has {quota.open_calls} reads and writes open at this "
                "broker, which is its quota: close some",
                principal=caller.principal,
                limit="open_calls",
            )

    def exit(self, caller: Caller) -> None:
        """See ``UsageApi.exit``."""
        with self._lock:
            self._quotas.exit(caller.principal)

    def throttled(self) -> dict[tuple[str, Flow], Throttled]:
        """Return how often and for how long callers had to wait, by proof and flow."""
        with self._lock:
            return {
                key: Throttled(one.pieces, one.waited_ms)
                for key, one in self._quotas.throttled.items()
            }

    def _quota_of(self, caller: Caller) -> Quota | None:
        if caller.via == _OWNER or caller.principal == ANONYMOUS:
            return None
        present = self._metadata.state.quotas
        seen, table = self._table
        if seen is not present:
            table = PrincipalTable({one.principal: one for one in present})
            self._table = (present, table)
        return table.of(caller.principal)
