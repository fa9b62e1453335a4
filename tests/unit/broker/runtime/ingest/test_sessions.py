"""Sessions: the proof that a folder is the one last in use."""

from __future__ import annotations

import random

import pytest

from broker.errors import MetadataCorruptError
from broker.runtime.ingest.sessions import (
    ALONE,
    begin_session,
    note_alone,
    note_clean_stop,
    take_clean_stop,
)
from simkit.disk.disk import SimDisk


def test_a_session_is_durable_before_anybody_hears_of_it() -> None:
    """The next process of the folder knows it, also after a power loss."""
    disk = SimDisk(random.Random(1))
    first, before = begin_session(disk.files())
    assert before == ()
    disk.lose_power()
    second, known = begin_session(disk.files())
    assert known == (first,)
    assert second != first


def test_only_the_newest_are_kept() -> None:
    """The file stays small however often a broker starts."""
    disk = SimDisk(random.Random(1))
    drawn = [begin_session(disk.files())[0] for _ in range(40)]
    assert begin_session(disk.files())[1] == tuple(drawn[-16:])


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_file_is_never_taken_for_none(damage: str) -> None:
    """Without its session the broker would leave every ISR, which an operator has to decide."""
    disk = SimDisk(random.Random(1))
    begin_session(disk.files())
    if damage == "flipped":
        disk.flip_bit("sessions.json", 30, 1)
    else:
        disk.cut("sessions.json", 20)
    with pytest.raises(MetadataCorruptError):
        begin_session(disk.files())


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_broker_alone_keeps_a_damaged_file_aside(damage: str) -> None:
    """A single broker needs none of the file's sessions; the new file says that it is alone."""
    disk = SimDisk(random.Random(1))
    note_alone(disk.files())
    if damage == "flipped":
        disk.flip_bit("sessions.json", 8, 1)
    else:
        disk.cut("sessions.json", 10)
    damaged = disk.peek("sessions.json")
    note_alone(disk.files())
    assert disk.peek("sessions.json.aside-0") == damaged
    disk.lose_power()
    assert begin_session(disk.files())[1] == (ALONE,)


def test_a_clean_stop_is_durable_and_believed_once() -> None:
    """The note survives a power loss. The next process reads it and removes it durably."""
    disk = SimDisk(random.Random(1))
    session, _ = begin_session(disk.files())
    assert take_clean_stop(disk.files()) is None
    note_clean_stop(disk.files(), session)
    disk.lose_power()
    assert take_clean_stop(disk.files()) == session
    disk.lose_power()
    assert take_clean_stop(disk.files()) is None


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_note_of_a_clean_stop_is_not_believed(damage: str) -> None:
    """The folder then counts as that of a killed process, and the note is removed."""
    disk = SimDisk(random.Random(1))
    note_clean_stop(disk.files(), "a session")
    if damage == "flipped":
        disk.flip_bit("clean_stop.json", 30, 1)
    else:
        disk.cut("clean_stop.json", 20)
    assert take_clean_stop(disk.files()) is None
    assert not disk.files().exists("clean_stop.json")
