"""The lineage of a log: the starts of leadership that wrote it, each with a random id.

Offsets and leader epochs alone do not identify a history: a copied or restored data folder
continues from the same numbers as the original and writes other records there. So every start of
leadership draws a random id. A *history position* is a pair of such an id and an offset that its
leader had reached. Two histories share a position only if they share every record below it.

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
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset

LINEAGE_KEPT: Final = 64  # leaderships that the metadata remembers for each partition
_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """One start of leadership of a partition."""

    leader_epoch: LeaderEpoch
    lineage_id: str  # 32 hexadecimal digits, drawn at random by the process that begins to lead
    start: Offset  # log end when the leadership began; earlier leaderships wrote all below it
    before: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - that wrote ``start - 1``; 0: not told

    def __post_init__(self) -> None:
        """Refuse impossible values: they may come from a disk or from another broker."""
        numbers = (self.start, self.leader_epoch, self.before)
        if not is_lineage_id(self.lineage_id) or min(numbers) < 0:
            raise InvalidRequestError(
                f"not a start of leadership: epoch {self.leader_epoch}, id {self.lineage_id!r}, "
                f"start {self.start}, behind a record of epoch {self.before}"
            )


Lineage = tuple[Leadership, ...]  # ascending leader epochs, the newest last


def is_lineage_id(text: str) -> bool:
    """Tell whether a text has the form of a lineage id."""
    return _ID.match(text) is not None


def first_lineage_id(stream_uuid: str, partition: int) -> str:
    """Return the id of a new partition's first leadership.

    It is a hash, so that every broker computes the same id; the stream's uuid is random already.
    """
    return hashlib.sha256(f"{stream_uuid}/{partition}".encode()).hexdigest()[:32]


def begun(lineage: Lineage, leadership: Leadership) -> Lineage:
    """Return the lineage after a leadership began; beyond LINEAGE_KEPT the oldest is dropped."""
    assert not lineage or leadership.leader_epoch > lineage[-1].leader_epoch, "epochs only grow"
    return (*lineage, leadership)[-LINEAGE_KEPT:]


def holds(lineage: Sequence[Leadership], lineage_id: str, end: int) -> bool:
    """Tell whether the history with this lineage holds the position (``lineage_id``, ``end``).

    ``end`` is the exclusive end that the leadership ``lineage_id`` had reached. In this history a
    leadership wrote no record at or above the start of the next leadership.
    """
    for at, one in enumerate(lineage):
        if one.lineage_id == lineage_id:
            return at + 1 == len(lineage) or end <= lineage[at + 1].start
    return False


def is_forgotten(lineage: Sequence[Leadership], lineage_id: str, end: int) -> bool:
    """Tell whether a position may belong to a leadership that the lineage has dropped as too old.

    Such a position looks the same as a position of another history that ended at the same offset.
    """
    if len(lineage) < LINEAGE_KEPT or any(one.lineage_id == lineage_id for one in lineage):
        return False
    return end <= lineage[0].start


def common_end(lineage: Sequence[Leadership], epochs: EpochHistory, end: Offset) -> Offset:
    """Return up to which offset, at most ``end``, a log surely has the records of a history.

    ``epochs`` is of the log, which must reach to ``end``. A leadership stored everything from its
    start on, until a later one began at or below that, or stored nothing: then the record before a
    later one's start is of an older epoch. Two logs with the same leader epoch at an offset are
    equal up to that offset. 0 is also the answer if the lineage has forgotten too much.
    """
    for one in reversed(lineage):
        epoch, epoch_end = epochs.end_of(one.leader_epoch, end)
        common = min(epoch_end, end)
        if epoch == one.leader_epoch and common > one.start:
            return common
        end = min(end, one.start)
        before = min(epochs.end_of(one.before, end)[1], end)
        if one.before and before and epochs.epoch_of(Offset(before - 1)) == one.before:
            return before
    return Offset(0)


def undisputed_end(
    lineage: Sequence[Leadership], epochs: EpochHistory, *, start: Offset, end: Offset
) -> Offset:
    """Return up to which offset, at most ``end``, nothing says that a log left a history.

    What the log freed below its ``start`` was in the table. Its records below the oldest leadership
    that the lineage remembers are undisputed. From the answer on the history has other records, or
    none: a leader that did not have this log's records began there.
    """
    if not lineage:
        return end
    common = common_end(lineage, epochs, end) or min(end, lineage[0].start)
    return min(end, max(start, common))
