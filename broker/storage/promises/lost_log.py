"""The result of recovery, and the damage reports of a log that is not as promised.

No function here reads or changes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.model.epoch_history import EpochHistory
from broker.model.epochs import EpochStart
from broker.model.offsets import Offset, OffsetRange
from broker.storage.log_folder import LogFolder, RecoveryPointFile
from broker.storage.promises.promises import HELD, Promised
from broker.storage.segments.damage import DamagedRange, RecoveryReport, RotProof
from broker.storage.segments.segment import Segment


@dataclass(slots=True)
class RecoveredLog:
    """The result of :func:`recover`, from which the log is opened."""

    segments: list[Segment]
    log_start: Offset
    log_end: Offset
    epochs: EpochHistory
    point: RecoveryPointFile | None  # None: no file of the log is here, or none is readable
    report: RecoveryReport

    @property
    def found(self) -> tuple[Sequence[Segment], Offset, Offset, Sequence[DamagedRange]]:
        """Return the segments, the log's start and end, and the damage."""
        return self.segments, self.log_start, self.log_end, self.report.damaged_ranges

    def close(self) -> None:
        """Close the files: no log was opened from this."""
        if self.point is not None:
            self.point.close()


def unreadable(folder: LogFolder, promised: Promised | None, reason: str) -> RecoveredLog:
    """Return the result for a log that cannot be opened: no file is served or changed."""
    proof = RotProof.UNREADABLE
    return nothing_left(folder, promised or HELD, proof, f"the log cannot be opened: {reason}")


def nothing_left(
    folder: LogFolder, promised: Promised, proof: RotProof, reason: str
) -> RecoveredLog:
    """Return the result for a log whose files are all gone or unreadable."""
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
    """Return the damaged range of a segment whose file is missing."""
    return DamagedRange(
        path=folder.segment_file(start, "log"),
        position=0,
        offsets=OffsetRange(start, end),
        reason="the segment is missing",
        proof=RotProof.MISSING,
    )


def below_promise(path: str, promised: Promised, end: Offset) -> DamagedRange | None:
    """Return the missing range of a log that ends at ``end``, below its promise; else None."""
    if end >= promised.end:
        return None
    return DamagedRange(
        path=path,
        position=0,
        offsets=OffsetRange(end, promised.end),
        reason=f"the log ends at {end}, but this broker had promised records up to {promised.end}: "
        "files were lost, or an older copy was put back",
        proof=RotProof.PROMISED,
    )


def another_log(
    path: str, promised: Promised, epochs: EpochHistory, found: OffsetRange
) -> DamagedRange | None:
    """Return the range of a log if its last promised record has an epoch that is too old."""
    if promised.end <= found.start:
        return None
    epoch = epochs.epoch_of(Offset(promised.end - 1))
    if epoch >= promised.last_epoch:
        return None
    return DamagedRange(
        path=path,
        position=0,
        offsets=found,
        reason=f"offset {promised.end - 1} has leader epoch {epoch}, but the promised record has "
        f"leader epoch {promised.last_epoch}: another log was put here",
        proof=RotProof.PROMISED,
    )


def another_batch(
    path: str, promised: Promised, mark: int | None, found: OffsetRange
) -> DamagedRange | None:
    """Return the range of a log whose batch at the promised end is another batch; else None.

    ``mark`` is the mark of the log's batch; None: there is no batch to compare.
    """
    if not promised.mark or mark is None or mark == promised.mark:
        return None
    return DamagedRange(
        path=path,
        position=0,
        offsets=found,
        reason=f"the records before offset {promised.end} differ from the promised records: the "
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
