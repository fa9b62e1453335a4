"""Whether a cut that was saved before is one of the history that is here now. Pure.

A cut names, for each partition, the leadership under which its hot end was committed. If everything
was restored from an older copy since, other records may be at those offsets. Then that leadership
is not in the lineage of now, or ended below the cut's hot end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.errors import ForeignHistoryError, HeadwaterError, InvalidCutError
from broker.model.lineage import Lineage, holds, is_forgotten
from broker.model.offsets import Offset


class CutPosition(NamedTuple):
    """The end of one partition of a cut."""

    lineage_id: str | None  # None: saved by a version that did not write it down
    hot_end: Offset


def refusal(
    stream: str,
    lineages: Sequence[Lineage],
    positions: Sequence[CutPosition],
    *,
    believe_forgotten: bool = False,
) -> HeadwaterError | None:
    """Return why a cut with these positions, by partition, cannot be read here; None if it can.

    ``believe_forgotten``: a leadership that is too old to be remembered is taken for ours.
    """
    if len(positions) != len(lineages):
        return InvalidCutError(
            f"the cut names {len(positions)} partitions of {stream!r}, which has {len(lineages)}",
            stream=stream,
        )
    for number, (lineage, position) in enumerate(zip(lineages, positions, strict=True)):
        if position.lineage_id is None:
            return InvalidCutError(
                f"the cut of {stream!r} was saved by a version that did not write down whose "
                "history it is of: take a new one",
                stream=stream,
                partition=number,
            )
        if believe_forgotten and is_forgotten(lineage, position.lineage_id, position.hot_end):
            continue
        if not holds(lineage, position.lineage_id, position.hot_end):
            return ForeignHistoryError(
                f"the cut of {stream!r} partition {number} ends at {position.hot_end} of a history "
                "that is not the one here: the stream was restored from an older copy since, or "
                "the cut is from another copy of it, or is too old to be told apart",
                stream=stream,
                partition=number,
                lineage_id=position.lineage_id,
                end=int(position.hot_end),
            )
    return None
