"""Where the records of a partition begin and end: in the local log, both tiers, for a reader."""

from __future__ import annotations

from typing import Final

from broker.errors import NotLeaderError
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionHandle

_CATCH_UP_MS: Final = 2_000  # for a replica that is behind the leader


def local_start(handle: PartitionHandle) -> Offset:
    """Return the first offset that is read from the local log.

    Readers of a tiered stream get its whole history, so the ranges that key compaction has thinned
    out in the local log come from the table. Readers of other streams get the remaining records.
    """
    return handle.reads.whole_start if handle.config.tiering else handle.reads.log_start


def earliest(api: BrokerApi, stream: Stream, partition: int, log_start: Offset) -> Offset:
    """Return the first offset of the partition in both tiers; ``log_start`` is the local one."""
    if log_start == 0 or not stream.config.tiering:
        return log_start  # no segment was ever freed, or there is no table with older records
    for status in api.cold.status(stream.name):
        if status.partition == partition:
            return min(status.cold.start, log_start) if len(status.cold) else log_start
    table_start = api.cold.table_start(stream.name, partition)  # the leader may be another broker
    return log_start if table_start is None else min(table_start, log_start)


def first_readable(
    api: BrokerApi, stream: Stream, partition: int, handle: PartitionHandle
) -> Offset:
    """Return the first offset that readers get; an expired record may still be in the table."""
    first = earliest(api, stream, partition, local_start(handle))
    return max(first, handle.reads.remote_start)


def committed_here(
    api: BrokerApi, stream: Stream, partition: int, handle: PartitionHandle
) -> Offset:
    """Return the first offset that is not committed now; all records below it are here.

    Blocks for a moment if this replica is behind, or if the leader has just begun to lead.

    Raises:
        NotLeaderError: no leader tells the offset now, or this replica lacks records below it.
        HeadwaterError: the replica has failed, or is closed.
    """
    end = api.partitions.standing(stream.name, partition).high_watermark
    here = handle.reads.high_watermark
    if here < end:
        here = handle.reads.wait_committed(Offset(end - 1), _CATCH_UP_MS)
    if here < end:
        raise NotLeaderError(
            f"this replica of {stream.name}/{partition} knows the records below {here}, and those "
            f"below {end} are committed: ask the leader, or try again"
        )
    return end
