"""Damage in a log: its values, its error, and the decision between rot and a torn tail. Pure.

docs/decisions/0002-torn-tail-or-rot.md explains the proofs of rot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from broker.errors import SegmentCorruptError
from broker.model.offsets import Offset, OffsetRange
from broker.storage.segments.scan import DamagedStretch, ValidBatch


class RotProof(Enum):
    """Why damage cannot be a torn write; the value completes "not a torn write, because …"."""

    SEALED = "the segment was sealed, so all of it was durable"
    BELOW_RECOVERY_POINT = "the damage is below the recovery point"
    SEEN_SYNCED = "a later batch was written when the log was already synced beyond the damage"
    NO_SECTOR_MISSING = "none of the damaged sectors is missing"
    MISSING = "the recovery point is above these records"
    PROMISED = "this broker had promised these records"
    UNREADABLE = "the disk cannot read the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """A write that a power cut interrupted; it was never acknowledged, and is cut."""

    path: str
    position: int
    offset: Offset
    bytes_cut: int  # up to the last byte that was not zero
    reason: str
    kept: bool  # the same file also has rot, so no byte of the file was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Offsets whose records are damaged or missing. Reads of them raise :attr:`error`."""

    path: str
    position: int
    offsets: OffsetRange
    reason: str
    proof: RotProof

    def error(self) -> SegmentCorruptError:
        """Return the error that describes the damage."""
        return SegmentCorruptError(
            f"{self.path} is damaged at position {self.position}, offsets {self.offsets}: "
            f"{self.reason}; not a torn write, because {self.proof.value}",
            path=self.path,
            position=self.position,
            offset=self.offsets.start,
            end_offset=self.offsets.end,
        )


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """The findings and the repairs of opening a log."""

    torn: TornTail | None = None
    damaged_ranges: list[DamagedRange] = field(default_factory=list)
    lost_end: DamagedRange | None = None  # the log was once longer; perhaps beyond this range
    rebuilt: list[str] = field(default_factory=list)  # paths of missing or damaged caches
    scanned_bytes: int = 0
    rewritten_bytes: int = 0

    @property
    def lost_end_error(self) -> SegmentCorruptError | None:
        """The error of a log that was once longer."""
        return None if self.lost_end is None else self.lost_end.error()

    @property
    def damaged(self) -> list[SegmentCorruptError]:
        """The errors that describe the rot; empty for a healthy log."""
        return [one.error() for one in self.damaged_ranges]


def proof_of_rot(
    stretch: DamagedStretch, later: Sequence[ValidBatch | DamagedStretch], durable: int
) -> RotProof | None:
    """Return why the damage cannot be a torn write, or None if it can be one."""
    if stretch.position < durable:
        return RotProof.BELOW_RECOVERY_POINT
    synced = max((one.header.synced_end for one in later if isinstance(one, ValidBatch)), default=0)
    if synced > stretch.offset:
        return RotProof.SEEN_SYNCED
    if not stretch.sector_missing:
        return RotProof.NO_SECTOR_MISSING
    return None
