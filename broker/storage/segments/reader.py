"""Read checked batches of one segment, in large pieces, without copying their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.codec.record_batch import HEADER_SIZE, BatchHeader, check_body, decode_header
from broker.errors import BatchCorruptError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import StoredBatch
from broker.ports.system import File
from broker.storage.segments.scan import ValidBatch, Window, next_batch

READ_PIECE_BYTES: Final = 4 * 1024 * 1024
READ_BATCHES_MAX: Final = 256  # of one record each, they take 256 KiB beside their bytes
_HEADERS_PIECE_BYTES: Final = 64 * 1024


class DamageMetError(BatchCorruptError):
    """Damage that a reader met: offsets ``[start, end)``, of which no batch is intact.

    Facts: position, start, end. The log adds the path.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """The beginning of a batch: its first offset and its position in the segment's file."""

    offset: Offset
    position: int


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The part ``[base, end)`` of a segment, ``size`` bytes, that a reader may read."""

    file: File
    base: Offset
    end: Offset
    size: int

    @property
    def first(self) -> Place:
        """The beginning of the first batch."""
        return Place(self.base, SEGMENT_HEADER_SIZE)


def read_batches(
    view: SegmentView, place: Place, wanted: OffsetRange, *, bytes_max: int, first_always: bool
) -> tuple[list[StoredBatch], Place]:
    """Return whole checked batches that overlap ``wanted``, and the place behind the last one.

    The list has at most ``READ_BATCHES_MAX`` batches.

    Args:
        view: the part of the segment that may be read.
        place: a batch at or before ``wanted.start``.
        wanted: the offsets.
        bytes_max: stop before a batch that would exceed this size.
        first_always: return the first wanted batch even if it exceeds ``bytes_max``.

    Raises:
        DamageMetError: the first wanted batch is damaged. Later damage only ends the list.
        OSError: the file cannot be read.
    """
    reach = min(view.size - place.position, max(0, bytes_max) + _HEADERS_PIECE_BYTES)
    window = Window(view.file, view.size, min(reach, _HEADERS_PIECE_BYTES))
    found: list[StoredBatch] = []
    taken = 0
    try:
        for at, header in _headers(view, window, place, wanted):
            if header.end_offset <= wanted.start:
                continue
            taken += header.size
            too_large = taken > bytes_max and (found or not first_always)
            if too_large or len(found) == READ_BATCHES_MAX:
                break
            if not found:  # each body keeps its whole piece in memory
                expected = max(_HEADERS_PIECE_BYTES, header.size * READ_BATCHES_MAX)
                window.piece_bytes = min(reach, READ_PIECE_BYTES, expected)
            body = window.at(at, header.size)[HEADER_SIZE:]
            _check_body(view, header, body, at)
            found.append(StoredBatch(header, body))
            place = Place(header.end_offset, at + header.size)
    except DamageMetError:
        if not found:
            raise
    return found, place


def first_reaching(view: SegmentView, place: Place, timestamp_us: int) -> Offset:
    """Return the first batch from ``place`` with a record at or after ``timestamp_us``, or the end.

    Raises:
        DamageMetError: a header before that batch is damaged.
        OSError: the file cannot be read.
    """
    window = Window(view.file, view.size, _HEADERS_PIECE_BYTES)
    for _, header in _headers(view, window, place, OffsetRange(view.base, view.end)):
        if header.max_timestamp_us >= timestamp_us:
            return header.base_offset
    return view.end


def _headers(
    view: SegmentView, window: Window, place: Place, wanted: OffsetRange
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of batches from ``place`` up to ``wanted.end``.

    Damage of batches below ``wanted.start`` is passed over.
    """
    offset, position = place.offset, place.position
    while offset < wanted.end:
        try:
            header = decode_header(window.at(position, HEADER_SIZE))
            if header.base_offset != offset or position + header.size > view.size:
                raise BatchCorruptError(f"the batch of offset {header.base_offset} is misplaced")
        except BatchCorruptError as error:
            behind = next_batch(Window(view.file, view.size), position + 8, Offset(offset + 1))
            if behind is None or behind.header.base_offset > wanted.start:
                raise _damage_met(view, error, offset, position, behind) from error
            offset, position = behind.header.base_offset, behind.position
            continue
        yield position, header
        position += header.size
        offset = header.end_offset


def _check_body(view: SegmentView, header: BatchHeader, body: memoryview, position: int) -> None:
    try:
        check_body(header, body)
    except BatchCorruptError as error:
        window = Window(view.file, view.size)
        behind = next_batch(window, position + header.size, header.end_offset)
        raise _damage_met(view, error, header.base_offset, position, behind) from error


def _damage_met(
    view: SegmentView,
    error: BatchCorruptError,
    offset: Offset,
    position: int,
    behind: ValidBatch | None,
) -> DamageMetError:
    """Return the damage from ``offset`` up to the next batch that is intact, or the view's end."""
    end = view.end if behind is None else behind.header.base_offset
    return DamageMetError(str(error), position=position, start=offset, end=end)
