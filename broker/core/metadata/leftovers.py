"""What the metadata says of a log that lies on a broker's disk.

That the metadata does not mention a stream proves nothing: an older copy of it knows none of the
streams made since, and their records were acknowledged. Only a deletion that it remembers does.
"""

from __future__ import annotations

from enum import Enum

from broker.core.metadata.state import MetadataState
from broker.model.ids import BrokerId, PartitionId


class Belongs(Enum):
    """Whose a log is."""

    HERE = "here"
    ELSEWHERE = "elsewhere"  # the partition has its replicas on other brokers
    DELETED = "deleted"  # with its stream
    UNKNOWN = "unknown"  # nobody knows of it: it is never removed


def where_belongs(state: MetadataState, partition_id: PartitionId, me: BrokerId) -> Belongs:
    """Return where a log belongs that is on the disk of ``me``."""
    one = state.partition(partition_id)
    if one is not None:
        return Belongs.HERE if me in one.replicas else Belongs.ELSEWHERE
    return Belongs.DELETED if partition_id.stream_uuid in state.deleted else Belongs.UNKNOWN
