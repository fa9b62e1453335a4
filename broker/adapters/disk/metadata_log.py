"""The metadata log of one node: a journal of commands, synced before any answer.

Files in ``metadata/``: ``snapshot`` (state as of an index), ``journal`` (commands after it), and
``ballast``: room that a full disk is given back of, so that what frees disk can be written down.

    journal entry:  | length u32 | command crc u32 | index u64 | head crc u32 | command ... |
    snapshot:       | crc u32 | index u64 | state as JSON ... |     little-endian, CRC-32C

The head's CRC covers the 16 bytes before it, a snapshot's all that follows. A journal that ends
inside an entry lost a command that nobody was told about: it is cut there. Any other damage stops
the broker: metadata is never treated as empty and never repaired by deletion (pitfall D6).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from broker.codec.checksum import crc32c
from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import COMMAND_BYTES_MAX, decode
from broker.core.metadata.size import SNAPSHOT_BYTES_MAX
from broker.core.metadata.state import MetadataState
from broker.errors import DiskFullError, InvalidRequestError, LogFailedError, MetadataCorruptError
from broker.ports.system import File, Files
from broker.storage.log.folder import ignoring_full_disk, is_full
from broker.storage.stream_folders import stored_partitions, stream_folder
from broker.storage.whole_file import write_whole

_log = structlog.get_logger(__name__)

_HEAD: Final = struct.Struct("<IIQ")
_CRC: Final = struct.Struct("<I")
_HEAD_SIZE: Final = _HEAD.size + _CRC.size
_INDEX: Final = struct.Struct("<Q")
_SNAPSHOT: Final = struct.Struct("<IQ")
_SECTOR_SIZE: Final = 512  # a torn write leaves whole sectors unwritten, and those read as zeros
_BALLAST_BYTES: Final = 256 * 1024
_BALLAST_STEP: Final = 8 * 1024
_ROOMY_BYTES: Final = 64 * 1024 * 1024
_COUNTER: Final = "metadata"
_JOURNAL_BYTES_MAX: Final = 4 * 1024 * 1024  # then a snapshot starts a new journal


class Noted(Protocol):
    """A second place that remembers how far the journal was: see ``promises/promises.py``."""

    def note(self, name: str, first: int, second: int = 0) -> None:
        """Note a counter."""

    def noted(self, name: str) -> tuple[int, int] | None:
        """Return a counter's values, if it was ever noted."""


class LocalMetadataLog:
    """Implements ``MetadataLog`` for a cluster of one. Any thread; proposals take turns."""

    def __init__(
        self, files: Files, folder: str = "metadata", *, promises: Noted | None = None
    ) -> None:
        """Open and replay. Blocks.

        Raises:
            MetadataCorruptError: the snapshot or the journal is damaged, missing, or older than
                what ``promises`` noted before an answer was given, or than logs that are here.
        """
        self._files = files
        self._promises = promises
        if not files.exists(folder) and files.exists("streams"):
            raise MetadataCorruptError(f"{folder} is missing beside stored data", path=folder)
        self._folder = folder
        self._lock = threading.Lock()
        self._failure: LogFailedError | None = None
        self._snapshot_at = _JOURNAL_BYTES_MAX
        self._subscribers: list[Callable[[int, MetadataState], None]] = []
        files.make_folder(folder)
        files.sync_folder(folder)  # a file may have been replaced, and the process ended there
        self.state, self._index = self._load_snapshot()
        self._journal = self._open_journal()
        self._position = self._replay()
        self._require_newest()
        self._note()
        self._ballast = 0
        self._take_ballast()

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """See ``MetadataLog.propose``."""
        if len(command) > COMMAND_BYTES_MAX:
            raise InvalidRequestError(f"a metadata command of {len(command)} bytes is too large")
        parsed = decode(command)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            state, reply = apply(self.state, parsed)
            if isinstance(reply, Rejected):
                raise reply.error  # on one node a refused command need not be kept
            self._append(command)
            self._note()
            self.state = state
            for subscriber in self._subscribers:
                subscriber(self._index, state)
            if self._position > self._snapshot_at:
                with ignoring_full_disk():  # the journal holds all of it
                    self._write_snapshot()
            if self._ballast < _BALLAST_BYTES and self._files.free_bytes() > _ROOMY_BYTES:
                self._take_ballast()
            return reply

    def barrier(self, *, timeout_ms: int = 10_000) -> int:  # noqa: ARG002 - nobody to wait for
        """See ``MetadataLog.barrier``: here everything answered is applied."""
        with self._lock:
            return self._index

    def subscribe(self, subscriber: Callable[[int, MetadataState], None]) -> None:
        """See ``MetadataLog.subscribe``."""
        with self._lock:
            self._subscribers.append(subscriber)
            subscriber(self._index, self.state)

    def close(self) -> None:
        """Close the journal; everything in it is durable already."""
        with self._lock:
            self._journal.close()

    def _append(self, command: bytes) -> None:
        index = self._index + 1
        head = _HEAD.pack(len(command), crc32c(command), index)
        entry = [head, _CRC.pack(crc32c(head)), command]
        written = self._write(entry)
        self._sync()
        self._position += written
        self._index = index

    def _sync(self) -> None:
        try:
            self._journal.datasync()
        except OSError as cause:
            self._failure = LogFailedError(f"fdatasync of the metadata journal failed: {cause}")
            raise self._failure from cause

    def _write(self, entry: Sequence[bytes]) -> int:
        """Write an entry; on a full disk with the room that was kept for this."""
        while True:
            try:
                return self._journal.write_at(self._position, entry)
            except OSError as cause:
                self._cut_back()
                if not is_full(cause) or not self._give_ballast():
                    raise DiskFullError(f"metadata cannot be written: {cause}") from cause

    def _take_ballast(self) -> None:
        """Keep room for a few thousand commands: a full disk must not stop what frees it."""
        path = f"{self._folder}/ballast"
        with ignoring_full_disk():
            file = self._files.open(path, create=not self._files.exists(path))
            try:
                self._ballast = file.size()
                file.allocate(_BALLAST_BYTES)
                self._ballast = _BALLAST_BYTES
            finally:
                file.close()

    def _give_ballast(self) -> bool:
        """Give a little of it up; False when there is none left."""
        if self._ballast <= 0:
            return False
        self._ballast = max(0, self._ballast - _BALLAST_STEP)
        try:
            file = self._files.open(f"{self._folder}/ballast")
            try:
                file.truncate(self._ballast)
            finally:
                file.close()
        except OSError:
            return False
        return True

    def _note(self) -> None:
        """Note how far the journal is, in a second place, before anybody is answered."""
        if self._promises is None:
            return
        try:
            with ignoring_full_disk():
                self._promises.note(_COUNTER, self._index)
        except LogFailedError as failed:
            self._failure = failed
            raise

    def _require_newest(self) -> None:
        self._compare_with_noted()
        self._compare_with_logs()

    def _compare_with_logs(self) -> None:
        """Refuse an older copy whose promises are as old: logs lie here that it does not know.

        A log is made after its stream is in the journal, and removed after its deletion is. So a
        stream that is in neither was made after these files were copied.
        """
        stored = {one.stream_uuid for one in stored_partitions(self._files)}
        unknown = sorted(stored - self.state.partitions.keys() - set(self.state.deleted))
        if unknown:
            logs = ", ".join(map(stream_folder, unknown[:10])) + " and others" * bool(unknown[10:])
            raise MetadataCorruptError(
                f"{self._folder} ends at entry {self._index}, and knows nothing of the streams "
                f"whose logs are in {logs}, nor that they were deleted: files were lost, or an "
                "older copy was put back. Nothing was changed. Put the newest copy of the folder "
                "back; to do without the records of these logs, move them out of the data folder.",
                path=self._folder,
                found=self._index,
                streams=unknown[:10],
            )

    def _compare_with_noted(self) -> None:
        """Refuse an older copy: it would not know streams, and free what it does not know of."""
        noted = None if self._promises is None else self._promises.noted(_COUNTER)
        if noted is not None and noted[0] > self._index:
            raise MetadataCorruptError(
                f"{self._folder} ends at entry {self._index}, and entry {noted[0]} had been "
                "answered: files were lost, or an older copy was put back. Nothing was changed. "
                "Put the newest copy of the folder back, or rebuild the streams from their tables.",
                path=self._folder,
                expected=noted[0],
                found=self._index,
            )

    def _cut_back(self) -> None:
        try:
            self._journal.truncate(self._position)
        except OSError as cause:
            self._failure = LogFailedError(f"the metadata journal cannot be cut: {cause}")
            raise self._failure from cause

    def _load_snapshot(self) -> tuple[MetadataState, int]:
        path = f"{self._folder}/snapshot"
        if not self._files.exists(path):
            return MetadataState(), 0
        data = self._read_whole(path, _SNAPSHOT.size + SNAPSHOT_BYTES_MAX)
        if len(data) < _SNAPSHOT.size:
            raise MetadataCorruptError(f"{path} is too short", path=path)
        crc, index = _SNAPSHOT.unpack_from(data)
        if crc32c(memoryview(data)[4:]) != crc:
            raise MetadataCorruptError(f"{path} fails its checksum", path=path)
        return MetadataState.from_json(data[_SNAPSHOT.size :].decode(errors="replace")), index

    def _write_snapshot(self) -> None:
        """Replace the snapshot, then start an empty journal; safe to crash between any two."""
        state = self.state.to_json().encode()
        if len(state) > SNAPSHOT_BYTES_MAX:  # it would not be opened again; the journal is
            self._snapshot_at = 2 * self._position
            _log.error("metadata_too_large", size_bytes=len(state), limit_bytes=SNAPSHOT_BYTES_MAX)
            return
        self._snapshot_at = _JOURNAL_BYTES_MAX
        body = _INDEX.pack(self._index) + state
        self._write_whole("snapshot", _CRC.pack(crc32c(body)) + body)
        self._write_whole("journal", b"")
        full, self._journal = self._journal, self._files.open(f"{self._folder}/journal")
        full.close()
        self._position = 0

    def _write_whole(self, name: str, data: bytes) -> None:
        write_whole(self._files, f"{self._folder}/{name}", [data])

    def _open_journal(self) -> File:
        path = f"{self._folder}/journal"
        if not self._files.exists(path):
            if self._index:
                raise MetadataCorruptError(f"{path} is missing beside a snapshot", path=path)
            self._require_newest()  # else it is lost, and not to be begun anew
            self._write_whole("journal", b"")
        return self._files.open(path)

    def _read_whole(self, path: str, bytes_max: int) -> bytes:
        file = self._files.open(path)
        try:
            size = file.size()
            if size > bytes_max:
                raise MetadataCorruptError(f"{path} of {size} bytes is too large", path=path)
            return file.read_at(0, size)
        finally:
            file.close()

    def _replay(self) -> int:
        path = f"{self._folder}/journal"
        data = self._journal.read_at(0, self._journal.size())
        position = last = 0
        while position < len(data):
            entry = _next_entry(data, position, path)
            if entry is None:
                self._require_newest()  # else it had been answered, and is not torn
                self._journal.truncate(position)
                self._sync()
                break
            index, command, end = entry
            if index > self._index:  # else it is in the snapshot already
                if index != self._index + 1:
                    raise MetadataCorruptError(f"{path} jumps to entry {index}", path=path)
                self.state, _ = apply(self.state, decode(command))
                self._index = index
            last, position = position, end
        if position:
            self._confirm(last, data[last:position])
        return position

    def _confirm(self, position: int, entry: bytes) -> None:
        """Make the last entry durable: its sync may have failed, and only the cache have it.

        Nothing was written behind a sync that failed, so every other entry is on the disk.
        """
        try:
            self._journal.write_at(position, [entry])
        except OSError as cause:
            raise LogFailedError(f"the metadata journal cannot be written: {cause}") from cause
        self._sync()


def _next_entry(data: bytes, position: int, path: str) -> tuple[int, bytes, int] | None:
    """Return (index, command, end) of the entry at ``position``; None for a torn last one."""
    command_start = position + _HEAD_SIZE
    if command_start > len(data):
        return None
    length, crc, index = _HEAD.unpack_from(data, position)
    (head_crc,) = _CRC.unpack_from(data, position + _HEAD.size)
    end = command_start + length
    head_good = crc32c(memoryview(data)[position : position + _HEAD.size]) == head_crc
    if head_good and end > len(data):
        return None
    if head_good and crc32c(memoryview(data)[command_start:end]) == crc:
        return index, data[command_start:end], end
    next_sector = (position // _SECTOR_SIZE + 1) * _SECTOR_SIZE
    if next_sector < len(data) and not any(data[next_sector:]):
        return None
    raise MetadataCorruptError(
        f"{path} is damaged at byte {position}; nothing was changed. Restore the metadata "
        "folder from a copy, or rebuild the streams from their tables.",
        path=path,
        position=position,
    )
