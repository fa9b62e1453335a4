"""One partition's part of a cut, from the state of its table and of its leader. Pure."""

from __future__ import annotations

from broker.errors import GapError, TableMismatchError, TableRolledBackError
from broker.model.cut import PartitionCut
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.model.tiering import TableState
from broker.ports.api import PartitionStanding


def partition_cut(
    stream: Stream,
    number: int,
    table: TableState,
    position: PartitionStanding,
    *,
    recorded: Offset,
    lineage_id: str | None,
    purged_end: Offset = Offset(0),  # noqa: B008 - a plain number
) -> PartitionCut:
    """Return the cut of one partition; ``recorded`` is its cold end in the metadata.

    ``recorded`` must be read before the table. ``purged_end`` must be read after the lease was
    taken: purged records are in the table, if there is one, and else nowhere. The leader's log
    start may still be below ``purged_end``, because the leader may not know of the purge yet.

    Raises:
        TableRolledBackError: the table lost a commit whose cold end was recorded.
        GapError: records between the tiers are in neither tier.
        TableMismatchError: the table is ahead of the log that feeds it.
    """
    cold = table.ranges.get(number)
    start = cold.start if cold is not None else max(position.log_start, purged_end)
    cold_end = cold.end if cold is not None else start
    facts = {"stream": stream.name, "partition": number}
    if cold_end < recorded:
        raise TableRolledBackError(
            f"in the table of stream {stream.name!r} partition {number} ends at {cold_end}, but a "
            f"cold end of {recorded} had been committed: a commit was removed from "
            f"{table.table_uri}",
            expected=recorded,
            found=cold_end,
            **facts,
        )
    if cold_end < position.log_start:
        raise GapError(
            f"the records [{cold_end}, {position.log_start}) of stream {stream.name!r} partition "
            f"{number} are neither in the table nor on local disk",
            start=cold_end,
            end=position.log_start,
            **facts,
        )
    hot_end = position.high_watermark
    if hot_end < cold_end:
        raise TableMismatchError(
            f"the table of stream {stream.name!r} partition {number} ends at {cold_end}, above the "
            f"high watermark {hot_end}: another writer appends to the table, or the local log was "
            "replaced",
            expected=hot_end,
            found=cold_end,
            **facts,
        )
    return PartitionCut(
        partition=number,
        start=start,
        cold_end=cold_end,
        hot_end=hot_end,
        leader_epoch=position.leader_epoch,
        lineage_id=lineage_id,
        purged_end=Offset(0) if cold is not None else purged_end,
    )
