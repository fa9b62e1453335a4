"""A broker's answer to another broker that asks for a partition's high watermark.

The asking broker reads to the end or takes a cut, so the answer must cover every committed record.
A leader that is not sure, or has lost promised records, does not answer. A leader whose history was
refused (docs/decisions/0016) answers only that it leads: a read up to the end of its log would omit
records that are in the lake.
"""

from __future__ import annotations

from broker.errors import ForeignHistoryError
from broker.model.control_messages import NewestAsked, NewestTold
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId
from broker.runtime.partition.driver import PartitionDriver


def newest_told(driver: PartitionDriver | None, asked: NewestAsked) -> NewestTold:
    """Return the answer of the local replica, or that there is none."""
    newest = None if driver is None else driver.replication.newest_committed
    if driver is None or newest is None or driver.health.lost_end is not None:
        return NewestTold(partition_id=asked.partition_id, request_id=asked.request_id)
    refused = driver.lost_leadership is not None
    return NewestTold(
        partition_id=asked.partition_id,
        request_id=asked.request_id,
        leader_epoch=driver.reads.leader_epoch,
        log_start=driver.reads.log_start,
        high_watermark=None if refused else newest,
        records_left=None if refused else driver.records_left(newest),
    )


def refusal(told: NewestTold, name: str, leader: BrokerId | None) -> ForeignHistoryError | None:
    """Return why a leader does not tell its high watermark; None if it does."""
    if told.high_watermark is not None or told.leader_epoch == LeaderEpoch(0):
        return None
    return ForeignHistoryError(
        f"broker {leader!r} leads {name}, but its records do not continue those in the lake. "
        "The log of that broker and `headwater cluster partitions` have the reason",
        partition=name,
        leader=leader,
    )
