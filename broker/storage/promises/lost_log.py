"""What recovery hands to the log, and what it says of a log that is not what was promised.

Pure but for its types: nothing here reads or changes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.model.epoch_history import EpochHistory
from broker.model.epochs import EpochStart
from broker.model.offsets import Offset, OffsetRange
from broker.storage.log.folder import LogFolder, RecoveryPointFile
from broker.storage.promises.promises import HELD, Promised
from broker.storage.segments.damage import DamagedRange, RecoveryReport, RotProof
from broker.storage.segments.segment import Segment


@dataclass(slots=True)
class RecoveredLog:
    """What :func:`recover` hands to the log."""

    segments: list[Segment]
    log_start: Offset
    log_end: Offset
    epochs: EpochHistory
    point: RecoveryPointFile | None  # None: nothing of the log is here
    report: RecoveryReport


def unreadable(folder: LogFolder, promised: Promised | None, reason: str) -> RecoveredLog:
    """Return what stands for a log that cannot be opened: nothing of it is served, or touched."""
    proof = RotProof.UNREADABLE
    return nothing_left(folder, promised or HELD, proof, f"the log cannot be opened: {reason}")


def nothing_left(
    folder: LogFolder, promised: Promised, proof: RotProof, reason: str
) -> RecoveredLog:
    """Return a log of which nothing is left, or nothing can be had."""
    lost = DamagedRange(
        path=folder.path,
        position=0,
        offsets=OffsetRange(promised.start, promised.end),
        reason=reason,
        proof=proof,
    )
    report = RecoveryReport(damaged_ranges=[lost], lost_end=lost)
    epochs = EpochHistory()
    return RecoveredLog([], promised.start, promised.end, epochs, None, report)


def missing_segment(folder: LogFolder, start: Offset, end: Offset) -> DamagedRange:
    """Return the range of a segment whose file is not there."""
    return DamagedRange(
        path=folder.segment_file(start, "log"),
        position=0,
        offsets=OffsetRange(start, end),
        reason="the segment is missing",
        proof=RotProof.MISSING,
    )


def below_promise(path: str, promised: Promised, end: Offset) -> DamagedRange | None:
    """Return what is missing of a log that ends at ``end``, below what was promised, if so."""
    if end >= promised.end:
        return None
    return DamagedRange(
        path=path,
        position=0,
        offsets=OffsetRange(end, promised.end),
        reason=f"the log ends at {end}, and records up to {promised.end} were promised: files "
        "were lost, or an older copy was put back",
        proof=RotProof.PROMISED,
    )


def another_log(
    path: str, promised: Promised, epochs: EpochHistory, found: OffsetRange
) -> DamagedRange | None:
    """Return the range of a log that is long enough, but not the one that was promised, if so."""
    if promised.end <= found.start:
        return None
    epoch = epochs.epoch_of(Offset(promised.end - 1))
    if epoch >= promised.last_epoch:
        return None
    return DamagedRange(
        path=path,
        position=0,
        offsets=found,
        reason=f"offset {promised.end - 1} is of leader epoch {epoch}, and the record that was "
        f"promised is of {promised.last_epoch}: another log was put here",
        proof=RotProof.PROMISED,
    )


def another_batch(
    path: str, promised: Promised, mark: int | None, found: OffsetRange
) -> DamagedRange | None:
    """Return the range of a log whose batch at the promised end is not the promised one, if so.

    ``mark`` is that of the batch that is there; None: there is none to be compared.
    """
    if not promised.mark or mark is None or mark == promised.mark:
        return None
    return DamagedRange(
        path=path,
        position=0,
        offsets=found,
        reason=f"the records before offset {promised.end} are not those that were promised: the "
        "log of another copy of this data folder was put here",
        proof=RotProof.PROMISED,
    )


def epochs_of(segments: Sequence[Segment]) -> EpochHistory:
    """Return the epochs that occur in the segments."""
    starts: list[EpochStart] = []
    for segment in segments:
        for start in segment.epochs:
            if not starts or start.leader_epoch > starts[-1].leader_epoch:
                starts.append(start)
    return EpochHistory(tuple(starts))
