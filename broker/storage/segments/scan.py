"""Walk the bytes of a segment file batch by batch, past damage, and report what was found.

The scan only reports facts: valid batches, and damaged stretches. For each stretch it tells whether
a disk sector of the damaged write is missing (all zero, or behind the end of the file).
broker/storage/log/segment_loading.py decides what the damage means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.record_batch import HEADER_SIZE, MAGIC, BatchHeader, decode_header
from broker.errors import BatchCorruptError
from broker.model.offsets import Offset
from broker.ports.system import File
from broker.storage.sectors import has_missing_sector

WINDOW_SIZE: Final = 4 * 1024 * 1024
_ALIGNMENT: Final = 8  # sizes of header and body are multiples, so batches begin at multiples
_ZEROS: Final = bytes(WINDOW_SIZE)


@dataclass(frozen=True, slots=True)
class ValidBatch:
    """A batch with a valid header and body, at its right place in the log."""

    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedStretch:
    """Bytes ``[position, end_position)`` that should hold the batches from ``offset`` on."""

    position: int
    end_position: int
    offset: Offset  # of the first record that is damaged
    end_offset: Offset  # base of the next valid batch, or the highest end that is known
    sector_missing: bool
    reason: str


class Window:
    """Reads a file forward in large pieces and hands out slices of them without copying."""

    def __init__(self, file: File, size: int, piece_bytes: int = WINDOW_SIZE) -> None:
        self._file = file
        self.piece_bytes = piece_bytes  # of the next pieces
        self._start = 0
        self._data = b""
        self.size = size
        self.bytes_read = 0

    def at(self, position: int, size: int) -> memoryview:
        """Return up to ``size`` bytes at ``position``; fewer only at the end of the file."""
        begin = position - self._start
        if begin < 0 or begin + size > len(self._data):
            wanted = min(max(size, self.piece_bytes), max(0, self.size - position))
            self._data = self._file.read_at(position, wanted)
            self._start = position
            self.bytes_read += len(self._data)
            begin = 0
        return memoryview(self._data)[begin : begin + size]

    def zero_from(self, position: int) -> bool:
        """Tell whether all bytes from ``position`` to the end of the file are zero."""
        while position < self.size:
            piece = self.at(position, min(WINDOW_SIZE, self.size - position))
            if not piece or not is_zero(piece):
                return not piece
            position += len(piece)
        return True


def is_zero(data: memoryview) -> bool:
    """Tell whether all bytes are zero; ``data`` is at most one window long."""
    return data.tobytes() == _ZEROS[: len(data)]


def scan(window: Window, *, position: int, offset: Offset) -> Iterator[ValidBatch | DamagedStretch]:
    """Yield batches and damage from ``position``, where ``offset`` is expected, to the end."""
    epoch = 0
    while True:
        head = window.at(position, HEADER_SIZE)
        if (len(head) < HEADER_SIZE or is_zero(head)) and window.zero_from(position):
            return
        found = _batch_at(window, position, offset, epoch)
        yield found
        if isinstance(found, ValidBatch):
            position += found.header.size
            offset = found.header.end_offset
            epoch = found.header.leader_epoch
        else:
            position, offset = found.end_position, found.end_offset


def _batch_at(
    window: Window, position: int, offset: Offset, epoch: int
) -> ValidBatch | DamagedStretch:
    try:
        header = decode_header(window.at(position, HEADER_SIZE))
    except BatchCorruptError as error:
        return _stretch(
            window,
            position,
            search_from=position + _ALIGNMENT,
            offset=offset,
            end_offset=Offset(offset + 1),
            sector_missing=has_missing_sector(window.at, position, position + HEADER_SIZE),
            reason=str(error),
        )
    if header.base_offset != offset or header.leader_epoch < epoch:
        reason = (
            f"found a batch with offset {header.base_offset} and epoch {header.leader_epoch} where "
            f"offset {offset} with epoch {epoch} or later is expected"
        )
        return _stretch(
            window,
            position,
            search_from=position + _ALIGNMENT,
            offset=offset,
            end_offset=Offset(offset + 1),
            sector_missing=False,
            reason=reason,
        )
    if _body_is_valid(window, position, header):
        return ValidBatch(position, header)
    behind = position + header.size
    return _stretch(
        window,
        position,
        search_from=behind,
        offset=offset,
        end_offset=header.end_offset,
        sector_missing=has_missing_sector(window.at, position + HEADER_SIZE, behind),
        reason=f"the body of the batch at offset {offset} fails its checksum",
    )


def _body_is_valid(window: Window, position: int, header: BatchHeader) -> bool:
    body = window.at(position, header.size)[HEADER_SIZE:]
    return len(body) == header.body_size and crc32c(body) == header.body_crc


def _stretch(
    window: Window,
    position: int,
    *,
    search_from: int,
    offset: Offset,
    end_offset: Offset,
    sector_missing: bool,
    reason: str,
) -> DamagedStretch:
    """Describe damage at ``position`` up to the next valid batch from ``end_offset`` on."""
    following = next_batch(window, search_from, end_offset)
    return DamagedStretch(
        position=position,
        end_position=following.position if following is not None else window.size,
        offset=offset,
        end_offset=following.header.base_offset if following is not None else end_offset,
        sector_missing=sector_missing,
        reason=reason,
    )


def next_batch(window: Window, position: int, lowest: Offset) -> ValidBatch | None:
    """Find the next valid batch at or after ``position`` whose offset is at least ``lowest``.

    A record may contain bytes that look like a batch, for example of an older copy of the log. Such
    bytes have lower offsets than ``lowest``.
    """
    position += -position % _ALIGNMENT
    while window.size - position >= HEADER_SIZE:
        piece = window.at(position, min(WINDOW_SIZE, window.size - position)).tobytes()
        found = piece.find(MAGIC)
        while found >= 0:
            candidate = _candidate(window, position + found, lowest)
            if candidate is not None:
                return candidate
            found = piece.find(MAGIC, found + 1)
        position += max(_ALIGNMENT, len(piece) - len(MAGIC) - _ALIGNMENT & -_ALIGNMENT)
    return None


def _candidate(window: Window, position: int, lowest: Offset) -> ValidBatch | None:
    if position % _ALIGNMENT:
        return None
    try:
        header = decode_header(window.at(position, HEADER_SIZE))
    except BatchCorruptError:
        return None
    if header.base_offset < lowest or not _body_is_valid(window, position, header):
        return None
    return ValidBatch(position, header)
