"""Open a log after any end: clean, killed, power lost, or with damage. docs/decisions/0002.

The steps: tidy the names that a crash left, load the segments (``segment_loading.py``), compare the
log's end with the recovery point and the promise, load the epochs, write the caches again.

A log is damaged if it was promised and is absent, ends below its promise or has other records.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack

from broker.codec.disk.log_state_format import RecoveryPoint, encode_epochs
from broker.codec.disk.segment_format import parse_segment_name
from broker.errors import MetadataCorruptError
from broker.model.epoch_history import EpochHistory
from broker.model.offsets import Offset, OffsetRange
from broker.storage.log.epochs_file import load_epochs
from broker.storage.log.producer_state import remove_producer_state_above
from broker.storage.log.segment_loading import SegmentLoader
from broker.storage.log.truncation import finish_cut
from broker.storage.log_folder import (
    COPYING_NAME,
    EPOCHS_NAME,
    RECOVERY_NAME,
    SUSPECT_NAME,
    TEMPORARY_SUFFIX,
    LogFolder,
    RecoveryPointFile,
)
from broker.storage.no_room import ignoring_no_room
from broker.storage.promises.lost_log import (
    RecoveredLog,
    below_promise,
    epochs_of,
    missing_segment,
    nothing_left,
)
from broker.storage.promises.promised_batch import not_promised
from broker.storage.promises.promises import Promised
from broker.storage.segments.damage import DamagedRange, RecoveryReport, RotProof
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.log_reader import LogState
from broker.storage.segments.segment import Segment, write_index


def recover(
    folder: LogFolder, *, index_interval_bytes: int, promised: Promised | None = None
) -> RecoveredLog:
    """Bring the folder into a state that can be served and written.

    The log is created if it is absent and nothing was ``promised``.

    Raises:
        MetadataCorruptError: the folder belongs to another partition, or no file is readable.
        OSError: the disk failed.
    """
    if promised is not None and promised.renewing:
        promised = None
    return _Recovery(folder, index_interval_bytes, promised).run()


class _Recovery:
    def __init__(
        self, folder: LogFolder, index_interval_bytes: int, promised: Promised | None
    ) -> None:
        self._folder = folder
        self._promised = promised
        self._files = folder.files
        self._interval_bytes = index_interval_bytes
        self._report = RecoveryReport()
        self._suspect = self._files.exists(folder.file(SUSPECT_NAME))
        self._copying = self._files.exists(folder.file(COPYING_NAME))
        self._loader = SegmentLoader(
            folder,
            index_interval_bytes,
            promised,
            self._report,
            suspect=self._suspect,
            copying=self._copying,
        )
        self._segments = self._loader.segments

    def run(self) -> RecoveredLog:
        """Do the steps in order; after a crash in any step all steps can be done again."""
        if self._promised is not None and not self._is_anything_there():
            is_here = self._files.exists(self._folder.path)
            gone = "the folder is empty" if is_here else "the folder is gone"
            return nothing_left(self._folder, self._promised, RotProof.PROMISED, gone)
        self._files.make_folder(self._folder.path)
        with ExitStack() as stack:
            point_file, point = self._open_point()
            stack.callback(point_file.close)
            found = self._run(point_file, point)
            stack.pop_all()
        return found

    def _run(self, point_file: RecoveryPointFile, point: RecoveryPoint | None) -> RecoveredLog:
        finish_cut(self._folder, point, self._promised)
        bases = self._tidy_names(point_file, point)
        log_start = self._log_start(bases, point)
        if not bases and not self._report.damaged_ranges:
            if self._promised is not None:
                self._add_missing(log_start, max(log_start, self._promised.end))
                self._report.lost_end = self._report.damaged_ranges[-1]
            else:
                self._forget_producers(log_start)
                bases = [self._create_segment(log_start)]
        for base, following in itertools.pairwise(bases):
            self._loader.load_sealed(base, following)
        if bases:
            known = max(
                point.log_end if point is not None else 0,
                self._promised.end if self._promised is not None else 0,
                bases[-1],
            )
            self._loader.load_last(bases[-1], point, Offset(known))
        log_end = self._check_end(point, log_start)
        epochs = self._load_epochs(log_end)
        if self._promised is not None and not self._report.damaged_ranges:
            state, interval = LogState(self._segments, log_start, log_end), self._interval_bytes
            other = not_promised(self._folder, state, epochs, self._promised, interval)
            self._note_lost_end(other)
        self._write_caches(epochs)
        if not self._report.damaged_ranges and self._segments[-1].sealed:
            self._complete_roll(log_end)  # a crash ended a roll before the next segment was made
        if self._suspect and not self._report.damaged_ranges:  # every byte was checked
            self._files.remove(self._folder.file(SUSPECT_NAME))
        self._folder.sync()
        if not self._report.damaged_ranges:
            last = self._segments[-1]
            point_file.write(
                self._folder, at=(last.base_offset, last.size_bytes), log=(log_start, log_end)
            )
            if self._copying:  # now all batches that were copied are below the recovery point
                self._folder.unmark_copying()
        return RecoveredLog(self._segments, log_start, log_end, epochs, point_file, self._report)

    def _is_anything_there(self) -> bool:
        names = self._files.list(self._folder.path)
        return RECOVERY_NAME in names or bool(self._segment_bases())

    def _write_caches(self, epochs: EpochHistory) -> None:
        """Write the rebuilt caches; on a full disk the next opening does it."""
        path = self._folder.file(EPOCHS_NAME)
        with ignoring_no_room():
            for segment in self._loader.indexes_to_write:
                write_index(self._folder, segment)
            if path in self._report.rebuilt:
                self._folder.replace(path, encode_epochs(self._folder.partition_id, epochs.starts))

    def _complete_roll(self, log_end: Offset) -> None:
        """Make the segment after a sealed last segment; on a full disk the first write does it."""
        with ignoring_no_room():
            base = self._create_segment(log_end)
            self._segments.append(Segment(base, SegmentIndex(self._interval_bytes)))

    # ------------------------------------------------------------------ names and the point

    def _open_point(self) -> tuple[RecoveryPointFile, RecoveryPoint | None]:
        path = self._folder.file(RECOVERY_NAME)
        if not self._files.exists(path):
            if self._segment_bases():
                self._report.rebuilt.append(path)
            return RecoveryPointFile.create(self._folder), None
        point_file, point, damaged = RecoveryPointFile.open(self._folder)
        if point is not None and point.partition_id != self._folder.partition_id:
            raise MetadataCorruptError(
                f"{self._folder.path} holds the log of {point.partition_id}, "
                f"not of {self._folder.partition_id}",
                path=path,
                expected=str(self._folder.partition_id),
                found=str(point.partition_id),
            )
        if damaged or (point is None and self._segment_bases()):
            self._report.rebuilt.append(path)
        if damaged and point is None and not self._segment_bases():
            raise MetadataCorruptError(
                f"{path} is damaged and the log has no segment: {damaged[0]}", path=path
            ) from damaged[0]
        return point_file, point

    def _segment_bases(self) -> list[Offset]:
        names = map(parse_segment_name, self._files.list(self._folder.path))
        return sorted(name[0] for name in names if name is not None and name[1] == "log")

    def _tidy_names(
        self, point_file: RecoveryPointFile, point: RecoveryPoint | None
    ) -> list[Offset]:
        """Remove files that a crash left: temporary files, freed segments below the log start."""
        for name in self._files.list(self._folder.path):
            if name.endswith(TEMPORARY_SUFFIX):
                self._files.remove(self._folder.file(name))
        bases = self._segment_bases()
        if point is not None:
            # The log starts at a segment's base, so segments below the start were freed. If there
            # is no segment at the start, the point may be of another copy, which had freed more.
            freed = [
                name
                for name in self._files.list(self._folder.path)
                if (parsed := parse_segment_name(name))
                and parsed[1] in ("log", "index")
                and parsed[0] < point.log_start
                and point.log_start in bases
            ]
            if freed:
                point_file.confirm(point)
            for name in freed:
                self._files.remove(self._folder.file(name))
            bases = [base for base in bases if base >= point.log_start]
        return bases

    def _log_start(self, bases: Sequence[Offset], point: RecoveryPoint | None) -> Offset:
        if point is None:
            first = bases[0] if bases else Offset(0)
            promised = self._promised
            if promised is None or promised.start >= first:
                return first if bases or promised is None else promised.start
            self._add_missing(promised.start, first)
            return promised.start
        if bases and self._folder.file(RECOVERY_NAME) in self._report.rebuilt:
            # The newest point was lost: perhaps it had a higher log start than this one.
            return max(point.log_start, bases[0])
        if not bases:  # the first segment's name is durable before any point is written
            self._add_missing(point.log_start, point.log_end)
        elif bases[0] > point.log_start:
            self._add_missing(point.log_start, bases[0])
        return point.log_start

    def _add_missing(self, start: Offset, end: Offset) -> None:
        self._report.damaged_ranges.append(missing_segment(self._folder, start, end))

    def _forget_producers(self, log_start: Offset) -> None:
        """Remove the states of a log that was to begin later, before there is a log here."""
        if remove_producer_state_above(self._folder, log_start):
            self._folder.sync()

    def _create_segment(self, base: Offset) -> Offset:
        if not self._files.exists(self._folder.segment_file(base, "log")):
            self._folder.create_segment(base)
        return base

    def _check_end(self, point: RecoveryPoint | None, log_start: Offset) -> Offset:
        """Return the log's end; records below the recovery point's end must be there."""
        end = self._segments[-1].end_offset if self._segments else log_start
        known = self._known_end(point, end)
        return max(end, log_start, known, self._check_promise(max(end, known)))

    def _known_end(self, point: RecoveryPoint | None, end: Offset) -> Offset:
        """Return the recovery point's log end; missing records below it are damage."""
        if point is None:
            return Offset(0)
        last_base = self._segments[-1].base_offset if self._segments else None
        if last_base is None:
            return point.log_end
        if end < point.log_end or last_base < point.segment_base:
            self._report.damaged_ranges.append(
                DamagedRange(
                    path=self._folder.segment_file(point.segment_base, "log"),
                    position=(
                        self._segments[-1].size_bytes if last_base == point.segment_base else 0
                    ),
                    offsets=OffsetRange(end, max(end, point.log_end)),
                    reason="records below the recovery point are missing",
                    proof=RotProof.MISSING,
                )
            )
        return point.log_end

    def _check_promise(self, end: Offset) -> Offset:
        """Return the promised end; missing records below it are damage."""
        if (promised := self._promised) is None:
            return Offset(0)
        self._note_lost_end(below_promise(self._folder.path, promised, end))
        return promised.end

    def _note_lost_end(self, lost: DamagedRange | None) -> None:
        if lost is not None:
            self._report.damaged_ranges.append(lost)
            self._report.lost_end = lost

    def _load_epochs(self, log_end: Offset) -> EpochHistory:
        scanned = epochs_of(self._segments)
        epochs, is_rebuilt = load_epochs(self._folder, scanned, log_end)
        if is_rebuilt:
            self._report.rebuilt.append(self._folder.file(EPOCHS_NAME))
        return epochs
