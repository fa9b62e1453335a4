"""How large the metadata may become, on one scale for whoever adds to it, writes it or reads it.

A state is held in memory, written and sent as one piece, so it has a limit. A stream or a lease
that would take it above `STATE_WEIGHT_MAX` is refused. What happens to those that are there (an
election, a restart, a cold end) is never refused, and must fit: a partition weighs a fixed
`PARTITION_WEIGHT`, about a third of what it takes at most, and a reader takes `SNAPSHOT_BYTES_MAX`,
four times the limit. So every state that was written is opened again.

The weight is kept in the state and changed with it: no command counts, or serialises, the whole.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from broker.errors import MetadataFullError
from broker.model.stream import Stream

if TYPE_CHECKING:
    from broker.core.metadata.state import LeaseState, MetadataState

STATE_WEIGHT_MAX: Final = 64 * 1024 * 1024
SNAPSHOT_BYTES_MAX: Final = 4 * STATE_WEIGHT_MAX
PARTITION_WEIGHT: Final = 2048  # new: 600 bytes; after many leaders, of all of whom it knows: 7,000
_STREAM_WEIGHT: Final = 256  # names of fields, the uuid twice, times
_LEASE_WEIGHT: Final = 256
_FLOOR_WEIGHT: Final = 20  # an offset's digits and a comma


def weight_of_stream(stream: Stream, partitions_count: int) -> int:
    """Return what a stream weighs with its partitions."""
    told = (stream.name, stream.name, stream.table_name, stream.namespace, stream.config.to_dict())
    return _STREAM_WEIGHT + len(json.dumps(told)) + PARTITION_WEIGHT * partitions_count


def weight_of_lease(lease: LeaseState) -> int:
    """Return what a lease weighs; on a wide stream that is much."""
    return _LEASE_WEIGHT + len(json.dumps(lease.owner)) + _FLOOR_WEIGHT * len(lease.floors)


def weigh(state: MetadataState) -> int:
    """Return what a whole state weighs: what its field ``weight`` has to be."""
    streams = sum(
        weight_of_stream(one, len(state.partitions.get(one.uuid, ())))
        for one in state.streams.values()
    )
    return streams + sum(map(weight_of_lease, state.leases.values()))


def refused_growth(weight: int, weight_max: int | None) -> MetadataFullError | None:
    """Return why the state must not become so heavy, if it must not.

    A command of a build that knew no limit names none: what it did once, it does at every replay.
    """
    if weight_max is None or weight <= weight_max:
        return None
    return MetadataFullError(
        f"the cluster's metadata would weigh {weight} bytes; {weight_max} is the limit. Delete "
        "streams, or wait until leases have ended",
        weight_bytes=weight,
        limit_bytes=weight_max,
    )
