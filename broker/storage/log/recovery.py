"""Open a log after any end: clean, killed, power lost, or with damage. docs/decisions/0002.

A sealed segment is trusted by its index, unless a read met damage before (``suspect``). The rest is
scanned, and damage in it is one of two things. A *torn tail* was being written when the power
failed: it was never acknowledged and is cut. *Rot* was durable and changed afterwards: it is never
cut, the log reports its range and takes no more writes. Damage is rot if one of these facts shows
that its bytes had once been written whole:

    a. it is below the recovery point, or below the end of an index, or in a sealed segment;
    b. a later valid batch was written when the log was already synced beyond the damage;
    c. none of its sectors is missing: a torn write always leaves a missing sector;
    d. its records were promised (``storage/promises/promises.py``), so they had been synced.

All kept bytes above the recovery point are written and synced again before they are served: after a
failed fsync the kernel may report bytes as clean that are not on the disk.

A log is damaged if it was promised and is absent, ends below its promise or has other records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from broker.codec.disk.index_format import IndexFile
from broker.codec.disk.log_state_format import RecoveryPoint, encode_epochs
from broker.codec.disk.segment_format import (
    SEGMENT_HEADER_SIZE,
    decode_segment_header,
    parse_segment_name,
)
from broker.errors import (
    IndexCorruptError,
    MetadataCorruptError,
    SegmentCorruptError,
)
from broker.model.epoch_history import EpochHistory
from broker.model.offsets import Offset, OffsetRange
from broker.ports.system import File
from broker.storage.log.epochs_file import load_epochs
from broker.storage.log.truncation import finish_cut
from broker.storage.log_folder import (
    EPOCHS_NAME,
    PROCESS_LIMITS,
    RECOVERY_NAME,
    SUSPECT_NAME,
    TEMPORARY_SUFFIX,
    LogFolder,
    RecoveryPointFile,
    is_full,
)
from broker.storage.promises.lost_log import (
    RecoveredLog,
    below_promise,
    epochs_of,
    missing_segment,
    nothing_left,
)
from broker.storage.promises.promised_batch import not_promised
from broker.storage.promises.promises import Promised
from broker.storage.segments.damage import (
    DamagedRange,
    RecoveryReport,
    RotProof,
    TornTail,
    proof_of_rot,
)
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.log_reader import LogState
from broker.storage.segments.scan import (
    WINDOW_SIZE,
    DamagedStretch,
    ValidBatch,
    Window,
    has_missing_sector,
    scan,
)
from broker.storage.segments.segment import Segment, read_index, write_index
from broker.storage.segments.segment_file import UnreadableError, opened


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
        self._segments: list[Segment] = []
        self._indexes_to_write: list[Segment] = []
        self._suspect = False

    def run(self) -> RecoveredLog:
        """Do the steps in order; after a crash in any step all steps can be done again."""
        if self._promised is not None and not self._is_anything_there():
            is_here = self._files.exists(self._folder.path)
            gone = "the folder is empty" if is_here else "the folder is gone"
            return nothing_left(self._folder, self._promised, RotProof.PROMISED, gone)
        self._files.make_folder(self._folder.path)
        self._suspect = self._files.exists(self._folder.file(SUSPECT_NAME))
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
                bases = [self._create_segment(log_start)]
        for base, following in itertools.pairwise(bases):
            with self._naming_unread(base, following):
                self._load_sealed(base, following)
        if bases:
            known = max(
                point.log_end if point is not None else 0,
                self._promised.end if self._promised is not None else 0,
                bases[-1],
            )
            with self._naming_unread(bases[-1], Offset(known), last=True):
                self._load_last(bases[-1], point)
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
        return RecoveredLog(self._segments, log_start, log_end, epochs, point_file, self._report)

    @contextmanager
    def _naming_unread(self, base: Offset, end: Offset, *, last: bool = False) -> Iterator[None]:
        """Report a segment that cannot be read as damaged; the other segments are served."""
        before = len(self._segments)
        try:
            yield
        except UnreadableError as cause:
            del self._segments[before:]
            segment = Segment(base, SegmentIndex(self._interval_bytes))
            segment.sealed, segment.end_offset = True, end
            self._segments.append(segment)
            self._report.damaged_ranges.append(
                DamagedRange(
                    path=self._folder.segment_file(base, "log"),
                    position=0,
                    offsets=OffsetRange(base, end),
                    reason=f"the segment cannot be read: {cause}",
                    proof=RotProof.UNREADABLE,
                )
            )
            if last:
                self._report.lost_end = self._report.damaged_ranges[-1]

    def _is_anything_there(self) -> bool:
        names = self._files.list(self._folder.path)
        return RECOVERY_NAME in names or bool(self._segment_bases())

    def _write_caches(self, epochs: EpochHistory) -> None:
        """Write the rebuilt caches; on a full disk the next opening does it."""
        path = self._folder.file(EPOCHS_NAME)
        try:
            for segment in self._indexes_to_write:
                write_index(self._folder, segment)
            if path in self._report.rebuilt:
                self._folder.replace(path, encode_epochs(self._folder.partition_id, epochs.starts))
        except OSError as error:
            if not is_full(error):
                raise

    def _complete_roll(self, log_end: Offset) -> None:
        """Make the segment after a sealed last segment; on a full disk the first write does it."""
        try:
            base = self._create_segment(log_end)
        except OSError as error:
            if not is_full(error):
                raise
            self._report.no_room = True
        else:
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

    def _create_segment(self, base: Offset) -> Offset:
        if not self._files.exists(self._folder.segment_file(base, "log")):
            self._folder.create_segment(base)
        return base

    # ------------------------------------------------------------------ sealed segments

    def _load_sealed(self, base: Offset, following: Offset) -> None:
        """Load a segment that has a successor: it was durable before its successor was made."""
        index = self._index_of(base)
        file = opened(self._files, self._folder.segment_file(base, "log"))
        try:
            size = file.size()
            trusted = (
                index is not None
                and not self._suspect
                and index.summary.sealed
                and index.summary.end_offset == following
                and index.summary.covered == size
            )
            if trusted and index is not None:
                segment = self._from_index(index, load_entries=False)
                self._check_header(file, segment, sealed_end=following)
            else:
                segment = Segment(base, SegmentIndex(self._interval_bytes))
                self._rebuild_sealed(file, segment, size, following)
        finally:
            file.close()
        segment.sealed = True
        self._segments.append(segment)

    def _rebuild_sealed(self, file: File, segment: Segment, size: int, following: Offset) -> None:
        """Scan a segment whose index cannot be used."""
        window = Window(file, size)
        self._check_header(file, segment, sealed_end=following)
        before = len(self._report.damaged_ranges)
        found = list(scan(window, position=SEGMENT_HEADER_SIZE, offset=segment.base_offset))
        self._report.scanned_bytes += window.bytes_read
        self._take(segment, found)
        for stretch in found:
            if isinstance(stretch, DamagedStretch):
                reaches_end = stretch.end_position == size
                end = following if reaches_end else min(stretch.end_offset, following)
                self._add_rot(segment, stretch, RotProof.SEALED, end)
        if segment.end_offset != following and len(self._report.damaged_ranges) == before:
            stretch = DamagedStretch(
                position=segment.size_bytes, end_position=size, offset=segment.end_offset,
                end_offset=following, sector_missing=True,
                reason=f"the segment ends at {segment.end_offset}, the next begins at {following}",
            )  # fmt: skip
            self._add_rot(segment, stretch, RotProof.SEALED, following)
        segment.sealed = True
        segment.end_offset = following
        self._report.rebuilt.append(self._folder.segment_file(segment.base_offset, "index"))
        if len(self._report.damaged_ranges) == before:
            self._indexes_to_write.append(segment)

    def _index_of(self, base: Offset) -> IndexFile | None:
        try:
            return read_index(self._folder, base)
        except IndexCorruptError:
            return None
        except OSError as cause:
            if cause.errno in PROCESS_LIMITS:
                raise
            return None  # a cache that cannot be read

    def _from_index(self, index: IndexFile, *, load_entries: bool) -> Segment:
        summary = index.summary
        loaded = SegmentIndex(self._interval_bytes, index.entries) if load_entries else None
        segment = Segment(summary.base_offset, loaded)
        segment.size_bytes = summary.covered
        segment.max_timestamp_us = summary.max_timestamp_us
        segment.created_us = summary.created_us
        segment.epochs = index.epochs
        segment.sealed = summary.sealed
        segment.end_offset = summary.end_offset
        return segment

    def _check_header(
        self,
        file: File,
        segment: Segment,
        *,
        sealed_end: Offset | None = None,
        durable: bool = True,
    ) -> bool:
        """Check the segment's own header; False if it was never written, or torn.

        A sealed segment with a damaged header is not read at all: it may belong to another log.
        """
        data = file.read_at(0, SEGMENT_HEADER_SIZE)
        try:
            header = decode_segment_header(data)
            if (
                header.partition_id != self._folder.partition_id
                or header.base_offset != segment.base_offset
            ):
                raise SegmentCorruptError(
                    f"the file holds the segment {header.base_offset} of {header.partition_id}"
                )
        except SegmentCorruptError as error:
            if not durable and (
                len(data) < SEGMENT_HEADER_SIZE
                or has_missing_sector(Window(file, file.size()), 0, SEGMENT_HEADER_SIZE)
            ):
                return False
            self._report.damaged_ranges.append(
                DamagedRange(
                    path=self._folder.segment_file(segment.base_offset, "log"),
                    position=0,
                    offsets=OffsetRange(segment.base_offset, sealed_end or segment.base_offset),
                    reason=f"segment header: {error}",
                    proof=RotProof.NO_SECTOR_MISSING if not durable else RotProof.SEALED,
                )
            )
            return True
        segment.created_us = header.created_us
        return True

    # ------------------------------------------------------------------ the last segment

    def _load_last(self, base: Offset, point: RecoveryPoint | None) -> None:
        """Load the segment that was being written, classify its damage, cut a torn tail."""
        path = self._folder.segment_file(base, "log")
        file = opened(self._files, path)
        try:
            size = file.size()
            segment, durable = self._start_of_last(base, size, point)
            self._segments.append(segment)
            if segment.sealed:
                self._check_header(file, segment, sealed_end=segment.end_offset)
                return
            found = self._scan_last(file, segment, size, durable)
            self._settle(file, path, segment, found, durable)
        finally:
            file.close()

    def _start_of_last(
        self, base: Offset, size: int, point: RecoveryPoint | None
    ) -> tuple[Segment, int]:
        """Return the last segment from its index, and the end of its durable bytes."""
        durable = point.position if point is not None and point.segment_base == base else 0
        index = self._index_of(base)
        if index is None or self._suspect or index.summary.covered > size:
            if index is not None or durable > 0:
                self._report.rebuilt.append(self._folder.segment_file(base, "index"))
            covered = index.summary.covered if index is not None else 0
            return Segment(base, SegmentIndex(self._interval_bytes)), max(durable, covered)
        segment = self._from_index(index, load_entries=True)
        if segment.sealed and segment.size_bytes != size:
            segment = Segment(base, SegmentIndex(self._interval_bytes))
        return segment, max(durable, index.summary.covered)

    def _scan_last(
        self, file: File, segment: Segment, size: int, durable: int
    ) -> list[ValidBatch | DamagedStretch]:
        window = Window(file, size)
        if durable == 0 and window.zero_from(0):
            self._report.scanned_bytes += window.bytes_read
            return []
        has_header = self._check_header(file, segment, durable=durable > 0)
        position = max(segment.size_bytes, SEGMENT_HEADER_SIZE)
        found = list(scan(window, position=position, offset=segment.end_offset))
        self._report.scanned_bytes += window.bytes_read
        if not has_header:
            missing = DamagedStretch(
                position=0, end_position=SEGMENT_HEADER_SIZE, offset=segment.base_offset,
                end_offset=segment.base_offset, sector_missing=True,
                reason="the segment header was not written",
            )  # fmt: skip
            found.insert(0, missing)
        return found

    def _settle(
        self,
        file: File,
        path: str,
        segment: Segment,
        found: list[ValidBatch | DamagedStretch],
        durable: int,
    ) -> None:
        """Tell rot from a torn tail, keep the valid batches and make them durable."""
        rot = bool(self._report.damaged_ranges)
        for at, stretch in enumerate(found):
            if isinstance(stretch, ValidBatch):
                continue
            proof = proof_of_rot(stretch, found[at + 1 :], durable)
            if proof is None and self._promised is not None and stretch.offset < self._promised.end:
                proof = RotProof.PROMISED
            if proof is not None:
                rot = True
                self._add_rot(segment, stretch, proof, stretch.end_offset)
                continue
            self._cut(file, path, stretch, keep=rot)
            found = found[:at]
            break
        self._take(segment, found)
        if segment.size_bytes < durable and not rot:
            stretch = DamagedStretch(
                position=segment.size_bytes, end_position=durable, offset=segment.end_offset,
                end_offset=segment.end_offset, sector_missing=True, reason="the segment ends early",
            )  # fmt: skip
            self._add_rot(segment, stretch, RotProof.BELOW_RECOVERY_POINT, stretch.offset)
            rot = True
        self._write_again(file, segment.size_bytes if rot else durable, segment.size_bytes)

    def _cut(self, file: File, path: str, stretch: DamagedStretch, *, keep: bool) -> None:
        """Cut a torn tail, durably, unless the file also has rot: then no byte is changed."""
        size = file.size()
        tail = Window(file, size)
        last = stretch.position
        at = stretch.position
        while at < size:
            piece = tail.at(at, min(WINDOW_SIZE, size - at)).tobytes()
            stripped = len(piece.rstrip(b"\0"))
            last = at + stripped if stripped else last
            at += len(piece)
        self._report.torn = TornTail(
            path=path, position=stretch.position, offset=stretch.offset,
            bytes_cut=last - stretch.position, reason=stretch.reason, kept=keep,
        )  # fmt: skip
        if not keep:
            file.truncate(stretch.position)
            file.datasync()

    def _write_again(self, file: File, start: int, end: int) -> None:
        """Write valid bytes above the recovery point again, and sync them."""
        while start < end:
            piece = file.read_at(start, min(WINDOW_SIZE, end - start))
            file.write_at(start, [piece])
            start += len(piece)
            self._report.rewritten_bytes += len(piece)
        file.datasync()

    # ------------------------------------------------------------------ both kinds

    def _take(self, segment: Segment, found: Sequence[ValidBatch | DamagedStretch]) -> None:
        after_damage = False
        for one in found:
            if isinstance(one, ValidBatch):
                segment.note_batch(one.header, one.position, force=after_damage)
                after_damage = False
            else:
                after_damage = True
                segment.end_offset = max(segment.end_offset, one.end_offset)

    def _add_rot(
        self, segment: Segment, stretch: DamagedStretch, proof: RotProof, end: Offset
    ) -> None:
        self._report.damaged_ranges.append(
            DamagedRange(
                path=self._folder.segment_file(segment.base_offset, "log"),
                position=stretch.position,
                offsets=OffsetRange(min(stretch.offset, end), end),
                reason=stretch.reason,
                proof=proof,
            )
        )

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
