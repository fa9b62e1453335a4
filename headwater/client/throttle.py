"""How long a broker asks a client to wait, because the client's quota is used up."""

from __future__ import annotations

from broker.errors import HeadwaterError, QuotaExceededError


def throttle_ms(error: HeadwaterError) -> int:
    """Return how long to wait before the call is made again; 0: the broker does not ask for it."""
    told = error.facts.get("throttle_ms") if isinstance(error, QuotaExceededError) else None
    return max(0, told) if isinstance(told, int) else 0
