"""A Raft node's files: every save is there after a crash, or the node refuses to start."""

from __future__ import annotations

import contextlib
import random

import pytest

from broker.codec.checksum import crc32c
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
    Stored,
)
from broker.storage.raft.journal import RaftJournal
from simkit.disk.disk import ROOMY, PowerLostError, SimDisk

A = NodeId("a")
HARD = HardState(3, A, 2)


def _disk() -> SimDisk:
    return SimDisk(random.Random(1))


def _open(disk: SimDisk, *, cluster: str = "c", node: NodeId = A) -> RaftJournal:
    return RaftJournal(disk.files(), "raft", cluster=cluster, node=node, preallocate_bytes=1024)


def _entry(index: int, term: int = 3, payload: bytes = b"command") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, 7, index, payload)


def _snapshot(index: int, term: int = 3, data: bytes = b"state") -> Snapshot:
    return Snapshot(SnapshotId(index, term, len(data), crc32c(data)), data)


def _filled() -> SimDisk:
    disk = _disk()
    journal = _open(disk)
    journal.save(hard=HARD, entries=[_entry(1), _entry(2)])
    journal.save(entries=[_entry(3, payload=b"x" * 700)])
    journal.save(entries=[_entry(4, payload=b"y" * 300)])
    disk.kill()
    return disk


def test_a_new_node_has_nothing_and_keeps_what_it_saves() -> None:
    """Term, vote and entries are there after a restart, and after a power cut."""
    disk = _disk()
    assert _open(disk).stored == Stored(HardState(), None, LogImage(0, 0, ()))
    journal = _open(disk)
    journal.save(hard=HARD, entries=[_entry(1), _entry(2)])
    journal.save(truncate=2, entries=[_entry(2, 4)])
    disk.lose_power()
    stored = _open(disk).stored
    assert stored.hard == HARD
    assert stored.log == LogImage(0, 0, (_entry(1), _entry(2, 4)))


def test_a_write_torn_anywhere_ends_the_journal_before_it() -> None:
    """A last, unsynced record that is missing from any sector boundary on was never promised."""
    disk = _filled()
    path = "raft/journal"
    whole = disk.peek(path)
    last = whole.index(b"HWRE", whole.index(b"x" * 700))
    for sector in range(last // 512, -(-(last + 72 + 304) // 512)):
        start, stop = max(last, sector * 512), (sector + 1) * 512
        disk.overwrite(path, start, bytes(stop - start))
        journal = _open(disk)
        assert journal.was_torn or start == last
        assert [one.index for one in journal.stored.log.entries] == [1, 2, 3]
        disk.kill()
        disk = _filled()


def test_a_flipped_bit_in_any_record_stops_the_node() -> None:
    """Rot is never taken for a torn tail, wherever it strikes; nothing is changed on disk."""
    disk = _filled()
    path = "raft/journal"
    whole = disk.peek(path)
    end = len(whole.rstrip(b"\0"))
    padding = {at for at in range(64, end) if not whole[at]}
    for position in range(end):
        if position in padding and position > end - 80:
            continue  # the last record's padding is checked by the next test
        disk.flip_bit(path, position, position % 8)
        before = disk.peek(path)
        with pytest.raises(MetadataCorruptError):
            _open(disk)
        assert disk.peek(path) == before
        disk.flip_bit(path, position, position % 8)
    assert len(_open(disk).stored.log.entries) == 4


def test_one_damaged_meta_slot_is_survived_and_two_are_not() -> None:
    """Both slots say the same, so one of them is enough; without either the vote is unknown."""
    disk = _filled()
    for position in (0, 10, 100, 123):
        disk.flip_bit("raft/meta", position, 3)
        journal = _open(disk)
        assert (journal.stored.hard, journal.damaged_slots) == (HARD, 1)
        disk.kill()
    disk.flip_bit("raft/meta", 20, 0)
    disk.flip_bit("raft/meta", 4096 + 20, 0)
    with pytest.raises(MetadataCorruptError, match="both slots"):
        _open(disk)


@pytest.mark.parametrize("name", ["meta", "journal"])
def test_a_missing_file_is_damage(name: str) -> None:
    """A node with a past is never taken for a new one."""
    disk = _filled()
    disk.delete(f"raft/{name}")
    with pytest.raises(MetadataCorruptError, match="missing"):
        _open(disk)


def test_files_of_another_node_or_cluster_are_refused() -> None:
    """A disk in the wrong machine must not vote (pitfall D14)."""
    disk = _filled()
    for cluster, node in (("other", A), ("c", NodeId("b"))):
        with pytest.raises(MetadataCorruptError, match="another node"):
            _open(disk, cluster=cluster, node=node)


def test_a_journal_that_ends_before_what_was_committed_is_damage() -> None:
    """The commit that a node has noted cannot be beyond its log."""
    disk = _disk()
    journal = _open(disk)
    journal.save(entries=[_entry(1), _entry(2)])
    journal.checkpoint(2)
    disk.overwrite("raft/journal", 64 + 80, bytes(200))
    with pytest.raises(MetadataCorruptError, match="durable once"):
        _open(disk)


def test_a_snapshot_shortens_the_journal_whatever_moment_the_power_goes() -> None:
    """Between any two steps of a compaction, everything promised is found again."""
    for step in range(40):
        disk = _filled()
        journal = _open(disk)
        disk.stop_after = step
        try:
            journal.save(snapshot=_snapshot(3), image=LogImage(2, 3, (_entry(3), _entry(4))))
        except PowerLostError:
            disk.lose_power()
            stored = _open(disk).stored
            assert stored.hard == HARD
            assert stored.log.entries[-1].index == 4
            assert stored.log.base_index in {0, 2}
            assert stored.snapshot in {None, _snapshot(3)}
            assert stored.log.base_index == 0 or stored.snapshot is not None
        else:
            assert _open(disk).stored.log.base_index == 2
            return
    raise AssertionError("the save never completed")


def test_an_installed_snapshot_replaces_a_log_that_differs() -> None:
    """A crash between the two renames leaves a snapshot beside a log of another term: it wins."""
    for step in range(40):
        disk = _filled()
        journal = _open(disk)
        disk.stop_after = step
        try:
            journal.save(snapshot=_snapshot(9, 5), image=LogImage(9, 5, ()))
        except PowerLostError:
            disk.lose_power()
            stored = _open(disk).stored
            if stored.snapshot is None:
                assert len(stored.log.entries) == 4
            else:
                assert stored.log == LogImage(9, 5, ())
        else:
            return
    raise AssertionError("the save never completed")


@pytest.mark.parametrize("position", [0, 20, 60])
def test_a_damaged_snapshot_stops_the_node(position: int) -> None:
    """A snapshot that cannot be read is never taken for an empty state (S9, D6)."""
    disk = _filled()
    journal = _open(disk)
    journal.save(snapshot=_snapshot(3), image=LogImage(3, 3, (_entry(4),)))
    disk.flip_bit("raft/snapshot", position, 1)
    with pytest.raises(MetadataCorruptError):
        _open(disk)


@pytest.mark.parametrize("thin", [False, True])
def test_a_full_disk_refuses_and_the_same_save_goes_through_later(thin: bool) -> None:
    """Nothing of a refused save counts, and no restart is needed."""
    disk = _disk()
    disk.thin = thin
    journal = _open(disk)
    journal.save(hard=HARD, entries=[_entry(1), _entry(2)])
    disk.capacity_bytes = disk.used_bytes() + 500
    large = [_entry(3, payload=b"z" * 3000)]
    for _ in range(3):
        with pytest.raises(DiskFullError):
            journal.save(entries=large)
    if not thin:  # if allocation reserves nothing, only a write shows the full disk
        with pytest.raises(DiskFullError):
            journal.reserve(4000)
    disk.capacity_bytes = ROOMY
    journal.save(entries=large)
    disk.lose_power()
    assert [one.index for one in _open(disk).stored.log.entries] == [1, 2, 3]


@pytest.mark.parametrize("before", range(1, 30, 3))
def test_room_ahead_takes_small_saves_on_a_full_disk(before: int) -> None:
    """This holds at any end of the journal; once the reserve is used up, saves are refused."""
    disk = _disk()
    journal = RaftJournal(
        disk.files(), "raft", cluster="c", node=A, preallocate_bytes=1024, ahead_bytes=2048
    )
    journal.save(hard=HARD, entries=[_entry(index) for index in range(1, before + 1)])
    disk.capacity_bytes = disk.used_bytes()
    saved = before
    with contextlib.suppress(DiskFullError):
        while True:
            journal.save(entries=[_entry(saved + 1)])
            saved += 1
    assert saved - before >= 2048 // 90
    disk.capacity_bytes = ROOMY
    journal.save(entries=[_entry(saved + 1)])
    disk.lose_power()
    assert len(_open(disk).stored.log.entries) == saved + 1


def test_a_failed_sync_is_final() -> None:
    """After it every save is refused, even one that would work (pitfall D2)."""
    disk = _disk()
    journal = _open(disk)
    disk.datasync_failures = 1
    for _ in range(2):
        with pytest.raises(LogFailedError):
            journal.save(entries=[_entry(1)])
    with pytest.raises(LogFailedError):
        journal.reserve(1)


# ---------------------------------------------------------------------------- taking part


def test_a_folder_is_fresh_until_its_node_takes_part() -> None:
    """A new folder is, one with a note is not, nor one that was in use before there were notes."""
    disk = _disk()
    journal = _open(disk)
    fresh = [journal.is_fresh]
    journal.take_part(0, Floor())
    fresh += [journal.is_fresh, _open(disk).is_fresh]
    assert fresh == [True, False, False]
    assert not _open(_filled()).is_fresh


def test_term_and_floor_of_a_rejoin_outlive_a_power_cut() -> None:
    """Both or neither survive. In that term the node counts as having voted for itself."""
    disk = _disk()
    journal = _open(disk)
    journal.take_part(9, Floor(7, 30))
    disk.lose_power()
    stored = _open(disk).stored
    assert (stored.hard, stored.floor) == (HardState(9, A), Floor(7, 30))
    for operation in range(8):
        disk = _disk()
        journal = _open(disk)
        disk.stop_after = operation
        with contextlib.suppress(PowerLostError):
            journal.take_part(9, Floor(7, 30))
        disk.stop_after = None
        disk.lose_power()
        journal = _open(disk)
        found = (journal.is_fresh, journal.stored.hard, journal.stored.floor)
        assert found in {
            (True, HardState(), Floor()),
            (False, HardState(9, A), Floor(7, 30)),
        }, f"stopped after {operation} operations"


def test_a_later_term_is_kept_beside_the_note() -> None:
    """The note is from the start; later votes are in the meta slots."""
    disk = _disk()
    _open(disk).take_part(9, Floor(7, 30))
    journal = _open(disk)
    journal.save(hard=HardState(11, NodeId("b")))
    assert _open(disk).stored.hard == HardState(11, NodeId("b"))


def test_a_dropped_floor_stays_dropped() -> None:
    """The node stays a member, and does not ask the others again."""
    disk = _disk()
    _open(disk).take_part(9, Floor(7, 30))
    _open(disk).drop_floor()
    disk.lose_power()
    journal = _open(disk)
    assert journal.stored.floor == Floor()
    assert not journal.is_fresh


def test_a_damaged_note_stops_the_node() -> None:
    """Every flipped bit does: an unknown floor must not be taken for no floor."""
    disk = _disk()
    _open(disk).take_part(9, Floor(7, 30))
    for position in range(len(disk.peek("raft/member"))):
        disk.flip_bit("raft/member", position, position % 8)
        with pytest.raises(MetadataCorruptError):
            _open(disk)
        disk.flip_bit("raft/member", position, position % 8)
    other = _disk()
    _open(other, node=NodeId("b")).take_part(9, Floor(7, 30))
    for name in ("meta", "journal"):
        other.files().remove(f"raft/{name}")
    with pytest.raises(MetadataCorruptError, match="another node"):
        _open(other)


def test_a_snapshot_of_the_largest_state_is_opened_again() -> None:
    """A start takes every snapshot that a member can write (64 MiB were refused once)."""
    disk = _disk()
    data = bytes(64 * 1024 * 1024 + 1)
    _open(disk).save(snapshot=_snapshot(5, data=data), image=LogImage(5, 3, ()))
    snapshot = _open(disk).stored.snapshot
    assert snapshot is not None
    assert len(snapshot.data) == len(data)
