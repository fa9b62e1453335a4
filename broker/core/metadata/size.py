"""The weight of the metadata in bytes, and its limit.

A state is held in memory, written and sent as one piece, so its size is limited. A new stream,
lease, cursor or group that would raise the weight above `ORDINARY_WEIGHT_MAX` is refused. What is
between this and `STATE_WEIGHT_MAX` is kept for what administrators alone may do: grants, tokens,
quotas and tenants. A change of existing streams (an election, a restart, a cold end) is never
refused, so it must always fit. So a partition has a fixed weight, `PARTITION_WEIGHT`, about a third
of its largest size, and a reader accepts snapshots of `SNAPSHOT_BYTES_MAX`, four times the limit.
So every state that was written can be read again.

The weight is a field of the state, which each command updates: no command counts or serialises the
whole state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from broker.errors import MetadataFullError
from broker.model.access import AccessState
from broker.model.ids import LeaseId, StreamUuid
from broker.model.quota import Quota
from broker.model.stream import Stream
from broker.model.tenant import Tenant

STATE_WEIGHT_MAX: Final = 64 * 1024 * 1024
ORDINARY_WEIGHT_MAX: Final = STATE_WEIGHT_MAX // 16 * 15  # the rest is for administrators
SNAPSHOT_BYTES_MAX: Final = 4 * STATE_WEIGHT_MAX
PARTITION_WEIGHT: Final = 2048  # a new partition takes 600 bytes, one with a long lineage 7,000
_STREAM_WEIGHT: Final = 256  # names of the fields, the uuid twice, timestamps
_DATA_KEY_WEIGHT: Final = 128
_LEASE_WEIGHT: Final = 256
_CURSOR_WEIGHT: Final = 64
_GROUP_WEIGHT: Final = 128
_POSITION_WEIGHT: Final = 256  # its key, numbers, and a lineage id
_CLAIM_WEIGHT: Final = 128
_GRANT_WEIGHT: Final = 96  # names of fields
_TOKEN_WEIGHT: Final = 256  # the id, the digest, times, names of fields
_QUOTA_WEIGHT: Final = 224  # four numbers, names of fields
_TENANT_WEIGHT: Final = 320  # six numbers, names of fields
_SHARES_WEIGHT: Final = 64  # of a tenant that has some
_FLOOR_WEIGHT: Final = 20  # an offset's digits and a comma


class WeighedLease(Protocol):
    """The parts of a lease that grow."""

    @property
    def owner(self) -> str:
        """Who took the lease."""

    @property
    def floors(self) -> Sequence[int]:
        """An offset for each partition."""


class WeighedMember(Protocol):
    """The parts of a member's session that grow."""

    @property
    def instance(self) -> str:
        """The process."""

    @property
    def owner(self) -> str:
        """The process, for people."""

    @property
    def replaced(self) -> Sequence[str]:
        """Earlier processes."""


class WeighedGroup(Protocol):
    """The parts of a consumer group that grow."""

    @property
    def coordinator(self) -> str:
        """The broker that receives the members' requests."""

    @property
    def members(self) -> Mapping[str, Sequence[str]]:
        """Streams by member."""

    @property
    def reports(self) -> Sequence[str]:
        """Members that reported that the coordinator does not answer."""

    @property
    def sessions(self) -> Mapping[str, WeighedMember]:
        """The processes of the members."""

    @property
    def claims(self) -> Mapping[str, object]:
        """Who reads which partition."""


class WeighedOutbox(Protocol):
    """The events that wait for the activity stream."""

    @property
    def weight(self) -> int:
        """Of the events."""


class WeighedAccess(Protocol):
    """Grants and tokens."""

    @property
    def weight(self) -> int:
        """Of all of it."""


class WeighedState(Protocol):
    """The parts of the metadata that grow."""

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Streams by name."""

    @property
    def partitions(self) -> Mapping[StreamUuid, Sequence[object]]:
        """The partitions of each stream."""

    @property
    def leases(self) -> Mapping[LeaseId, WeighedLease]:
        """Leases by id."""

    @property
    def cursors(self) -> Mapping[str, Mapping[str, int]]:
        """Cursors by cursor id, then by partition and stream."""

    @property
    def groups(self) -> Mapping[str, WeighedGroup]:
        """Consumer groups by id."""

    @property
    def positions(self) -> Mapping[str, Mapping[str, object]]:
        """Positions of groups, by group, then by partition."""

    @property
    def activity(self) -> WeighedOutbox | None:
        """The outbox of the activity stream."""

    @property
    def access(self) -> WeighedAccess | None:
        """Grants and tokens."""

    @property
    def quotas(self) -> Sequence[Quota]:
        """Quotas of principals."""

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """Tenants by name."""


def weight_of_stream(stream: Stream, partitions_count: int) -> int:
    """Return the weight of a stream with its partitions."""
    settings = stream.to_dict()["config"]  # without those that are not stored
    stored = (stream.name, stream.name, stream.table_name, stream.namespace, settings)
    keys = sum(
        _DATA_KEY_WEIGHT + len(one.wrapping_key) + len(one.wrapped) for one in stream.data_keys
    )
    return _STREAM_WEIGHT + len(json.dumps(stored)) + keys + PARTITION_WEIGHT * partitions_count


def weight_of_lease(lease: WeighedLease) -> int:
    """Return the weight of a lease; it grows with the number of partitions."""
    return _LEASE_WEIGHT + len(json.dumps(lease.owner)) + _FLOOR_WEIGHT * len(lease.floors)


def weight_of_cursor(cursor_id: str, positions: Mapping[str, int]) -> int:
    """Return the weight of the cursors of one cursor id; 0 if there is none."""
    if not positions:
        return 0
    named = sum(len(key.encode()) for key in positions)
    return _CURSOR_WEIGHT + len(json.dumps(cursor_id)) + named + _FLOOR_WEIGHT * 2 * len(positions)


def weight_of_group(group_id: str, group: WeighedGroup) -> int:
    """Return the weight of a consumer group; it grows with its members and their streams."""
    stored = (group_id, group.coordinator, dict(group.members), group.reports)
    sessions = [(one.instance, one.owner, *one.replaced) for one in group.sessions.values()]
    weight = _GROUP_WEIGHT + len(json.dumps(stored)) + _CLAIM_WEIGHT * len(group.claims)
    return weight + (len(json.dumps(sessions)) + _GROUP_WEIGHT * len(sessions) if sessions else 0)


def weight_of_positions(group_id: str, positions: Mapping[str, object]) -> int:
    """Return the weight of the positions of one group; 0 if there is none."""
    if not positions:
        return 0
    return _CURSOR_WEIGHT + len(json.dumps(group_id)) + _POSITION_WEIGHT * len(positions)


def weight_of_access(access: AccessState) -> int:
    """Return the weight of all grants and tokens."""
    grants = [(one.principal, one.namespace, one.pattern, one.actions) for one in access.grants]
    tokens = [(one.principal, one.created_by, one.note) for one in access.tokens.values()]
    named = len(json.dumps(grants)) + len(json.dumps(tokens)) if grants or tokens else 0
    return named + _GRANT_WEIGHT * len(grants) + _TOKEN_WEIGHT * len(tokens)


def weight_of_quotas(quotas: Sequence[Quota]) -> int:
    """Return the weight of all quotas."""
    return sum(_QUOTA_WEIGHT + len(one.principal) for one in quotas)


def weight_of_tenant(tenant: Tenant) -> int:
    """Return the weight of a tenant; it grows with its principals and subjects."""
    patterns = (tenant.owners, tenant.principals, tenant.subjects)
    stored = (tenant.name, tenant.name, patterns, tenant.wrapping_key)
    shares = _SHARES_WEIGHT if tenant.has_shares else 0
    return _TENANT_WEIGHT + shares + len(json.dumps(stored))


def weigh(state: WeighedState) -> int:
    """Return the weight of a whole state, which its field ``weight`` must have."""
    streams = sum(
        weight_of_stream(one, len(state.partitions.get(one.uuid, ())))
        for one in state.streams.values()
    )
    cursors = sum(weight_of_cursor(key, one) for key, one in state.cursors.items())
    groups = sum(weight_of_group(key, one) for key, one in state.groups.items())
    positions = sum(weight_of_positions(key, one) for key, one in state.positions.items())
    outbox = 0 if state.activity is None else state.activity.weight
    leases = sum(map(weight_of_lease, state.leases.values()))
    access = 0 if state.access is None else state.access.weight
    quotas = weight_of_quotas(state.quotas)
    tenants = sum(map(weight_of_tenant, state.tenants.values()))
    return streams + leases + cursors + groups + positions + outbox + access + quotas + tenants


def refused_growth(weight: int, weight_max: int | None) -> MetadataFullError | None:
    """Return the error if ``weight`` is above the limit of the command, or None.

    The command of an older build has no limit: a replay of the log must give the same state.
    """
    if weight_max is None or weight <= weight_max:
        return None
    return MetadataFullError(
        f"the cluster's metadata would need {weight} bytes; the limit is {weight_max}. Delete "
        "streams, consumer groups or tokens, or wait until leases have ended",
        weight_bytes=weight,
        limit_bytes=weight_max,
    )
