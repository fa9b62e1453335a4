"""Whether a log on a broker's disk belongs to a partition, according to the metadata.

If the metadata does not know a stream or a partition, its logs must stay: an older copy of the
metadata knows none that were created since, and their records were acknowledged. A log may be
removed only if the metadata remembers that its stream was deleted.
"""

from __future__ import annotations

from enum import Enum

from broker.core.metadata.state import MetadataState
from broker.model.ids import BrokerId, PartitionId


class Belongs(Enum):
    """The partition that a log on a disk belongs to, seen from its broker."""

    HERE = "here"
    ELSEWHERE = "elsewhere"  # the partition has its replicas on other brokers
    DELETED = "deleted"  # its stream was deleted
    UNKNOWN = "unknown"  # the metadata does not know it: the log is never removed


def where_belongs(state: MetadataState, partition_id: PartitionId, me: BrokerId) -> Belongs:
    """Return where a log belongs that is on the disk of broker ``me``."""
    one = state.partition(partition_id)
    if one is not None:
        return Belongs.HERE if me in one.replicas else Belongs.ELSEWHERE
    return Belongs.DELETED if partition_id.stream_uuid in state.deleted else Belongs.UNKNOWN
