"""Reads a Raft journal, and decides whether a damaged record is a torn tail or rot.

A power cut leaves sectors of the last, unsynced write unwritten: they read as zeros. The journal
ends before the first record with such a sector; no other member has heard of that record. A record
that was synced once and is damaged now is rot. A node without the record could vote twice in a
term, or lack an entry that it had confirmed. So rot is an error, and the node does not start. A
damaged record is rot if, in this order:

1. the meta slots say that this record was durable;
2. a later record says so;
3. no sector of the record is missing, so no power cut did this.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.codec.disk.raft_log_format import (
    ALIGNMENT,
    JOURNAL_HEADER_SIZE,
    RECORD_HEAD_SIZE,
    JournalHeader,
    RecordHead,
    RecordKind,
    decode_journal_header,
    decode_record_body,
    decode_record_head,
)
from broker.errors import MetadataCorruptError
from broker.model.raft import Entry, LogImage
from broker.storage.raft.raft_folder import NEXT_STEP
from broker.storage.sectors import has_missing_sector


@dataclass(frozen=True, slots=True)
class Found:
    """The content of a journal."""

    image: LogImage
    last_number: int
    end: int  # position after the last whole record
    torn: bool  # bytes that were never synced follow
    unsure: int  # position from which no later fact proves that the bytes are durable


def read_journal(path: str, data: bytes, *, owner: bytes, synced: int) -> Found:
    """Read a whole journal. Raises MetadataCorruptError for all but a torn tail."""
    header = decode_journal_header(data)
    if header.owner != owner:
        raise MetadataCorruptError(f"{path} belongs to another node or cluster", path=path)
    reader = _JournalReader(path, data, header, synced)
    reader.read()
    return reader.found()


class _JournalReader:
    def __init__(self, path: str, data: bytes, header: JournalHeader, synced: int) -> None:
        self._path = path
        self._data = data
        self._header = header
        self._synced = max(synced, header.synced, header.first_number - 1)
        self._number = header.first_number - 1
        self._at = JOURNAL_HEADER_SIZE
        self._entries: list[Entry] = []
        self._positions: list[int] = []  # of every record, by number
        self._torn = False

    def found(self) -> Found:
        """Return the result."""
        sure = self._synced - self._header.first_number + 1
        unsure = self._positions[sure] if sure < len(self._positions) else self._at
        header = self._header
        image = LogImage(header.base_index, header.base_term, tuple(self._entries))
        return Found(image, self._number, self._at, self._torn, unsure)

    def read(self) -> None:
        """Read record by record until the end, or until the first that is not whole."""
        data = self._data
        while True:
            head = decode_record_head(data[self._at : self._at + RECORD_HEAD_SIZE])
            entry = None
            if head is not None and head.number == self._number + 1:
                body = data[self._at + RECORD_HEAD_SIZE : self._at + head.size]
                entry = decode_record_body(head, body)
            if head is None or entry is None:
                self._end(head)
                return
            self._take(head, entry)

    def _take(self, head: RecordHead, entry: Entry) -> None:
        first = self._header.base_index + 1
        following = first + len(self._entries)
        last_term = self._entries[-1].term if self._entries else self._header.base_term
        if head.kind is RecordKind.CUT:
            if not first <= entry.index <= following:
                raise self._rot(f"it cuts at {entry.index}, outside of the log")
            del self._entries[entry.index - first :]
        elif entry.index != following or entry.term < last_term:
            raise self._rot(f"entry {entry.index} of term {entry.term} does not follow")
        else:
            self._entries.append(entry)
        self._positions.append(self._at)
        self._synced = max(self._synced, head.synced)
        self._number = head.number
        self._at += head.size

    def _end(self, head: RecordHead | None) -> None:
        """Stop reading; decide whether this is the end, a torn write or rot."""
        if self._number < self._synced:
            raise self._rot("it was durable once")
        if not any(self._data[self._at :]):
            return
        if self._later_synced() > self._number:
            raise self._rot("a later record says that it was durable")
        whole = head is not None and head.number == self._number + 1
        size = head.size if head is not None and whole else RECORD_HEAD_SIZE
        if not has_missing_sector(self._read_at, self._at, self._at + size):
            raise self._rot("no part of it is missing, so no power cut did this")
        self._torn = True

    def _read_at(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]

    def _later_synced(self) -> int:
        """Return the newest durable position that a record after the damage proves."""
        proof = 0
        position = self._at + ALIGNMENT
        while position + RECORD_HEAD_SIZE <= len(self._data):
            position = self._data.find(b"HWRE", position)
            if position < 0:
                break
            head = decode_record_head(self._data[position : position + RECORD_HEAD_SIZE])
            if head is not None and head.number > self._number + 1:
                proof = max(proof, head.synced)
            position += 1
        return proof

    def _rot(self, reason: str) -> MetadataCorruptError:
        return MetadataCorruptError(
            f"{self._path} is damaged at byte {self._at}: {reason}. Nothing was changed. This "
            f"controller cannot vote safely. {NEXT_STEP}",
            path=self._path,
            position=self._at,
        )
