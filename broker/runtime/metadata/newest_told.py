"""What a broker says of how far a partition is committed, when another one asks it.

Whoever asks wants to read to the end, or to take a cut, so the end has to be all there is. A leader
that is not sure of it, or has lost records that were promised, does not say. One that was refused
its history (docs/decisions/0016) says that it leads, and no more: a read of any replica that ended
where its log does would leave out what the lake has.
"""

from __future__ import annotations

from broker.errors import ForeignHistoryError
from broker.model.control_messages import NewestAsked, NewestTold
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId
from broker.runtime.partition.driver import PartitionDriver


def newest_told(driver: PartitionDriver | None, asked: NewestAsked) -> NewestTold:
    """Return what the replica that is here, if any, can say."""
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
    )


def refusal(told: NewestTold, name: str, leader: BrokerId | None) -> ForeignHistoryError | None:
    """Return why a leader that leads does not say how far it is, if that is so."""
    if told.high_watermark is not None or told.leader_epoch == LeaderEpoch(0):
        return None
    return ForeignHistoryError(
        f"broker {leader!r} leads {name}, and its history is not the one of the lake: nobody can "
        "say how it goes on. That broker's log and `headwater cluster partitions` have the reason",
        partition=name,
        leader=leader,
    )
