"""The live leases in a metadata state: bounds of their duration and number, and their floors."""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from broker.core.metadata.state import LeaseState, MetadataState
from broker.errors import InvalidRequestError, MetadataFullError, QuotaExceededError
from broker.model.ids import LeaseId, PartitionId, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import Stream
from broker.model.tenant import tenant_of
from broker.model.tiering import HeldLease

LEASE_TTL_MS_MIN: Final = 1_000
LEASE_TTL_MS_MAX: Final = 24 * 3600 * 1000
LEASES_OF_STREAM_MAX: Final = 2_000
LEASES_MAX: Final = 10_000
LEASES_OF_TENANT_MAX: Final = LEASES_MAX // 4  # of a tenant that has no share of its own
LEASES_OF_TENANTS_MAX: Final = LEASES_MAX // 10 * 9  # the rest is for streams of no tenant
_SO_END_SOME: Final = (
    "wait until readers have ended, or end leases that nobody needs (`headwater lease list`, "
    "`lease drop`)"
)


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


class LeaseFloors:
    """The lowest offsets that leases hold, of every partition. Any thread.

    Every partition asks several times a second, so an answer must not look at each lease. Leases
    are grouped when the metadata has others than before, and the floors of a stream are computed
    again only if its leases have changed or one of them has ended.
    """

    def __init__(self) -> None:
        """Know no lease."""
        self._lock = threading.Lock()
        self._leases: Mapping[LeaseId, LeaseState] = {}
        self._held: dict[StreamUuid, _HeldStream] = {}

    def floor(self, state: MetadataState, partition: PartitionId, now_us: int) -> Offset:
        """Return the lowest offset that a lease holds: a freed segment must end at or below it."""
        with self._lock:
            if state.leases is not self._leases:
                self._group(state.leases)
            held = self._held.get(partition.stream_uuid)
            return Offset(OFFSET_MAX) if held is None else held.floor(partition.number, now_us)

    def _group(self, leases: Mapping[LeaseId, LeaseState]) -> None:
        grouped: dict[StreamUuid, list[LeaseState]] = {}
        for one in leases.values():
            grouped.setdefault(one.stream_uuid, []).append(one)
        held = {}
        for uuid, found in grouped.items():
            known = self._held.get(uuid)
            if known is None or not known.has(found):
                known = _HeldStream(found)
            held[uuid] = known
        self._leases, self._held = leases, held


class _HeldStream:
    """The leases on one stream, and their lowest floors as long as no lease ends."""

    def __init__(self, leases: Sequence[LeaseState]) -> None:
        self._leases = leases
        self._floors: Sequence[Offset] | None = ()  # by partition; None: nothing is held
        self._until_us = 0  # the floors are right before this time
        self._since_us = 0  # and not before this one: a clock may go back

    def has(self, leases: Sequence[LeaseState]) -> bool:
        """Tell whether these are the same leases; the lengths may have changed by renewals."""
        return len(leases) == len(self._leases) and all(map(operator.is_, leases, self._leases))

    def floor(self, partition: int, now_us: int) -> Offset:
        """Return the lowest offset that is held of a partition; everything of a newer one."""
        if not self._since_us <= now_us < self._until_us:
            self._look(now_us)
        if self._floors is None:
            return Offset(OFFSET_MAX)
        return self._floors[partition] if partition < len(self._floors) else Offset(0)

    def _look(self, now_us: int) -> None:
        live = [one for one in self._leases if one.expires_us > now_us]
        self._since_us = now_us
        self._until_us = min((one.expires_us for one in live), default=OFFSET_MAX)
        floors: Sequence[Offset] | None = None
        for one in live:
            if floors is None or one.floors is floors:
                floors = one.floors
            elif len(one.floors) != len(floors) or any(map(operator.lt, one.floors, floors)):
                floors = [min(pair) for pair in zip(one.floors, floors, strict=False)]
        self._floors = floors


def require_room_for_lease(state: MetadataState, stream: Stream, now_us: int) -> None:
    """Refuse one more lease beyond the bounds of their number.

    Several brokers may pass at the same moment, so that there are a few more; the weight of the
    metadata bounds them strictly.

    Raises:
        MetadataFullError: the stream, all tenants or the cluster have as many leases as they may.
        QuotaExceededError: the tenant has as many as it may.
    """
    tenant = tenant_of(state.tenants, stream.name)
    own_max = LEASES_MAX if tenant is None else tenant.leases_max or LEASES_OF_TENANT_MAX
    if len(state.leases) < min(LEASES_OF_STREAM_MAX, own_max):
        return  # ended ones included
    live = Counter(one.stream_uuid for one in state.leases.values() if one.expires_us > now_us)
    bounds = [
        (live[stream.uuid], LEASES_OF_STREAM_MAX, "on this stream"),
        (live.total(), LEASES_MAX, "in the cluster"),
    ]
    if tenant is not None:
        counts: Counter[str] = Counter()
        for one in state.streams.values():
            owner = tenant_of(state.tenants, one.name)
            if owner is not None:
                counts[owner.name] += live[one.uuid]
        if counts[tenant.name] >= own_max:
            raise QuotaExceededError(
                f"tenant {tenant.name!r} has {counts[tenant.name]} leases, as many as it may: "
                f"{_SO_END_SOME}, or ask an administrator for more",
                tenant=tenant.name,
                limit="leases_max",
            )
        bounds.append((counts.total(), LEASES_OF_TENANTS_MAX, "on streams of tenants"))
    for count, most, where in bounds:
        if count >= most:
            raise MetadataFullError(
                f"there are {count} leases {where}, as many as may be: {_SO_END_SOME}",
                leases=count,
                limit=most,
            )


def checked_ttl_ms(ttl_ms: int) -> int:
    """Return ``ttl_ms`` if it is within the bounds of a lease; else raise."""
    if not LEASE_TTL_MS_MIN <= ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequestError(
            f"a lease lasts {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}",
            ttl_ms=ttl_ms,
        )
    return ttl_ms
