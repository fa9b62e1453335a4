"""Whether a saved cut belongs to the present history of its stream. Pure.

A cut names, for each partition, the leadership that committed its hot end. If the cluster was
restored from an older copy since, other records may be at the cut's offsets. Then that leadership
is not in the present lineage, or it ended below the cut's hot end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.errors import ForeignHistoryError, HeadwaterError, InvalidCutError
from broker.model.lineage import Lineage, holds, is_forgotten
from broker.model.offsets import Offset


class CutPosition(NamedTuple):
    """The hot end of one partition of a cut, and the leadership that committed it."""

    lineage_id: str | None  # None: saved by a version that stored no lineage ids
    hot_end: Offset


def refusal(
    stream: str,
    lineages: Sequence[Lineage],
    positions: Sequence[CutPosition],
    *,
    believe_forgotten: bool = False,
    partitions_min: int | None = None,
) -> HeadwaterError | None:
    """Return why a cut with these positions, by partition, cannot be read here; None if it can.

    ``partitions_min`` is how many partitions the stream once had, at least; None: as many as now.
    A cut from before partitions were added names those that there were.
    With ``believe_forgotten`` a leadership that is too old to be remembered counts as ours.
    """
    least = len(lineages) if partitions_min is None else partitions_min
    if not least <= len(positions) <= len(lineages):
        return InvalidCutError(
            f"the cut names {len(positions)} partitions of stream {stream!r}, which has "
            f"{len(lineages)}: take a new cut",
            stream=stream,
        )
    for number, (lineage, position) in enumerate(zip(lineages, positions, strict=False)):
        if position.lineage_id is None:
            return InvalidCutError(
                f"the cut of stream {stream!r} was saved by a version that stored no lineage ids, "
                "so its history cannot be checked: take a new cut",
                stream=stream,
                partition=number,
            )
        if believe_forgotten and is_forgotten(lineage, position.lineage_id, position.hot_end):
            continue
        if not holds(lineage, position.lineage_id, position.hot_end):
            return ForeignHistoryError(
                f"the cut of stream {stream!r} belongs to another history of partition {number} "
                f"(hot end {position.hot_end}): the stream was restored from an older copy since, "
                "or the cut is from another copy of the stream, or the cut is too old to be "
                "checked. Take a new cut",
                stream=stream,
                partition=number,
                lineage_id=position.lineage_id,
                end=int(position.hot_end),
            )
    return None
