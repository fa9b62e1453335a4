"""The live leases in a metadata state, and the bounds of a lease's duration. Pure."""

from __future__ import annotations

from typing import Final

from broker.core.metadata.state import MetadataState
from broker.core.metadata.stream_expiry import lease_limit
from broker.errors import InvalidRequestError
from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.ports.tiering import HeldLease

LEASE_TTL_MS_MIN: Final = 1_000
LEASE_TTL_MS_MAX: Final = 24 * 3600 * 1000


def leases_on(state: MetadataState, stream_uuid: StreamUuid, now_us: int) -> list[HeldLease]:
    """Return the leases on a stream, the oldest first."""
    found = [
        HeldLease(
            lease_id=lease_id,
            owner=lease.owner,
            taken_us=lease.taken_us,
            expires_us=lease.expires_us,
        )
        for lease_id, lease in state.leases.items()
        if lease.stream_uuid == stream_uuid and lease.expires_us > now_us
    ]
    return sorted(found, key=lambda lease: (lease.taken_us, lease.lease_id))


def lease_floor(state: MetadataState, partition: PartitionId, now_us: int) -> Offset:
    """Return the lowest offset that a lease holds: a freed segment must end at or below it."""
    return lease_limit(state, partition, now_us)


def checked_ttl_ms(ttl_ms: int) -> int:
    """Return ``ttl_ms`` if it is within the bounds of a lease; else raise."""
    if not LEASE_TTL_MS_MIN <= ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequestError(
            f"a lease lasts {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}",
            ttl_ms=ttl_ms,
        )
    return ttl_ms
