"""The disk of a Raft node: journal, snapshot and meta, over the Files port.

Files of the folder: ``meta`` (two slots), ``journal`` (append-only, replaced whole when a snapshot
has made its beginning unneeded), ``snapshot``, ``member`` (written before the node first takes
part in a group: the term and the floor that it may take part with). A new file is written as
``*.new``, synced, renamed, and the folder is synced; nothing is changed in place except the two
slots, one after the other.

- `save` returns once everything is durable. A failed sync is final: the object takes no more.
- A full disk refuses a save whole: nothing of it counts, and the same save may be tried again.
- Damage other than a torn tail stops the node at open. Metadata is never treated as empty.
- What the page cache shows after a restart may not be on the disk: it is written again, and synced,
  before anybody is told of it.
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

_JOURNAL_BYTES_MAX: Final = 256 * 1024 * 1024  # what an opener is willing to read
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
COUNTER: Final = "raft"  # in the promises: the term, and the last record's number
_NOTHING: Final = Stored(HardState(), None, LogImage(0, 0, ()))

# Sees what the files hold before any of them is changed, and raises to leave them as they are.
Examine = Callable[[Snapshot | None, Found], None]


class RaftJournal:
    """One node's files. One thread at a time."""

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
        """Open, or make, the folder's files; `stored` is then what they hold. Blocks.

        ``ahead_bytes`` are kept allocated behind the journal's end, as far as the disk has them:
        a disk that is full then still takes the commands that give room back.
        ``remake``: the member file is there and says how to take part; the others are made anew.
        ``promises``: a second place, where every save is noted; see :attr:`has_forgotten`.

        Raises:
            MetadataCorruptError: damage, files of another node, or a file that is missing.
            DiskFullError, LogFailedError: the disk does not take what opening has to write.
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
        self.has_forgotten = False  # the second place knows of more than these files
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
        files.sync_folder(folder)  # what a killed process renamed may not be durable yet
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
        """Note in the second place how far this one is, before anybody is told.

        A full disk may refuse the first note: then the second place knows less, and nothing wrong.
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
        """Make a new node's files: the meta file last, so that with it the others must exist."""
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
        """Read the journal, cut a torn tail, write again what may only be in the page cache."""
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
        """Make the files anew of a node that :func:`has_lost_all`, to take part as is said. Blocks.

        The member file comes first: with the others there, nothing would tell that they are new.

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
        """Tell whether this disk never took part in a group, or was wiped since."""
        return self._membership is None and self.stored == _NOTHING

    @staticmethod
    def is_noted(promises: Promises | None) -> bool:
        """Tell whether the second place knows that something was saved here."""
        noted = None if promises is None else promises.noted(COUNTER)
        return noted is not None and noted > (0, 0)

    @property
    def has_member_file(self) -> bool:
        """Tell whether it is noted that this node has taken part."""
        return self._membership is not None

    def take_part(self, term: int, floor: Floor, disk: int = 0) -> None:
        """Note durably how a node with an empty disk takes part; in force at once.

        ``disk`` is the number that the disk gets, 0: none.

        Raises:
            DiskFullError, LogFailedError: it may or may not be noted.
        """
        self._write_membership(MemberNote(term, floor, disk or self.stored.disk))
        hard = self.stored.hard
        if term > hard.term:
            hard = HardState(term, self._node, hard.commit)
        self.go_on(hard, self.stored.bar)
        self.stored = replace(self.stored, floor=floor, disk=disk or self.stored.disk)

    def drop_floor(self) -> None:
        """Note that the floor is reached. Raises as :meth:`take_part` does."""
        if self._membership is not None:
            self._write_membership(replace(self._membership, floor=Floor()))

    def go_on(self, hard: HardState, bar: Floor) -> None:
        """Note durably what others told of this node's past; in force at once.

        Raises:
            DiskFullError, LogFailedError: it may or may not be noted.
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
        """Bytes of the journal that count; a snapshot makes them fewer."""
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
        """Make all of it durable: term and vote, then the snapshot, then the log. Blocks.

        ``image`` replaces the log; else entries from ``truncate`` on go and ``entries`` follow.
        ``disk`` is the number that this disk gets, before all else.

        Raises:
            DiskFullError: nothing counts; the same save may be tried again when there is room.
            LogFailedError: the disk failed; this object is of no more use.
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
        """Note how far everything is durable; now and then, when there is nothing else to do."""
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
        """See to it that ``size`` more bytes of records fit. Raises DiskFullError."""
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
        """Leave nothing behind the end that could be taken for a record."""
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
    """Return the mark of whose files these are."""
    name = f"{cluster}\0{node}".encode()
    return hashlib.blake2b(name, digest_size=OWNER_SIZE).digest()


def has_lost_all(files: Files, folder: str) -> bool:
    """Tell whether a node's folder says that it has taken part, and holds nothing else of that."""
    names = set(files.list(folder))
    if "member" not in names or names & {"meta", "snapshot"}:
        return False
    if "journal" not in names:
        return True
    file = files.open(f"{folder}/journal")  # a kill while the files were made anew leaves it so
    try:
        return file.size() == JOURNAL_HEADER_SIZE
    finally:
        file.close()


def _reconciled(image: LogImage, snapshot: Snapshot | None, path: str) -> LogImage:
    """Bring log and snapshot together as a crash between their two renames left them.

    A log that agrees with the snapshot, or begins at it, is kept whole. One that ends before it, or
    has another entry there, was being replaced: what the snapshot holds is committed.
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
