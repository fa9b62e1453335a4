"""Load the segments of a log that is opened, and tell a torn tail from rot. docs/decisions/0002.

A sealed segment is trusted by its index, unless a read met damage before (``suspect``). The rest is
scanned, and damage in it is one of two things. A *torn tail* was being written when the power
failed: it was never acknowledged and is cut. *Rot* was durable and changed afterwards: it is never
cut, the log reports its range and takes no more writes. Damage is rot if one of these facts shows
that its bytes had once been written whole:

    a. it is below the recovery point, or below the end of an index, or in a sealed segment;
    b. a later valid batch was written when the log was already synced beyond the damage. While a
       log is ``copying`` from a leader, such a batch speaks of that disk and proves nothing here;
    c. none of its sectors is missing: a torn write always leaves a missing sector;
    d. its records were promised (``storage/promises/promises.py``), so they had been synced.

All kept bytes above the recovery point are written and synced again before they are served: after a
failed fsync the kernel may report bytes as clean that are not on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.codec.disk.index_format import IndexFile
from broker.codec.disk.log_state_format import RecoveryPoint
from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE, decode_segment_header
from broker.errors import IndexCorruptError, SegmentCorruptError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.system import File
from broker.storage.log_folder import LogFolder
from broker.storage.promises.promises import Promised
from broker.storage.sectors import has_missing_sector
from broker.storage.segments.damage import (
    DamagedRange,
    RecoveryReport,
    RotProof,
    TornTail,
    proof_of_rot,
)
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.scan import (
    WINDOW_SIZE,
    DamagedStretch,
    ValidBatch,
    Window,
    scan,
)
from broker.storage.segments.segment import Segment, read_index
from broker.storage.segments.segment_file import UnreadableError, opened


class SegmentLoader:
    """Loads segments, oldest first. Damage goes into the report."""

    def __init__(
        self,
        folder: LogFolder,
        index_interval_bytes: int,
        promised: Promised | None,
        report: RecoveryReport,
        *,
        suspect: bool,
        copying: bool,
    ) -> None:
        """With ``suspect`` no index is trusted, and every byte is scanned; ``copying``: fact b."""
        self._folder = folder
        self._files = folder.files
        self._interval_bytes = index_interval_bytes
        self._promised = promised
        self._report = report
        self._suspect = suspect
        self._copying = copying
        self.segments: list[Segment] = []
        self.indexes_to_write: list[Segment] = []

    # ------------------------------------------------------------------ sealed segments

    def load_sealed(self, base: Offset, following: Offset) -> None:
        """Load a segment that has a successor: it was durable before its successor was made."""
        with self._reporting_unreadable(base, following):
            self._load_sealed(base, following)

    def _load_sealed(self, base: Offset, following: Offset) -> None:
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
        self.segments.append(segment)

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
            self.indexes_to_write.append(segment)

    def _index_of(self, base: Offset) -> IndexFile | None:
        try:
            return read_index(self._folder, base)
        except IndexCorruptError:
            return None

    def _from_index(self, index: IndexFile, *, load_entries: bool) -> Segment:
        summary = index.summary
        loaded = SegmentIndex(self._interval_bytes, index.entries) if load_entries else None
        segment = Segment(summary.base_offset, loaded)
        segment.size_bytes = summary.covered
        segment.max_timestamp_us = summary.max_timestamp_us
        segment.created_us = summary.created_us
        segment.epochs = index.epochs
        segment.sealed = summary.sealed
        segment.sparse = summary.sparse
        segment.removed_count = summary.removed_count
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
                or has_missing_sector(file.read_at, 0, SEGMENT_HEADER_SIZE)
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

    def load_last(self, base: Offset, point: RecoveryPoint | None, known_end: Offset) -> None:
        """Load the segment that was being written, classify its damage, cut a torn tail.

        ``known_end`` is the end of the records that the log is known to have had.
        """
        with self._reporting_unreadable(base, known_end, last=True):
            self._load_last(base, point)

    def _load_last(self, base: Offset, point: RecoveryPoint | None) -> None:
        path = self._folder.segment_file(base, "log")
        file = opened(self._files, path)
        try:
            size = file.size()
            segment, durable = self._start_of_last(base, size, point)
            self.segments.append(segment)
            if segment.sealed:
                self._check_header(file, segment, sealed_end=segment.end_offset)
                return
            found = self._scan_last(file, segment, size, durable)
            self._keep_valid(file, path, segment, found, durable)
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

    def _keep_valid(
        self,
        file: File,
        path: str,
        segment: Segment,
        found: list[ValidBatch | DamagedStretch],
        durable: int,
    ) -> None:
        """Tell rot from a torn tail, keep the valid batches, and make them durable."""
        rot = bool(self._report.damaged_ranges)
        for at, stretch in enumerate(found):
            if isinstance(stretch, ValidBatch):
                continue
            later = () if self._copying else found[at + 1 :]
            proof = proof_of_rot(stretch, later, durable)
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

    @contextmanager
    def _reporting_unreadable(
        self, base: Offset, end: Offset, *, last: bool = False
    ) -> Iterator[None]:
        """Report a segment as damaged if it cannot be read; the other segments are served."""
        before = len(self.segments)
        try:
            yield
        except UnreadableError as cause:
            del self.segments[before:]
            segment = Segment(base, SegmentIndex(self._interval_bytes))
            segment.sealed, segment.end_offset = True, end
            self.segments.append(segment)
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
