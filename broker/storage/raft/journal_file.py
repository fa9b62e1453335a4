"""The journal of a Raft member as an open file: records are added at its end, or it is replaced.

- Records of a failed write are cut off at once, so that no later byte can be read as a record.
- ``ahead_bytes`` stay allocated after the end, if the disk has room. So a full disk still takes the
  commands that free space.
- After a restart the page cache may hold bytes that are not on the disk. So the end of the journal
  is written and synced again before another member hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.codec.disk.raft_log_format import (
    JournalHeader,
    RecordKind,
    encode_journal_header,
    encode_record,
)
from broker.errors import LogFailedError
from broker.model.raft import Entry, EntryKind, LogImage
from broker.ports.system import File
from broker.storage.no_room import is_full
from broker.storage.raft.journal_scan import Found, read_journal
from broker.storage.raft.raft_folder import RaftFolder

NAME: Final = "journal"
_JOURNAL_BYTES_MAX: Final = 256 * 1024 * 1024  # a larger journal is not opened


class JournalFile:
    """The file and its end. Owner: the journal's thread. Methods raise OSError."""

    def __init__(
        self,
        folder: RaftFolder,
        found: Found,
        *,
        preallocate_bytes: int,
        ahead_bytes: int,
    ) -> None:
        """Take over the file as it was found; callers use :meth:`open`."""
        self._folder = folder
        self._preallocate_bytes = preallocate_bytes
        self._ahead_bytes = ahead_bytes
        self._file: File = folder.files.open(folder.file(NAME))
        self._at = found.end
        self._allocated = self._file.size()
        self.number = self.synced = found.last_number

    @classmethod
    def open(
        cls,
        folder: RaftFolder,
        *,
        synced: int,
        examine: Callable[[Found], None],
        preallocate_bytes: int,
        ahead_bytes: int,
    ) -> tuple[JournalFile, Found]:
        """Read the journal, cut a torn tail, and write again bytes that may not be on the disk.

        ``synced`` is the number of the last record that is known to be durable. ``examine`` is
        called with the content before anything is changed; it may raise to prevent the change.

        Raises:
            MetadataCorruptError: a record that was durable is damaged, or the file is another's.
        """
        data = folder.read_whole(NAME, _JOURNAL_BYTES_MAX)
        found = read_journal(folder.file(NAME), data, owner=folder.owner, synced=synced)
        examine(found)
        made = cls(folder, found, preallocate_bytes=preallocate_bytes, ahead_bytes=ahead_bytes)
        made._repair_end(found, data)
        return made, found

    def _repair_end(self, found: Found, data: bytes) -> None:
        if found.torn:
            self._file.truncate(found.end)
        if found.unsure < found.end:
            self._file.write_at(found.unsure, [data[found.unsure : found.end]])
        self._folder.datasync(self._file)
        self._allocated = self._file.size()

    @property
    def size_bytes(self) -> int:
        """Bytes in use; a replacement reduces them."""
        return self._at

    def reserve(self, size: int) -> None:
        """Allocate room for ``size`` more bytes of records."""
        self._allocate(self._at + size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def append(self, truncate: int | None, entries: Sequence[Entry]) -> None:
        """Add a cut, if there is one, and entries, durably."""
        number = self.number
        records: list[bytes] = []
        if truncate is not None:
            number += 1
            cut = Entry(truncate, 0, EntryKind.NOOP, 0, 0, b"")
            records.append(encode_record(RecordKind.CUT, number, self.synced, cut))
        for entry in entries:
            number += 1
            records.append(encode_record(RecordKind.ENTRY, number, self.synced, entry))
        size = sum(map(len, records))
        self._allocate(self._at + size)
        try:
            self._file.write_at(self._at, records)
        except OSError:
            self._cut_back()
            raise
        self._folder.datasync(self._file)
        self._at += size
        self.number = self.synced = number

    def _allocate(self, end: int) -> None:
        if end + self._ahead_bytes <= self._allocated:
            return
        step = self._preallocate_bytes
        wanted = -(-(end + self._ahead_bytes) // step) * step
        try:
            self._file.allocate(wanted)
        except OSError as cause:
            if not is_full(cause) or end > self._allocated:
                raise
        else:
            self._allocated = wanted

    def _cut_back(self) -> None:
        """Cut the file at its end, so that no later byte can be read as a record."""
        try:
            self._file.truncate(self._at)
        except OSError as cause:
            failed = LogFailedError(f"the Raft journal cannot be cut: {cause}")
            raise self._folder.fail(failed) from cause
        self._allocated = self._at

    def replace(self, image: LogImage) -> None:
        """Replace the whole journal, durably."""
        first = self.number + 1
        number = self.number
        last = number + len(image.entries)
        header = JournalHeader(image.base_index, image.base_term, first, last, self._folder.owner)
        parts = [encode_journal_header(header)]
        for entry in image.entries:
            number += 1
            parts.append(encode_record(RecordKind.ENTRY, number, first - 1, entry))
        self._folder.write_whole(NAME, parts)
        self._file.close()
        try:
            self._file = self._folder.files.open(self._folder.file(NAME))
        except OSError as cause:  # the new journal is in place: this step cannot be done again
            failed = LogFailedError(f"the Raft journal cannot be opened again: {cause}")
            raise self._folder.fail(failed) from cause
        self._at = self._allocated = sum(map(len, parts))
        self.number = self.synced = number


def first_journal(owner: bytes) -> bytes:
    """Return the bytes of a new node's journal, without an entry."""
    return encode_journal_header(JournalHeader(0, 0, 1, 0, owner))


def is_first(folder: RaftFolder) -> bool:
    """Tell whether the journal is as :func:`first_journal` made it."""
    return folder.read_whole(NAME, _JOURNAL_BYTES_MAX) == first_journal(folder.owner)
