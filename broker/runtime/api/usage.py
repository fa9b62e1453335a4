"""What each principal and each tenant uses of this broker, by the quotas in the metadata.

The decisions are in ``broker/core/access/quotas.py``. Here are the lock, the clock and the present
quotas. A quota that has changed counts from the next question on.
"""

from __future__ import annotations

import threading
from typing import Final

from broker.core.access.quotas import Quotas, Throttled
from broker.core.access.shares import Share, ShareTable
from broker.errors import QuotaExceededError
from broker.model.access import ANONYMOUS, Caller
from broker.model.quota import Flow
from broker.ports.system import Clock
from broker.runtime.metadata.metadata_log import WaitingMetadata

_OWNER: Final = "owner"  # of Caller.via: somebody who has to be able to correct every quota
_NOTE_EVERY_MS: Final = 60_000
_NOTED_MAX: Final = 4096


class Usage:
    """Implements ``UsageApi``."""

    def __init__(self, metadata: WaitingMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._quotas = Quotas()
        # When a refusal of a principal by a limit was noted, and how many were left out since.
        self._noted: dict[tuple[str, str], tuple[int, int]] = {}
        self._table: tuple[object, object, ShareTable] = (None, None, ShareTable())

    def ask(self, caller: Caller, flow: Flow, *, ticket: int, amount: int) -> int:
        """See ``UsageApi.ask``."""
        with self._lock:
            return self._quotas.ask(
                self._shares(caller),
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
            self._quotas.leave(caller.via, flow, ticket=ticket, now_ms=now_ms)

    def request(self, caller: Caller) -> None:
        """See ``UsageApi.request``."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            refused = self._quotas.request(self._shares(caller), caller.via, now_ms=now_ms)
        if refused is None:
            return
        share, wait_ms = refused
        assert share.quota is not None, "nobody is beyond a quota that there is not"
        raise QuotaExceededError(
            f"{_named(share)} may make {share.quota.requests_per_s} requests a second at each "
            f"broker: try again in {wait_ms} ms",
            **_facts(caller, share),
            limit="requests_per_s",
            throttle_ms=wait_ms,
        )

    def enter(self, caller: Caller) -> None:
        """See ``UsageApi.enter``."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            full = self._quotas.enter(self._shares(caller), now_ms=now_ms)
        if full is None:
            return
        assert full.quota is not None, "nobody is beyond a quota that there is not"
        raise QuotaExceededError(
            f"{_named(full)} has {full.quota.open_calls} reads and writes open at this broker, "
            "which is its quota: close some",
            **_facts(caller, full),
            limit="open_calls",
        )

    def exit(self, caller: Caller) -> None:
        """See ``UsageApi.exit``."""
        with self._lock:
            self._quotas.exit(caller.principal)

    def is_to_note(self, caller: Caller, limit: str) -> int | None:
        """See ``UsageApi.is_to_note``."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            key = (caller.principal, limit)
            noted_ms, left_out = self._noted.get(key, (None, 0))
            if noted_ms is not None and now_ms - noted_ms < _NOTE_EVERY_MS:
                self._noted[key] = (noted_ms, left_out + 1)
                return None
            self._noted.pop(key, None)  # so that the oldest note is the first
            if len(self._noted) >= _NOTED_MAX:
                del self._noted[next(iter(self._noted))]
            self._noted[key] = (now_ms, 0)
            return left_out

    def throttled(self) -> dict[tuple[str, Flow], Throttled]:
        """Return how often and for how long callers had to wait, by proof and flow."""
        with self._lock:
            return {
                key: Throttled(one.pieces, one.waited_ms)
                for key, one in self._quotas.throttled.items()
            }

    def _shares(self, caller: Caller) -> tuple[Share, ...]:
        if caller.via == _OWNER or caller.principal == ANONYMOUS:
            return (Share(caller.principal),)
        state = self._metadata.state
        quotas, tenants, table = self._table
        if quotas is not state.quotas or tenants is not state.tenants:
            table = ShareTable(state.quotas, state.tenants.values())
            self._table = (state.quotas, state.tenants, table)
        return table.of(caller.principal)


def _named(share: Share) -> str:
    return f"tenant {share.tenant!r}" if share.tenant else repr(share.name)


def _facts(caller: Caller, share: Share) -> dict[str, str]:
    own = {"principal": caller.principal}
    return {**own, "tenant": share.tenant} if share.tenant else own
