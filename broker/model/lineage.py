"""Whose history a log holds: the starts of leadership that wrote it, each with an id of its own.

Offsets and leader epochs alone are no identity: a copied or restored data folder counts on from the
same numbers as the original and writes other records there. So every start of leadership draws a
random id. A *history position* is a pair of such an id and an offset that its leader had reached;
two histories share it only if they share every record below it.

    leadership     a, start 0     b, start 400     c, start 730
    offsets        0 ───────────▶ 400 ───────────▶ 730 ───────────▶ …
    held:          (a, 250), (a, 400), (b, 730), (c, anything)      not held: (a, 401), (x, 10)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRequestError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset

LINEAGE_KEPT: Final = 64  # leaderships that the metadata remembers of a partition
_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """One start of leadership of a partition."""

    leader_epoch: LeaderEpoch
    lineage_id: str  # 32 hexadecimal digits, drawn at random by the process that begins to lead
    start: Offset  # the log end at which it began: everything below is of the leaderships before

    def __post_init__(self) -> None:
        """Refuse what no process drew; it comes from disks and peers."""
        if not is_lineage_id(self.lineage_id) or self.start < 0 or self.leader_epoch < 0:
            raise InvalidRequestError(
                f"not a start of leadership: epoch {self.leader_epoch}, id {self.lineage_id!r}, "
                f"start {self.start}"
            )


Lineage = tuple[Leadership, ...]  # ascending leader epochs, the newest last


def is_lineage_id(text: str) -> bool:
    """Tell whether a text has the form of a lineage id."""
    return _ID.match(text) is not None


def first_lineage_id(stream_uuid: str, partition: int) -> str:
    """Return the id of a new partition's first leadership; the uuid was drawn at random."""
    return hashlib.sha256(f"{stream_uuid}/{partition}".encode()).hexdigest()[:32]


def begun(lineage: Lineage, leadership: Leadership) -> Lineage:
    """Return the lineage after a leadership began; the oldest ones are forgotten in time."""
    assert not lineage or leadership.leader_epoch > lineage[-1].leader_epoch, "epochs only grow"
    return (*lineage, leadership)[-LINEAGE_KEPT:]


def holds(lineage: Sequence[Leadership], lineage_id: str, end: int) -> bool:
    """Tell whether a history has all that another one had when its position was this.

    ``end`` is the exclusive end that the leadership ``lineage_id`` had reached. A leadership wrote
    nothing at or above the start of the next one that follows it here.
    """
    for at, one in enumerate(lineage):
        if one.lineage_id == lineage_id:
            return at + 1 == len(lineage) or end <= lineage[at + 1].start
    return False


def is_forgotten(lineage: Sequence[Leadership], lineage_id: str, end: int) -> bool:
    """Tell whether a position may be of a leadership that newer ones have pushed out of a lineage.

    It cannot be told apart from one of another history that ended as low.
    """
    if len(lineage) < LINEAGE_KEPT or any(one.lineage_id == lineage_id for one in lineage):
        return False
    return end <= lineage[0].start
