"""The folder of one partition's log: its file names and how its small files are replaced.

A small file is replaced whole: a temporary file is written, synced and renamed. The rename is
durable after the folder is synced; the caller decides when to sync the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.codec.disk.log_state_format import (
    RECOVERY_FILE_SIZE,
    SLOT_SIZE,
    SLOT_STRIDE,
    RecoveryPoint,
    decode_recovery_point,
    encode_recovery_point,
)
from broker.codec.disk.segment_format import segment_name
from broker.errors import (
    HeadwaterError,
    LogFailedError,
    MetadataCorruptError,
    OverloadedError,
)
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.system import File, Files
from broker.storage.no_room import PROCESS_LIMITS, datasync, lacks_room, no_room
from broker.storage.whole_file import replace_whole

EPOCHS_NAME: Final = "epochs"
RECOVERY_NAME: Final = "recovery"
SUSPECT_NAME: Final = "suspect"  # a read found damage: the next opening trusts no index
COPYING_NAME: Final = "copying"  # see PartitionLog.begin_copying
CUT_NAME: Final = "cut"  # bytes behind the recovery point are being removed, see truncation.py
TEMPORARY_SUFFIX: Final = ".tmp"
_SMALL_FILE_BYTES_MAX: Final = 1024 * 1024 * 1024  # no whole-file read is larger


def cannot_open(folder: str, cause: OSError, what: str = "open") -> HeadwaterError:
    """Translate an error of the operating system for the caller that opens a log."""
    if lacks_room(cause):
        return no_room(f"cannot {what} {folder}", cause, path=folder)
    if cause.errno in PROCESS_LIMITS:
        return OverloadedError(
            f"cannot {what} {folder} now, because the process has no memory: {cause}; try again",
            path=folder,
        )
    return LogFailedError(f"cannot {what} {folder}: {cause}", path=folder)


@dataclass(frozen=True, slots=True)
class LogFolder:
    """Paths and whole-file operations below one partition's folder. Raises OSError as files do."""

    files: Files
    path: str
    partition_id: PartitionId

    def file(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.path}/{name}"

    def segment_file(self, base_offset: int, kind: str) -> str:
        """Return the path of a segment's ``log``, ``index`` or ``producers`` file."""
        return self.file(segment_name(base_offset, kind))

    def read(self, path: str) -> bytes:
        """Return a whole small file."""
        file = self.files.open(path)
        try:
            size = min(file.size(), _SMALL_FILE_BYTES_MAX)
            return file.read_at(0, size)
        finally:
            file.close()

    def replace(self, path: str, data: bytes) -> None:
        """Replace a whole file; call ``sync`` to make the new name durable."""
        replace_whole(self.files, path, [data], temporary=path + TEMPORARY_SUFFIX)

    def create_segment(self, base_offset: int) -> None:
        """Make an empty segment file; its name is not durable yet.

        An earlier segment with this name may have left an index. That index would call bytes
        durable that are not there, so it is removed first, durably.
        """
        index = self.segment_file(base_offset, "index")
        if self.files.exists(index):
            self.files.remove(index)
            self.sync()
        self.files.open(self.segment_file(base_offset, "log"), create=True).close()

    def mark_suspect(self) -> None:
        """Make the next opening trust no index, durably."""
        self._mark(SUSPECT_NAME)

    def mark_copying(self) -> None:
        """Tell the next opening that the log is being copied, durably."""
        self._mark(COPYING_NAME)

    def unmark_copying(self) -> None:
        """Undo :meth:`mark_copying`, durably."""
        self.remove_if_there(self.file(COPYING_NAME))
        self.sync()

    def _mark(self, name: str) -> None:
        path = self.file(name)
        if not self.files.exists(path):
            self.files.open(path, create=True).close()
            self.sync()

    def remove_if_there(self, path: str) -> None:
        """Remove a file that may be absent."""
        if self.files.exists(path):
            self.files.remove(path)

    def sync(self) -> None:
        """Make names created, renamed and removed durable."""
        self.files.sync_folder(self.path)


class RecoveryPointFile:
    """The two slots of the recovery point; a write goes to the slot with the older point."""

    def __init__(self, file: File, sequence: int) -> None:
        self._file = file
        self._sequence = sequence

    @classmethod
    def create(cls, folder: LogFolder) -> RecoveryPointFile:
        """Make the file with both slots empty; its name is not durable yet."""
        file = folder.files.open(folder.file(RECOVERY_NAME), create=True)
        file.write_at(0, [bytes(RECOVERY_FILE_SIZE)])  # real blocks: later writes need no space
        file.datasync()
        return cls(file, 0)

    @classmethod
    def open(
        cls, folder: LogFolder
    ) -> tuple[RecoveryPointFile, RecoveryPoint | None, list[MetadataCorruptError]]:
        """Return the file, its newest point (None: no slot has one) and errors of damaged slots."""
        file = folder.files.open(folder.file(RECOVERY_NAME))
        points: list[RecoveryPoint] = []
        damaged: list[MetadataCorruptError] = []
        for slot in range(2):
            data = file.read_at(slot * SLOT_STRIDE, SLOT_SIZE)
            if data == bytes(len(data)):  # never written
                continue
            try:
                points.append(decode_recovery_point(data))
            except MetadataCorruptError as error:
                damaged.append(error)
        newest = max(points, key=lambda point: point.sequence, default=None)
        return cls(file, newest.sequence if newest else 0), newest, damaged

    def write(
        self, folder: LogFolder, *, at: tuple[Offset, int], log: tuple[Offset, Offset]
    ) -> None:
        """Write a point: ``at`` = (segment base, position), ``log`` = (log start, log end)."""
        point = RecoveryPoint(
            partition_id=folder.partition_id,
            sequence=self._sequence + 1,
            segment_base=at[0],
            position=at[1],
            log_start=log[0],
            log_end=log[1],
        )
        self.confirm(point)

    def confirm(self, point: RecoveryPoint) -> None:
        """Write a point to its slot, durably.

        Recovery calls this again for the newest point before it acts on this point. The former
        process may have ended because its sync failed. Then this process has read the point from
        the page cache, and a power cut could still undo it.
        """
        slot = point.sequence % 2
        self._file.write_at(slot * SLOT_STRIDE, [encode_recovery_point(point)])
        datasync(self._file)
        self._sequence = point.sequence

    def close(self) -> None:
        """Close the file."""
        self._file.close()
