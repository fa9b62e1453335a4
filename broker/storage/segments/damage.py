"""Damage in a log: what it is, how it is named, and the decision between rot and a torn tail.

Pure. docs/decisions/0002-torn-tail-or-rot.md says why these three proofs and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from broker.errors import SegmentCorruptError
from broker.model.offsets import Offset, OffsetRange
from broker.storage.segments.scan import DamagedStretch, ValidBatch


class RotProof(Enum):
    """Why damage cannot be a torn write; the value completes "not a torn write, for …"."""

    SEALED = "the segment was sealed, so all of it was durable"
    BELOW_RECOVERY_POINT = "it lies below the recovery point"
    SEEN_SYNCED = "a later batch was written when the log was already synced beyond it"
    NO_SECTOR_MISSING = "none of its sectors is missing"
    MISSING = "the recovery point knew of it"
    PROMISED = "this node had promised it"
    UNREADABLE = "the disk does not give it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """A write that the power interrupted; it was never acknowledged, and is cut away."""

    path: str
    position: int
    offset: Offset
    bytes_cut: int  # up to the last byte that was not zero
    reason: str
    kept: bool  # there is rot in the same file, too, so that nothing in it was touched


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Offsets whose records are damaged or missing. Reads of them raise :attr:`error`."""

    path: str
    position: int
    offsets: OffsetRange
    reason: str
    proof: RotProof

    def error(self) -> SegmentCorruptError:
        """Return the error that names the damage."""
        return SegmentCorruptError(
            f"{self.path} is damaged at position {self.position}, offsets {self.offsets}: "
            f"{self.reason}; not a torn write, for {self.proof.value}",
            path=self.path,
            position=self.position,
            offset=self.offsets.start,
            end_offset=self.offsets.end,
        )


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What opening a log found and did."""

    torn: TornTail | None = None
    damaged_ranges: list[DamagedRange] = field(default_factory=list)
    lost_end: DamagedRange | None = None  # the log once reached further; maybe beyond this range
    no_room: bool = False  # for the next segment; what is there can be read
    rebuilt: list[str] = field(default_factory=list)  # caches that were missing or damaged, by path
    scanned_bytes: int = 0
    rewritten_bytes: int = 0

    @property
    def lost_end_error(self) -> SegmentCorruptError | None:
        """The error of a log that once reached further."""
        return None if self.lost_end is None else self.lost_end.error()

    @property
    def damaged(self) -> list[SegmentCorruptError]:
        """The errors that name the rot; empty for a healthy log."""
        return [one.error() for one in self.damaged_ranges]


def proof_of_rot(
    stretch: DamagedStretch, later: Sequence[ValidBatch | DamagedStretch], durable: int
) -> RotProof | None:
    """Return why the damage cannot be a torn write, or None when it can."""
    if stretch.position < durable:
        return RotProof.BELOW_RECOVERY_POINT
    synced = max((one.header.synced_end for one in later if isinstance(one, ValidBatch)), default=0)
    if synced > stretch.offset:
        return RotProof.SEEN_SYNCED
    if not stretch.sector_missing:
        return RotProof.NO_SECTOR_MISSING
    return None
