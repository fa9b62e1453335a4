"""The disk of a Raft node: journal, snapshot and meta, over the Files port.

Files of the folder: ``meta`` (two slots), ``journal`` (append-only; rewritten when a snapshot
covers its beginning), ``snapshot``, and ``member`` (written before the node first joins a group:
the term and the floor with which it joins). A new file is written as ``*.new``, synced and renamed,
and the folder is synced. Only the two slots are changed in place, one after the other.

- `save` returns when everything is durable. After a failed sync the object refuses all saves.
- On a full disk a save fails as a whole: none of it takes effect, and it may be tried again.
- Any damage but a torn tail stops the node at open. Damaged metadata is never treated as empty.
- After a restart the page cache may hold bytes that are not on the disk. So the end of the journal
  is written and synced again before another member hears of it.

The file is not split: it keeps the order of these writes in one place.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.disk.raft_log_format import (
    JOURNAL_HEADER_SIZE,
    OWNER_SIZE,
    SNAPSHOT_HEADER_SIZE,
    JournalHeader,
    RecordKind,
    decode_snapshot_header,
    encode_journal_header,
    encode_record,
    encode_snapshot_header,
)
from broker.codec.disk.raft_member_file import (
    MEMBER_FILE_SIZE_MAX,
    MemberNote,
    decode_member_file,
    encode_member_file,
)
from broker.errors import DiskFullError, LogFailedError, MetadataCorruptError
from broker.model.raft import (
    SNAPSHOT_BYTES_MAX,
    Entry,
    EntryKind,
    Floor,
    HardState,
    LogImage,
    NodeId,
    Snapshot,
    Stored,
)
from broker.ports.system import File, Files
from broker.storage.log_folder import ignoring_full_disk
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal_scan import Found, read_journal
from broker.storage.raft.meta import MetaFile, first_meta
from broker.storage.whole_file import write_whole

_JOURNAL_BYTES_MAX: Final = 256 * 1024 * 1024  # a larger journal is not opened
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
COUNTER: Final = "raft"  # name in the promises file: the term and the last record's number
_NOTHING: Final = Stored(HardState(), None, LogImage(0, 0, ()))

# Called with the content of the files before any is changed; it may raise to prevent a change.
Examine = Callable[[Snapshot | None, Found], None]


class RaftJournal:
    """The files of one node. One thread at a time."""

    def __init__(
        self,
        files: Files,
        folder: str,
        *,
        cluster: str,
        node: NodeId,
        preallocate_bytes: int = 256 * 1024,
        ahead_bytes: int = 0,
        remake: bool = False,
        promises: Promises | None = None,
        examine: Examine | None = None,
    ) -> None:
        """Open or create the files of the folder; `stored` is their content. Blocks.

        ``ahead_bytes`` are kept allocated after the journal's end, if the disk has room. So a full
        disk still takes the commands that free space.
        ``remake``: the member file says how to join the group; the other files are created anew.
        ``promises``: the file where every save is noted as well; see :attr:`has_forgotten`.

        Raises:
            MetadataCorruptError: damage, files of another node, or a file that is missing.
            DiskFullError, LogFailedError: a write of this method failed.
        """
        self._files = files
        self._folder = folder
        self._node = node
        self._owner = owner_of(cluster, node)
        self._preallocate_bytes = preallocate_bytes
        self._ahead_bytes = ahead_bytes
        self._remake = remake
        self._promises = promises
        self._examine = examine
        self._failure: LogFailedError | None = None
        self.was_torn = False
        self.has_forgotten = False  # the promises file has a later term or record
        try:
            self._meta = self._open_all()
        except OSError as cause:
            raise self._translated(cause) from cause

    # ------------------------------------------------------------------ opening

    def _open_all(self) -> MetaFile:
        files, folder = self._files, self._folder
        files.make_folder(folder)
        for name in files.list(folder):
            if name.endswith(".new"):
                files.remove(f"{folder}/{name}")
        files.sync_folder(folder)  # makes renames of a killed process durable
        present = set(files.list(folder))
        if "meta" not in present:
            self._make_files(present)
        elif "journal" not in present:
            path = f"{folder}/journal"
            raise MetadataCorruptError(f"{path} is missing beside the meta file", path=path)
        meta = MetaFile(f"{folder}/meta", files.open(f"{folder}/meta"), self._owner)
        self.damaged_slots = meta.damaged_slots
        snapshot = self._read_snapshot()
        found = self._open_journal(meta.slot.synced, snapshot)
        image = _reconciled(found.image, snapshot, f"{folder}/journal")
        if image is not found.image:
            self._replace_journal(image)
        self._membership = self._read_membership()
        hard = meta.slot.hard
        if self._membership is not None and self._membership.term > hard.term:
            hard = HardState(self._membership.term, self._node, hard.commit)
        last = image.base_index + len(image.entries)
        if hard.commit > last:
            raise MetadataCorruptError(
                f"{folder}/journal ends at entry {last}; {hard.commit} was committed here",
                path=f"{folder}/journal",
            )
        meta.write(hard, self._synced, self._datasync)
        floor = Floor() if self._membership is None else self._membership.floor
        disk = 0 if self._membership is None else self._membership.disk
        self.stored = Stored(hard, snapshot, image, floor, disk=disk)
        noted = None if self._promises is None else self._promises.noted(COUNTER)
        term, number = noted or (0, 0)
        self.has_forgotten = not self._remake and (hard.term < term or self._number < number)
        self._meta = meta
        if not self.has_forgotten:
            self._note()
        return meta

    def _note(self) -> None:
        """Note term and last record in the promises file, before another member hears of them.

        A full disk may refuse the first note. Then the noted values are too low, which is safe.
        """
        if self._promises is not None:
            term = max(self._meta.slot.hard.term, self.stored.hard.term)
            with ignoring_full_disk():
                self._promises.note(COUNTER, term, self._synced)

    def _read_membership(self) -> MemberNote | None:
        path = f"{self._folder}/member"
        if not self._files.exists(path):
            return None
        membership, owner = decode_member_file(self._read_whole("member", MEMBER_FILE_SIZE_MAX))
        if owner != self._owner:
            raise MetadataCorruptError(f"{path} belongs to another node or cluster", path=path)
        return membership

    def _make_files(self, present: set[str]) -> None:
        """Create the files of a new node; the meta file last: it proves that the others exist."""
        if not self._remake and self._read_membership() is not None:
            path = f"{self._folder}/meta"
            raise MetadataCorruptError(
                f"{path} is missing beside the member file: this node has taken part, and its "
                "term, its vote and its log are lost. Nothing was changed",
                path=path,
            )
        if "snapshot" in present or ("journal" in present and not self._journal_is_new()):
            path = f"{self._folder}/meta"
            raise MetadataCorruptError(f"{path} is missing beside a journal", path=path)
        header = JournalHeader(0, 0, 1, 0, self._owner)
        self._write_whole("journal", [encode_journal_header(header)])
        self._write_whole("meta", [first_meta(self._owner)])

    def _journal_is_new(self) -> bool:
        data = self._read_whole("journal", _JOURNAL_BYTES_MAX)
        return data == encode_journal_header(JournalHeader(0, 0, 1, 0, self._owner))

    def _read_snapshot(self) -> Snapshot | None:
        path = f"{self._folder}/snapshot"
        if not self._files.exists(path):
            return None
        data = self._read_whole("snapshot", SNAPSHOT_HEADER_SIZE + SNAPSHOT_BYTES_MAX)
        identity, owner = decode_snapshot_header(data)
        body = data[SNAPSHOT_HEADER_SIZE:]
        if owner != self._owner:
            raise MetadataCorruptError(f"{path} belongs to another node or cluster", path=path)
        if len(body) != identity.size or crc32c(body) != identity.crc:
            raise MetadataCorruptError(f"{path} fails its checksum", path=path)
        return Snapshot(identity, body)

    def _open_journal(self, synced: int, snapshot: Snapshot | None) -> Found:
        """Read the journal, cut a torn tail, and write again bytes that may not be on the disk."""
        path = f"{self._folder}/journal"
        data = self._read_whole("journal", _JOURNAL_BYTES_MAX)
        found = read_journal(path, data, owner=self._owner, synced=synced)
        if self._examine is not None:
            self._examine(snapshot, found)
        self._file: File = self._files.open(path)
        self.was_torn = found.torn
        if found.torn:
            self._file.truncate(found.end)
        if found.unsure < found.end:
            self._file.write_at(found.unsure, [data[found.unsure : found.end]])
        self._datasync(self._file)
        self._at = found.end
        self._allocated = self._file.size()
        self._number = self._synced = found.last_number
        return found

    def _read_whole(self, name: str, bytes_max: int) -> bytes:
        path = f"{self._folder}/{name}"
        file = self._files.open(path)
        try:
            size = file.size()
            if size > bytes_max:
                raise MetadataCorruptError(f"{path} of {size} bytes is too large", path=path)
            return file.read_at(0, size)
        finally:
            file.close()

    # ------------------------------------------------------------------ membership

    @classmethod
    def remade(
        cls,
        files: Files,
        folder: str,
        *,
        cluster: str,
        node: NodeId,
        term: int,
        floor: Floor,
        disk: int = 0,
        promises: Promises | None = None,
    ) -> RaftJournal:
        """Create the files of a node that :func:`has_lost_all`, to join its group again. Blocks.

        The member file is written first, because it alone shows that the other files are new.

        Raises:
            MetadataCorruptError: the member file is damaged, or another node's.
            DiskFullError, LogFailedError: the disk.
        """
        owner, path = owner_of(cluster, node), f"{folder}/member"
        file = files.open(path)
        try:
            noted, found = decode_member_file(file.read_at(0, MEMBER_FILE_SIZE_MAX + 1))
        finally:
            file.close()
        if found != owner:
            raise MetadataCorruptError(f"{path} belongs to another node or cluster", path=path)
        membership = MemberNote(max(term, noted.term), floor, disk)
        try:
            write_whole(files, path, [encode_member_file(membership, owner)])
        except OSError as cause:
            full = cause.errno in _FULL
            raise (DiskFullError if full else LogFailedError)(f"{path}: {cause}") from cause
        return cls(files, folder, cluster=cluster, node=node, remake=True, promises=promises)

    @property
    def is_fresh(self) -> bool:
        """Tell whether this disk is in no group: it is new, or was wiped."""
        return self._membership is None and self.stored == _NOTHING

    @staticmethod
    def is_noted(promises: Promises | None) -> bool:
        """Tell whether the promises file shows that this node has saved something."""
        noted = None if promises is None else promises.noted(COUNTER)
        return noted is not None and noted > (0, 0)

    @property
    def has_member_file(self) -> bool:
        """Tell whether the member file shows that this node has joined a group."""
        return self._membership is not None

    def take_part(self, term: int, floor: Floor, disk: int = 0) -> None:
        """Persist how a node with an empty disk joins its group; it applies at once.

        ``disk`` is the number that the disk gets; 0 for none.

        Raises:
            DiskFullError, LogFailedError: the note may or may not be on the disk.
        """
        self._write_membership(MemberNote(term, floor, disk or self.stored.disk))
        hard = self.stored.hard
        if term > hard.term:
            hard = HardState(term, self._node, hard.commit)
        self.go_on(hard, self.stored.bar)
        self.stored = replace(self.stored, floor=floor, disk=disk or self.stored.disk)

    def drop_floor(self) -> None:
        """Persist that the floor is reached. Raises as :meth:`take_part` does."""
        if self._membership is not None:
            self._write_membership(replace(self._membership, floor=Floor()))

    def go_on(self, hard: HardState, bar: Floor) -> None:
        """Persist the term, vote and bar that follow from the others' answers; they apply at once.

        Raises:
            DiskFullError, LogFailedError: the note may or may not be on the disk.
        """
        self.save(hard=hard if hard != self.stored.hard else None)
        self.has_forgotten = False
        self.stored = replace(self.stored, hard=hard, bar=bar)

    def _write_membership(self, membership: MemberNote) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._write_whole("member", [encode_member_file(membership, self._owner)])
        except OSError as cause:
            raise self._translated(cause) from cause
        self._membership = membership

    # ------------------------------------------------------------------ saving

    @property
    def size_bytes(self) -> int:
        """Bytes of the journal in use; a snapshot reduces them."""
        return self._at

    def save(
        self,
        *,
        hard: HardState | None = None,
        snapshot: Snapshot | None = None,
        image: LogImage | None = None,
        truncate: int | None = None,
        entries: Sequence[Entry] = (),
        disk: int | None = None,
    ) -> None:
        """Make everything durable: term and vote, then the snapshot, then the log. Blocks.

        ``image`` replaces the log. Without it, entries from ``truncate`` on are removed, and
        ``entries`` are added. ``disk`` is a new number of this disk, written before all else.

        Raises:
            DiskFullError: none of it took effect; it may be tried again when there is room.
            LogFailedError: the disk failed; this object refuses all further saves.
        """
        if self._failure is not None:
            raise self._failure
        if disk is not None:
            self._write_membership(replace(self._membership or MemberNote(0, Floor()), disk=disk))
        try:
            if hard is not None:
                self._meta.write(hard, self._synced, self._datasync)
            if snapshot is not None:
                header = encode_snapshot_header(snapshot.id, self._owner)
                self._write_whole("snapshot", [header, snapshot.data])
            if image is not None:
                self._replace_journal(image)
            elif entries or truncate is not None:
                self._append(truncate, entries)
            self._note()
        except OSError as cause:
            raise self._translated(cause) from cause

    def checkpoint(self, commit: int) -> None:
        """Write the durable end of the journal to the meta file; called now and then when idle."""
        if self._failure is not None:
            raise self._failure
        hard = self._meta.slot.hard
        if self._meta.slot.synced != self._synced or commit > hard.commit:
            try:
                self._meta.write(
                    HardState(hard.term, hard.vote, max(commit, hard.commit)),
                    self._synced,
                    self._datasync,
                )
            except OSError as cause:
                raise self._translated(cause) from cause

    def reserve(self, size: int) -> None:
        """Allocate room for ``size`` more bytes of records. Raises DiskFullError."""
        if self._failure is not None:
            raise self._failure
        try:
            self._allocate(self._at + size)
        except OSError as cause:
            raise self._translated(cause) from cause

    def close(self) -> None:
        """Close the files; everything saved is durable already."""
        self._file.close()
        self._meta.close()

    def _append(self, truncate: int | None, entries: Sequence[Entry]) -> None:
        number = self._number
        records: list[bytes] = []
        if truncate is not None:
            number += 1
            cut = Entry(truncate, 0, EntryKind.NOOP, 0, 0, b"")
            records.append(encode_record(RecordKind.CUT, number, self._synced, cut))
        for entry in entries:
            number += 1
            records.append(encode_record(RecordKind.ENTRY, number, self._synced, entry))
        size = sum(map(len, records))
        self._allocate(self._at + size)
        try:
            self._file.write_at(self._at, records)
        except OSError:
            self._cut_back()
            raise
        self._datasync(self._file)
        self._at += size
        self._number = self._synced = number

    def _allocate(self, end: int) -> None:
        if end + self._ahead_bytes <= self._allocated:
            return
        step = self._preallocate_bytes
        wanted = -(-(end + self._ahead_bytes) // step) * step
        try:
            self._file.allocate(wanted)
        except OSError as cause:
            if cause.errno not in _FULL or end > self._allocated:
                raise
        else:
            self._allocated = wanted

    def _cut_back(self) -> None:
        """Cut the file at its end, so that no later byte can be read as a record."""
        try:
            self._file.truncate(self._at)
        except OSError as cause:
            self._failure = LogFailedError(f"the Raft journal cannot be cut: {cause}")
            raise self._failure from cause
        self._allocated = self._at

    def _replace_journal(self, image: LogImage) -> None:
        first = self._number + 1
        number = self._number
        last = number + len(image.entries)
        header = JournalHeader(image.base_index, image.base_term, first, last, self._owner)
        parts = [encode_journal_header(header)]
        for entry in image.entries:
            number += 1
            parts.append(encode_record(RecordKind.ENTRY, number, first - 1, entry))
        self._write_whole("journal", parts)
        self._file.close()
        self._file = self._files.open(f"{self._folder}/journal")
        self._at = self._allocated = sum(map(len, parts))
        self._number = self._synced = number

    def _write_whole(self, name: str, parts: Sequence[bytes]) -> None:
        write_whole(self._files, f"{self._folder}/{name}", parts, datasync=self._datasync)

    def _datasync(self, file: File) -> None:
        try:
            file.datasync()
        except OSError as cause:
            self._failure = LogFailedError(f"fdatasync of the Raft journal failed: {cause}")
            raise self._failure from cause

    def _translated(self, cause: OSError) -> DiskFullError | LogFailedError:
        if cause.errno in _FULL:
            return DiskFullError(f"the Raft journal has no room: {cause}")
        if self._failure is None:
            self._failure = LogFailedError(f"the Raft journal failed: {cause}")
        return self._failure


def owner_of(cluster: str, node: NodeId) -> bytes:
    """Return the mark of the node and cluster that own the files."""
    name = f"{cluster}\0{node}".encode()
    return hashlib.blake2b(name, digest_size=OWNER_SIZE).digest()


def has_lost_all(files: Files, folder: str) -> bool:
    """Tell whether a folder shows that its node has joined a group, but lost its other files."""
    names = set(files.list(folder))
    if "member" not in names or names & {"meta", "snapshot"}:
        return False
    if "journal" not in names:
        return True
    file = files.open(f"{folder}/journal")  # left by a kill while the files were created
    try:
        return file.size() == JOURNAL_HEADER_SIZE
    finally:
        file.close()


def _reconciled(image: LogImage, snapshot: Snapshot | None, path: str) -> LogImage:
    """Return a log that fits the snapshot, after a crash between the renames of the two files.

    A log that agrees with the snapshot, or begins at it, is kept. A log that ends before the
    snapshot, or has a different entry at its index, was about to be replaced, and is dropped: all
    entries of a snapshot are committed.
    """
    if snapshot is None:
        if image.base_index:
            raise MetadataCorruptError(f"{path} needs a snapshot, and there is none", path=path)
        return image
    index, term = snapshot.id.index, snapshot.id.term
    if image.base_index > index:
        raise MetadataCorruptError(f"{path} begins after the snapshot of {index}", path=path)
    at = index - image.base_index - 1
    if at == -1:
        found: int | None = image.base_term
        if found != term:
            raise MetadataCorruptError(f"{path} begins in another term than the snapshot's")
    else:
        found = image.entries[at].term if at < len(image.entries) else None
    return image if found == term else LogImage(index, term, ())
