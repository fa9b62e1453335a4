"""The disk of a Raft node: journal, snapshot and meta, over the Files port.

Files of the folder: ``meta`` (two slots), ``journal`` (append-only; rewritten when a snapshot
covers its beginning), ``snapshot``, and ``member`` (written before the node first joins a group:
the term and the floor with which it joins). A new file is written as ``*.new``, synced and renamed,
and the folder is synced. Only the two slots are changed in place, one after the other.

- `save` returns when everything is durable. After a failed sync the object refuses all saves.
- On a full disk a save fails as a whole: none of it takes effect, and it may be tried again.
- Any damage but a torn tail stops the node at open. Damaged metadata is never treated as empty.

``journal_file.py`` has the open journal, ``raft_folder.py`` what all files share. The order of the
writes is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.disk.raft_log_format import (
    JOURNAL_HEADER_SIZE,
    SNAPSHOT_HEADER_SIZE,
    decode_snapshot_header,
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
    Floor,
    HardState,
    LogImage,
    NodeId,
    Snapshot,
    Stored,
)
from broker.ports.system import Files
from broker.storage.no_room import ignoring_no_room, is_full
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal_file import JournalFile, first_journal, is_first
from broker.storage.raft.journal_scan import Found
from broker.storage.raft.meta import MetaFile, first_meta
from broker.storage.raft.raft_folder import NEXT_STEP, RaftFolder, owner_of
from broker.storage.whole_file import write_whole

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
        self._folder = RaftFolder(files, folder, owner_of(cluster, node))
        self._node = node
        self._preallocate_bytes = preallocate_bytes
        self._ahead_bytes = ahead_bytes
        self._remake = remake
        self._promises = promises
        self._examine = examine
        self.was_torn = False  # a torn tail was cut when the journal was opened
        self.has_forgotten = False  # the promises file has a later term or record
        try:
            self._meta = self._open_all()
        except OSError as cause:
            raise self._folder.translated(cause) from cause

    # ------------------------------------------------------------------ opening

    def _open_all(self) -> MetaFile:
        files, folder = self._folder.files, self._folder.path
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
            raise MetadataCorruptError(
                f"{path} is missing beside the meta file: files were lost. {NEXT_STEP}",
                path=path,
            )
        meta = MetaFile(f"{folder}/meta", files.open(f"{folder}/meta"), self._folder.owner)
        self.damaged_slots = meta.damaged_slots
        snapshot = self._read_snapshot()
        self._journal, found = self._open_journal(meta.slot.synced, snapshot)
        self.was_torn = found.torn
        image = _reconciled(found.image, snapshot, f"{folder}/journal")
        if image is not found.image:
            self._journal.replace(image)
        self._membership = self._read_membership()
        hard = meta.slot.hard
        if self._membership is not None and self._membership.term > hard.term:
            hard = HardState(self._membership.term, self._node, hard.commit)
        last = image.base_index + len(image.entries)
        if hard.commit > last:
            raise MetadataCorruptError(
                f"{folder}/journal ends at entry {last}, but entry {hard.commit} was committed "
                f"here: records were lost. {NEXT_STEP}",
                path=f"{folder}/journal",
            )
        meta.write(hard, self._journal.synced, self._folder.datasync)
        floor = Floor() if self._membership is None else self._membership.floor
        disk = 0 if self._membership is None else self._membership.disk
        self.stored = Stored(hard, snapshot, image, floor, disk=disk)
        noted = None if self._promises is None else self._promises.noted(COUNTER)
        term, number = noted or (0, 0)
        self.has_forgotten = not self._remake and (
            hard.term < term or self._journal.number < number
        )
        self._meta = meta
        if not self.has_forgotten:
            self._note()
        return meta

    def _note(self) -> None:
        """Note term and last record in the promises file, before another member hears of them.

        A full disk may refuse the note. Then the noted values are too low, which detects less,
        until the next :meth:`save` or :meth:`checkpoint`.
        """
        if self._promises is None:
            return
        values = max(self._meta.slot.hard.term, self.stored.hard.term), self._journal.synced
        if self._promises.noted(COUNTER) != values:
            with ignoring_no_room():
                self._promises.note(COUNTER, *values)

    def _open_journal(self, synced: int, snapshot: Snapshot | None) -> tuple[JournalFile, Found]:
        def examine(found: Found) -> None:
            if self._examine is not None:
                self._examine(snapshot, found)

        return JournalFile.open(
            self._folder,
            synced=synced,
            examine=examine,
            preallocate_bytes=self._preallocate_bytes,
            ahead_bytes=self._ahead_bytes,
        )

    def _read_membership(self) -> MemberNote | None:
        path = self._folder.file("member")
        if not self._folder.files.exists(path):
            return None
        data = self._folder.read_whole("member", MEMBER_FILE_SIZE_MAX)
        membership, owner = decode_member_file(data)
        if owner != self._folder.owner:
            raise MetadataCorruptError(f"{path} belongs to another node or cluster", path=path)
        return membership

    def _make_files(self, present: set[str]) -> None:
        """Create the files of a new node; the meta file last: it proves that the others exist."""
        if not self._remake and self._read_membership() is not None:
            path = self._folder.file("meta")
            raise MetadataCorruptError(
                f"{path} is missing beside the member file: this node has been in its "
                f"group, and its term, vote and log are lost. {NEXT_STEP}",
                path=path,
            )
        if "snapshot" in present or ("journal" in present and not is_first(self._folder)):
            path = self._folder.file("meta")
            raise MetadataCorruptError(
                f"{path} is missing beside a journal or snapshot: files were lost. " + NEXT_STEP,
                path=path,
            )
        self._folder.write_whole("journal", [first_journal(self._folder.owner)])
        self._folder.write_whole("meta", [first_meta(self._folder.owner)])

    def _read_snapshot(self) -> Snapshot | None:
        path = self._folder.file("snapshot")
        if not self._folder.files.exists(path):
            return None
        data = self._folder.read_whole("snapshot", SNAPSHOT_HEADER_SIZE + SNAPSHOT_BYTES_MAX)
        identity, owner = decode_snapshot_header(data)
        body = data[SNAPSHOT_HEADER_SIZE:]
        if owner != self._folder.owner:
            raise MetadataCorruptError(f"{path} belongs to another node or cluster", path=path)
        if len(body) != identity.size or crc32c(body) != identity.crc:
            raise MetadataCorruptError(f"{path} fails its checksum. {NEXT_STEP}", path=path)
        return Snapshot(identity, body)

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
            raise (DiskFullError if is_full(cause) else LogFailedError)(
                f"{path} cannot be written: {cause}"
            ) from cause
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
        """Persist how a node with an empty disk joins its group, and take over its term and floor.

        ``disk`` is the number that the disk gets; 0 keeps the present number.

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
        """Persist the term and vote that follow from the other members' answers; take over the bar.

        Raises:
            DiskFullError, LogFailedError: the note may or may not be on the disk.
        """
        self.save(hard=hard if hard != self.stored.hard else None)
        self.has_forgotten = False
        self.stored = replace(self.stored, hard=hard, bar=bar)

    def _write_membership(self, membership: MemberNote) -> None:
        self._folder.require_healthy()
        try:
            self._folder.write_whole("member", [encode_member_file(membership, self._folder.owner)])
        except OSError as cause:
            raise self._folder.translated(cause) from cause
        self._membership = membership

    # ------------------------------------------------------------------ saving

    @property
    def size_bytes(self) -> int:
        """Bytes of the journal in use; a snapshot reduces them."""
        return self._journal.size_bytes

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
        self._folder.require_healthy()
        if disk is not None:
            self._write_membership(replace(self._membership or MemberNote(0, Floor()), disk=disk))
        try:
            if hard is not None:
                self._meta.write(hard, self._journal.synced, self._folder.datasync)
            if snapshot is not None:
                header = encode_snapshot_header(snapshot.id, self._folder.owner)
                self._folder.write_whole("snapshot", [header, snapshot.data])
            if image is not None:
                self._journal.replace(image)
            elif entries or truncate is not None:
                self._journal.append(truncate, entries)
            self._note()
        except OSError as cause:
            raise self._folder.translated(cause) from cause

    def checkpoint(self, commit: int) -> None:
        """Write the durable end of the journal to the meta file; called now and then when idle."""
        self._folder.require_healthy()
        self._note()
        hard = self._meta.slot.hard
        if self._meta.slot.synced != self._journal.synced or commit > hard.commit:
            try:
                self._meta.write(
                    HardState(hard.term, hard.vote, max(commit, hard.commit)),
                    self._journal.synced,
                    self._folder.datasync,
                )
            except OSError as cause:
                raise self._folder.translated(cause) from cause

    def reserve(self, size: int) -> None:
        """Allocate room for ``size`` more bytes of records. Raises DiskFullError."""
        self._folder.require_healthy()
        try:
            self._journal.reserve(size)
        except OSError as cause:
            raise self._folder.translated(cause) from cause

    def close(self) -> None:
        """Close the files; everything saved is durable already."""
        self._journal.close()
        self._meta.close()


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

    A log that begins right after the snapshot, or has the snapshot's last entry, is kept. A log
    that ends before that entry, or has another entry at its index, was about to be replaced, and
    is dropped: all entries of a snapshot are committed.
    """
    if snapshot is None:
        if image.base_index:
            raise MetadataCorruptError(
                f"{path} begins after entry {image.base_index}, and the snapshot with the entries "
                f"before is missing: files were lost. {NEXT_STEP}",
                path=path,
            )
        return image
    index, term = snapshot.id.index, snapshot.id.term
    if image.base_index > index:
        raise MetadataCorruptError(
            f"{path} begins after entry {image.base_index}, but the snapshot ends at {index}: the "
            "entries between them are missing. " + NEXT_STEP,
            path=path,
        )
    at = index - image.base_index - 1
    if at == -1:
        found: int | None = image.base_term
        if found != term:
            raise MetadataCorruptError(
                f"{path} begins after entry {index} of term {found}, but in the snapshot this "
                f"entry has term {term}: the two files do not belong together. {NEXT_STEP}",
                path=path,
            )
    else:
        found = image.entries[at].term if at < len(image.entries) else None
    return image if found == term else LogImage(index, term, ())
