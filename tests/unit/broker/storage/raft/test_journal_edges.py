"""A Raft node's files at the edges: after a crash, with a foreign file, beside older promises.

`make plant` takes each of these checks away, and each test here is the one that notices.
"""

from __future__ import annotations

import random

import pytest

from broker.codec.checksum import crc32c
from broker.codec.disk.raft_log_format import (
    JournalHeader,
    RecordKind,
    encode_journal_header,
    encode_record,
)
from broker.errors import DiskFullError, LogFailedError, MetadataCorruptError
from broker.model.raft import (
    Entry,
    EntryKind,
    Floor,
    HardState,
    LogImage,
    NodeId,
    Snapshot,
    SnapshotId,
)
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal import COUNTER, RaftJournal
from broker.storage.raft.journal_scan import read_journal
from broker.storage.raft.raft_folder import owner_of
from simkit.disk.disk import ROOMY, SimDisk

A, B = NodeId("a"), NodeId("b")
HARD = HardState(3, A, 2)
JOURNAL = "raft/journal"


def _disk() -> SimDisk:
    return SimDisk(random.Random(1))


def _open(disk: SimDisk, *, node: NodeId = A) -> RaftJournal:
    return RaftJournal(disk.files(), "raft", cluster="c", node=node, preallocate_bytes=1024)


def _entry(index: int, payload: bytes = b"command") -> Entry:
    return Entry(index, 3, EntryKind.COMMAND, 7, index, payload)


def _snapshot(index: int, data: bytes = b"state") -> Snapshot:
    return Snapshot(SnapshotId(index, 3, len(data), crc32c(data)), data)


def _filled(disk: SimDisk, *, node: NodeId = A) -> RaftJournal:
    journal = _open(disk, node=node)
    journal.save(hard=HardState(3, node, 2), entries=[_entry(1), _entry(2)])
    journal.save(entries=[_entry(3, b"x" * 1_700)])
    journal.save(entries=[_entry(4, b"y" * 300)])
    return journal


def test_nothing_of_a_torn_write_stays_behind_the_end() -> None:
    """Otherwise the bytes of an old record could follow a later record."""
    disk = _disk()
    _filled(disk)
    disk.kill()
    whole = disk.peek(JOURNAL)
    last = whole.index(b"HWRE", whole.index(b"x" * 700))
    sector = -(-last // 512) * 512
    disk.overwrite(JOURNAL, sector, bytes(512))
    assert any(whole[sector + 512 :]) or any(whole[last:sector])
    assert _open(disk).was_torn
    assert not any(disk.peek(JOURNAL)[last:])


def test_what_a_start_reads_survives_the_next_power_cut() -> None:
    """After a failed sync the page cache has more than the disk; a start syncs what it has read."""
    disk = _disk()
    journal = _open(disk)
    journal.save(hard=HARD, entries=[_entry(1), _entry(2)])
    disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        journal.save(entries=[_entry(3)])
    disk.kill()
    told = _open(disk).stored.log.entries
    disk.lose_power()
    assert _open(disk).stored.log.entries == told


def test_a_zeroed_sector_before_a_later_record_is_rot() -> None:
    """The later record was written after the earlier one was durable: no power cut did this."""
    disk = _disk()
    _filled(disk)
    disk.kill()
    at = disk.peek(JOURNAL).index(b"x" * 700)
    disk.overwrite(JOURNAL, -(-at // 512) * 512, bytes(512))
    with pytest.raises(MetadataCorruptError, match="a later record says"):
        _open(disk)


def test_a_log_that_ends_below_the_noted_commit_is_damage() -> None:
    """A committed entry was in this journal."""
    disk = _disk()
    _open(disk).save(hard=HardState(3, A, 5), entries=[_entry(1)])
    with pytest.raises(MetadataCorruptError, match="entry 5 was committed here"):
        _open(disk)


@pytest.mark.parametrize("name", ["snapshot", "meta"])
def test_one_file_of_another_node_is_refused(name: str) -> None:
    """Each file names its node, so another node's vote or state is not used."""
    disks = {node: _disk() for node in (A, B)}
    for node, disk in disks.items():
        journal = _filled(disk, node=node)
        journal.save(snapshot=_snapshot(3), image=LogImage(3, 3, (_entry(4),)))
        disk.kill()
    theirs = disks[B].peek(f"raft/{name}")
    disks[A].overwrite(f"raft/{name}", 0, theirs)
    with pytest.raises(MetadataCorruptError, match="another node"):
        _open(disks[A])


def test_a_log_without_the_snapshot_before_it_is_refused() -> None:
    """It lacks committed entries."""
    disk = _disk()
    journal = _filled(disk)
    journal.save(snapshot=_snapshot(3), image=LogImage(3, 3, (_entry(4),)))
    disk.delete("raft/snapshot")
    with pytest.raises(MetadataCorruptError, match="before is missing"):
        _open(disk)


def test_a_node_that_took_part_does_not_begin_anew() -> None:
    """The member file proves it when meta and journal are gone, and then its vote is unknown."""
    disk = _disk()
    _open(disk).take_part(9, Floor(7, 30))
    for name in ("meta", "journal"):
        disk.delete(f"raft/{name}")
    with pytest.raises(MetadataCorruptError, match="missing beside the member file"):
        _open(disk)


def test_each_save_is_noted_in_the_second_place() -> None:
    """An older copy of the folder is recognised by its missing entries."""
    disk = _disk()

    def opened() -> tuple[RaftJournal, Promises]:
        files = disk.files()
        promises = Promises(files)
        return RaftJournal(files, "raft", cluster="c", node=A, promises=promises), promises

    journal, promises = opened()
    journal.save(hard=HardState(3, A, 0), entries=[_entry(1), _entry(2)])
    assert promises.noted(COUNTER) == (3, 2)
    older = disk.copy_of("raft")
    journal.save(entries=[_entry(3)])
    assert promises.noted(COUNTER) == (3, 3)
    journal.save(hard=HardState(4, B, 0))
    assert promises.noted(COUNTER) == (4, 3)
    assert not opened()[0].has_forgotten
    for path in older:
        disk.delete(path)
    disk.put_back(older)
    assert opened()[0].has_forgotten


def test_a_write_that_did_not_fit_leaves_nothing_behind_the_end() -> None:
    """A part of the refused write could be taken for a record once the end has moved."""
    disk = _disk()
    disk.thin = True
    journal = _open(disk)
    journal.save(hard=HARD, entries=[_entry(1), _entry(2)])
    end = journal.size_bytes
    disk.capacity_bytes = disk.used_bytes() + 1_024
    with pytest.raises(DiskFullError):
        journal.save(entries=[_entry(3, b"z" * 3_000)])
    assert not any(disk.peek(JOURNAL)[end:])
    disk.capacity_bytes = ROOMY


@pytest.mark.parametrize(
    ("kind", "index", "term"),
    [
        (RecordKind.CUT, 9, 0),  # beyond the end
        (RecordKind.CUT, 0, 0),  # before the beginning
        (RecordKind.ENTRY, 4, 3),  # a hole
        (RecordKind.ENTRY, 2, 3),  # once more
        (RecordKind.ENTRY, 3, 2),  # an older term
    ],
)
def test_a_record_that_does_not_follow_is_rot(kind: RecordKind, index: int, term: int) -> None:
    """Its checksum is right, but it does not follow these records."""
    owner = owner_of("c", A)
    records = [encode_record(RecordKind.ENTRY, at, at - 1, _entry(at)) for at in (1, 2)]
    odd = Entry(index, term, EntryKind.COMMAND, 7, 1, b"x")
    data = encode_journal_header(JournalHeader(0, 0, 1, 0, owner)) + b"".join(records)
    assert len(read_journal(JOURNAL, data, owner=owner, synced=0).image.entries) == 2
    with pytest.raises(MetadataCorruptError, match=r"cuts at|does not follow"):
        read_journal(JOURNAL, data + encode_record(kind, 3, 2, odd), owner=owner, synced=0)
