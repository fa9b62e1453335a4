"""What a full disk does to the saves of a Raft member."""

from __future__ import annotations

import random

from broker.core.raft.events import Save
from broker.model.raft import Entry, EntryKind
from broker.runtime.metadata.raft.saving import Saving
from broker.storage.raft.journal import RaftJournal
from simkit.disk.disk import SimDisk


def _save(number: int) -> Save:
    entry = Entry(number, 1, EntryKind.COMMAND, 0, number, b"x" * 50_000)
    return Save(number, None, None, None, None, (entry,))


def _opened(disk: SimDisk) -> RaftJournal:
    return RaftJournal(disk.files(), "raft", cluster="c", node="a")  # type: ignore[arg-type]


def test_a_save_that_met_a_full_disk_is_written_when_there_is_room() -> None:
    """The save and later ones are written in order and synced; none is confirmed before."""
    disk = SimDisk(random.Random(1))
    saving = Saving(disk.files(), _opened(disk))
    capacity, disk.capacity_bytes = disk.capacity_bytes, 0
    number = 1
    saving.add(_save(number))
    while saving.write_next(0) is not None:  # until the journal's reserve is used up
        number += 1
        assert number < 1_000, "the disk is never full"
        saving.add(_save(number))
    saving.add(_save(number + 1))
    assert saving.write_next(1) is None, "a full disk is asked again after a while"
    disk.capacity_bytes = capacity
    assert saving.write_next(60_000) == number + 1
    disk.lose_power()
    stored = _opened(disk).stored
    assert [one.index for one in stored.log.entries] == [*range(1, number + 2)]


def test_a_checkpoint_without_room_is_made_when_there_is_room() -> None:
    """It is no failure of the metadata that a file system needs room for a write in place, too."""
    disk = SimDisk(random.Random(1))
    saving = Saving(disk.files(), _opened(disk))
    saving.add(_save(1))
    assert saving.write_next(0) == 1
    capacity, disk.capacity_bytes, disk.copies_on_write = disk.capacity_bytes, 0, True
    saving.checkpoint(1_000, applied=1)
    assert disk.seen["write did not fit"] == 1
    disk.capacity_bytes = capacity
    saving.checkpoint(60_000, applied=1)
    disk.lose_power()
    assert _opened(disk).stored.hard.commit == 1
