"""Damage done to a partition log's files behind its back, each kind with its undoing.

A kind is only done where the log can tell it from a torn write; where no proof exists (a zeroed
sector in the very last synced group) even a perfect log has to guess.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from broker.codec.disk.log_state_format import SLOT_SIZE, SLOT_STRIDE, decode_recovery_point
from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.codec.record_batch import BatchHeader, decode_header
from broker.errors import BatchCorruptError
from simkit.disk.disk import SECTOR, SimDisk

Undo = Callable[[], None]


class LogRot:
    """Damages one log that is not open."""

    def __init__(
        self, disk: SimDisk, folder: str, promised_end: int, log_starts: Collection[int]
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.promised_end = promised_end
        self.log_starts = log_starts

    def strike(self) -> Undo | None:
        """Do one kind of damage, drawn by the disk's seed; None when the log offers no target."""
        kinds = [
            *[self.flip] * 4,
            self.delete,
            self.cut_short,
            self.cut_active_short,
            self.zero,
            *[self.zero_active] * 3,
        ]
        return self.disk.rng.choice(kinds)()

    def flip(self) -> Undo | None:
        """Flip one bit of any file that holds something."""
        paths = [path for path in self.disk.paths() if self.disk.peek(path).strip(b"\0")]
        path = self.disk.rng.choice(paths)
        size = len(self.disk.peek(path).rstrip(b"\0"))
        if path.endswith("recovery"):
            size = self.disk.rng.choice((72, size))
        position = self.disk.rng.randrange(min(size, len(self.disk.peek(path))))
        bit = self.disk.rng.randrange(8)
        kind = path.rpartition("/")[2].rpartition(".")[2]
        self.disk.seen[f"flipped in {kind}"] += 1
        self.disk.seen["flipped in header"] += kind == "log" and position < SEGMENT_HEADER_SIZE
        self.disk.flip_bit(path, position, bit)
        if kind == "log":
            return lambda: self._unflip(path, position, bit)
        return lambda: None  # a cache: it was rebuilt

    def _unflip(self, path: str, position: int, bit: int) -> None:
        if position < len(self.disk.peek(path)):  # else it was in a torn tail, which was cut
            self.disk.flip_bit(path, position, bit)

    def delete(self) -> Undo | None:
        """Lose a segment that the log relies on."""
        paths = [path for path in self.disk.paths() if path.endswith(".log")]
        bases = [int(path[-24:-4]) for path in paths]
        starts = [base for base in bases if base >= max(self.log_starts)]
        if not starts or starts[-1] > self.promised_end or len(self.log_starts) > 1:
            return None
        path = paths[bases.index(self.disk.rng.choice(starts))]
        inode = self.disk.delete(path)
        self.disk.seen["segment lost"] += 1
        return lambda: self.disk.restore(path, inode)

    def _sealed_path(self) -> str | None:
        """Return a segment with a promised successor: all of it is known to be durable."""
        paths = [path for path in self.disk.paths() if path.endswith(".log")]
        bases = [int(path[-24:-4]) for path in paths]
        sealed = [
            path
            for path, (base, following) in zip(paths, itertools.pairwise(bases), strict=False)
            if base >= max(self.log_starts) and following <= self.promised_end
        ]
        return self.disk.rng.choice(sealed) if sealed and len(self.log_starts) == 1 else None

    def cut_short(self) -> Undo | None:
        """Shorten a sealed segment."""
        path = self._sealed_path()
        if path is None or not self.disk.peek(path):
            return None
        gone = self.disk.cut(path, self.disk.rng.randrange(len(self.disk.peek(path))))
        self.disk.seen["segment cut short"] += 1
        return lambda: self.disk.extend(path, gone)

    def zero(self) -> Undo | None:
        """Zero one sector of a sealed segment."""
        path = self._sealed_path()
        if path is None or not self.disk.peek(path):
            return None
        position = self.disk.rng.randrange(len(self.disk.peek(path))) // SECTOR * SECTOR
        size = min(SECTOR, len(self.disk.peek(path)) - position)
        before = self.disk.overwrite(path, position, bytes(size))
        self.disk.seen["sector zeroed"] += 1
        return lambda: void(self.disk.overwrite(path, position, before))

    def _active_path(self) -> str | None:
        """Return the newest segment, if it holds promised records and the front is certain."""
        paths = [path for path in self.disk.paths() if path.endswith(".log")]
        if not paths or len(self.log_starts) > 1 or int(paths[-1][-24:-4]) >= self.promised_end:
            return None
        return paths[-1]

    def cut_active_short(self) -> Undo | None:
        """Cut the newest segment below the recovery point: only that proves what is missing."""
        path = self._active_path()
        if path is None:
            return None
        slots = self.disk.peek(f"{self.folder}/recovery")
        point = max(
            (decode_recovery_point(slots[at : at + SLOT_SIZE]) for at in _written_slots(slots)),
            key=lambda point: point.sequence,
        )
        if point.segment_base != int(path[-24:-4]) or point.position == 0:
            return None
        gone = self.disk.cut(path, self.disk.rng.randrange(point.position))
        self.disk.seen["active segment cut short"] += 1
        return lambda: self.disk.extend(path, gone)

    def zero_active(self) -> Undo | None:
        """Zero one sector of a batch that a later promised one has seen synced: proof b alone."""
        path = self._active_path()
        if path is None:
            return None
        places = self._layout(path)
        for number, (position, header) in enumerate(places):
            for later_position, later in places[number + 1 :]:
                sector = position // SECTOR * SECTOR
                if later.synced_end > header.base_offset and sector + SECTOR <= later_position:
                    before = self.disk.overwrite(path, sector, bytes(SECTOR))
                    self.disk.seen["active sector zeroed"] += 1
                    return lambda: void(self.disk.overwrite(path, sector, before))
        return None

    def _layout(self, path: str) -> list[tuple[int, BatchHeader]]:
        """Return position and header of the promised batches of a segment."""
        data = self.disk.peek(path)
        position, places = SEGMENT_HEADER_SIZE, list[tuple[int, BatchHeader]]()
        while True:
            try:
                header = decode_header(data, position)
            except BatchCorruptError:
                return places
            if header.end_offset > self.promised_end:
                return places
            places.append((position, header))
            position += header.size


def _written_slots(slots: bytes) -> list[int]:
    starts = range(0, len(slots) - SLOT_SIZE + 1, SLOT_STRIDE)
    return [at for at in starts if any(slots[at : at + SLOT_SIZE])]


def void(_: object) -> None:
    """Drop a result, for a callback that has none."""
