"""A single broker whose disk lost files: acknowledged records are there, or the loss is named.

Each damage is one file or folder. After it, and after one more record and one more restart, no read
may end early, no time may lead past what is missing, and no offset may be given out twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from broker.errors import CorruptDataError, MetadataCorruptError
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from simkit.brokers.lone_broker import (
    STREAM,
    Killed,
    Running,
    first_offset_after,
    image,
    killed,
    running,
)

Damage = Callable[[Killed], None]


def _folder_gone(at: Killed) -> None:
    shutil.rmtree(at.log)


def _folder_emptied(at: Killed) -> None:
    for one in at.log.iterdir():
        one.unlink()


def _stream_folder_gone(at: Killed) -> None:
    shutil.rmtree(at.log.parent)


def _all_streams_gone(at: Killed) -> None:
    shutil.rmtree(at.folder / "streams")


def _active_and_point_gone(at: Killed) -> None:
    at.segments()[-1].unlink()
    (at.log / "recovery").unlink()


def _active_gone(at: Killed) -> None:
    at.segments()[-1].unlink()


def _active_emptied_point_gone(at: Killed) -> None:
    at.segments()[-1].write_bytes(b"")
    (at.log / "recovery").unlink()


def _active_cut_point_gone(at: Killed) -> None:
    active = at.segments()[-1]
    active.write_bytes(active.read_bytes()[:700])
    (at.log / "recovery").unlink()


def _active_cut(at: Killed) -> None:
    active = at.segments()[-1]
    active.write_bytes(active.read_bytes()[:700])


def _active_cut_at_a_batch(at: Killed) -> None:
    active = at.segments()[-1]
    data = active.read_bytes()
    active.write_bytes(data[: data.index(b"HWRB", data.index(b"HWRB") + 4)])


def _last_sector_zeroed(at: Killed) -> None:
    active = at.segments()[-1]
    data = active.read_bytes()
    end = len(data.rstrip(b"\0"))
    active.write_bytes(data[: end - 500] + bytes(len(data) - end + 500))


def _older_folder(at: Killed) -> None:
    shutil.rmtree(at.log)
    shutil.copytree(at.older_log, at.log)


def _all_segments_gone(at: Killed) -> None:
    for one in at.segments():
        one.unlink()


def _all_segments_and_point_gone(at: Killed) -> None:
    _all_segments_gone(at)
    (at.log / "recovery").unlink()


def _first_segment_gone(at: Killed) -> None:
    at.segments()[0].unlink()


def _first_segment_and_point_gone(at: Killed) -> None:
    at.segments()[0].unlink()
    (at.log / "recovery").unlink()


def _middle_segment_gone(at: Killed) -> None:
    at.segments()[2].unlink()


def _another_partitions_folder(at: Killed) -> None:
    """Replace the log by that of another stream."""
    with running(at.folder.parent / "other") as other:
        other.broker.streams.create(STREAM, StreamConfig(subject="s", segment_bytes_max=4096))
        for number in range(60):
            other.put(b"other%d" % number)
        shutil.rmtree(at.log)
        shutil.copytree(other.log_folder, at.log)


def _twins_folder(at: Killed) -> None:
    """Replace the log by that of a copy, which was written apart up to the same offset."""
    with running(at.older) as twin:
        for number in range(25, 40):
            twin.put(b"twin%d" % number, now_us=1000 * (number + 1))
        shutil.rmtree(at.log)
        shutil.copytree(twin.log_folder, at.log)


LOSSES: Final[tuple[Damage, ...]] = (
    _folder_gone,
    _folder_emptied,
    _stream_folder_gone,
    _all_streams_gone,
    _active_and_point_gone,
    _active_gone,
    _active_emptied_point_gone,
    _active_cut_point_gone,
    _active_cut,
    _active_cut_at_a_batch,
    _last_sector_zeroed,
    _older_folder,
    _all_segments_gone,
    _all_segments_and_point_gone,
    _first_segment_gone,
    _first_segment_and_point_gone,
    _middle_segment_gone,
    _another_partitions_folder,
    _twins_folder,
)


def _assert_named(live: Running, at: Killed) -> None:
    """Check that reads, times and writes meet the loss as a typed error."""
    with pytest.raises(CorruptDataError):
        live.rows()
    _assert_time_is_honest(live, at)
    given = first_offset_after(live)
    assert given is None, f"offset {given} was given out on a damaged log"


def _assert_time_is_honest(live: Running, at: Killed) -> None:
    """Check that a lookup by time gives the right offset or the typed error."""
    partition = live.partition
    for number in (0, 9, 26, 39):
        try:
            found = partition.reads.offset_at(1000 * (number + 1))
        except CorruptDataError:
            continue
        assert found == number, f"time {number} leads to {found}"


@pytest.mark.parametrize("damage", LOSSES)
def test_a_lost_part_of_the_log_has_a_name(tmp_path: Path, at: Killed, damage: Damage) -> None:
    """Reads, lookups by time and writes get the typed error, also after a restart and a kill."""
    damage(at)
    with running(at.folder) as live:
        _assert_named(live, at)
        again = image(at.folder, tmp_path / "again")
    for folder in (at.folder, again):
        with running(folder) as live:
            _assert_named(live, at)


@pytest.mark.parametrize("damage", LOSSES)
def test_a_cut_of_a_lost_end_is_refused_by_name(at: Killed, damage: Damage) -> None:
    """A cut names the end of the records: it is refused, or that end is right."""
    damage(at)
    with running(at.folder) as live, suppress(CorruptDataError):
        cut = live.broker.cuts.take(STREAM, owner="test", ttl_ms=60_000)
        assert (cut.partitions[0].start, cut.partitions[0].hot_end) == (0, 40)


@pytest.mark.parametrize("damage", [_folder_gone, _folder_emptied])
def test_a_folder_without_a_record_is_not_new_either(tmp_path: Path, damage: Damage) -> None:
    """An empty replica's missing folder is noticed, too."""
    at = killed(tmp_path, count=0)
    damage(at)
    with running(at.folder) as live:
        with pytest.raises(CorruptDataError):
            live.broker.cuts.take(STREAM, owner="test", ttl_ms=60_000)
        with pytest.raises(CorruptDataError):
            live.partition.reads.wait_committed(Offset(0), 10)
        assert first_offset_after(live) is None


@pytest.mark.parametrize(
    "name", ["promises", "streams/{}/0/recovery", "streams/{}/0/epochs", "nothing"]
)
def test_what_nobody_needs_may_be_lost(at: Killed, name: str) -> None:
    """The second place itself, or a file that can be rebuilt, costs no record."""
    if name != "nothing":
        (at.folder / name.format(at.uuid)).unlink(missing_ok=True)
    for _ in range(2):
        with running(at.folder) as live:
            assert live.rows()[:40] == at.values
            assert (first_offset_after(live) or 0) >= 40


def test_an_older_copy_of_the_promises_costs_nothing(tmp_path: Path, at: Killed) -> None:
    """Logs that reach further than promised are used, and promised from then on."""
    shutil.copy(at.older / "promises", at.folder / "promises")
    with running(at.folder) as live:
        assert live.rows() == at.values
        after = image(at.folder, tmp_path / "after")
    shutil.rmtree(after / "streams" / at.uuid / "0")
    with running(after) as live, pytest.raises(CorruptDataError):
        live.rows()


def test_the_promises_of_another_folder_are_put_aside(at: Killed) -> None:
    """They do not fit these logs; they are kept under a name that says so."""
    data = bytearray((at.folder / "promises").read_bytes())
    data[9] ^= 1  # of the owner's uuid: the checksum fails
    (at.folder / "promises").write_bytes(data)
    with running(at.folder) as live:
        assert live.rows() == at.values
    assert (at.folder / "promises.aside-0").read_bytes() == data


def test_a_replica_that_was_opened_is_not_new_without_its_promises(at: Killed) -> None:
    """The folder and the promises are gone, but the metadata still names the replica as opened."""
    shutil.rmtree(at.log)
    (at.folder / "promises").unlink()
    with running(at.folder) as live:
        with pytest.raises(CorruptDataError):
            live.broker.cuts.take(STREAM, owner="test", ttl_ms=60_000)
        assert first_offset_after(live) is None


@pytest.mark.parametrize("name", ["raft", "raft/journal"])
@pytest.mark.parametrize("older", [True, False])
def test_older_metadata_are_refused_by_name(tmp_path: Path, name: str, *, older: bool) -> None:
    """An older copy, or none: the broker does not start, and removes no forgotten log."""
    with running(tmp_path / "origin") as live:
        image(live.folder, tmp_path / "older")
        live.broker.streams.create(STREAM, StreamConfig(subject="s"))
        live.put(b"v")
        folder = image(live.folder, tmp_path / "killed")
    target, source = folder / name, tmp_path / "older" / name
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    if older and source.is_dir():
        shutil.copytree(source, target)
    elif older:
        shutil.copy(source, target)
    with pytest.raises(MetadataCorruptError, match="raft"), running(folder):
        pass
    assert list((folder / "streams").glob("*/0/*.log"))


def test_metadata_gone_beside_logs_of_an_older_version_are_refused(at: Killed) -> None:
    """A data folder without promises, whose metadata folder is gone, is not a new one."""
    (at.folder / "promises").unlink()
    shutil.rmtree(at.folder / "raft")
    with pytest.raises(MetadataCorruptError, match="metadata"), running(at.folder):
        pass


def test_one_metadata_command_marks_all_partitions_of_a_stream(tmp_path: Path) -> None:
    """Creating a stream costs one command more, whatever the number of its partitions."""
    with running(tmp_path) as live:
        metadata = live.broker._metadata
        before = metadata.barrier(timeout_ms=60_000)
        live.broker.streams.create(STREAM, StreamConfig(subject="s", partitions=7))
        assert metadata.barrier(timeout_ms=60_000) - before == 2
        rows = metadata.state.partitions[live.broker.streams.get(STREAM).uuid]
        assert [one.opened for one in rows] == [("b1",)] * 7


def test_a_stream_deleted_while_the_broker_was_down_leaves_nothing(tmp_path: Path) -> None:
    """Its folder goes at the next start; the other stream's stays."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, StreamConfig(subject="s"))
        live.put(b"v")
        gone = live.broker.streams.create("gone", StreamConfig(subject="t")).uuid
        image(tmp_path / "streams" / gone, tmp_path.parent / "left")
        live.broker.streams.delete("gone")
    shutil.copytree(tmp_path.parent / "left", tmp_path / "streams" / gone)
    with running(tmp_path) as live:
        assert not (tmp_path / "streams" / gone).exists()
        assert live.rows() == [b"v"]


def _files_in(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("damage", ["older", "snapshot and journal gone", "journal cut"])
def test_older_metadata_beside_promises_of_their_age_are_refused_by_name(
    tmp_path: Path, damage: str
) -> None:
    """Two faults of one restore: newer logs are no leftovers of a deleted stream."""
    with running(tmp_path / "origin") as live:
        live.broker.streams.create("before", StreamConfig(subject="t"))
        image(live.folder, tmp_path / "older")
        live.broker.streams.create(STREAM, StreamConfig(subject="s"))
        live.put(b"v")
        uuid = live.broker.streams.get(STREAM).uuid
        folder = image(live.folder, tmp_path / "killed")
    newest = image(folder / "raft", tmp_path / "newest")
    journal = folder / "raft" / "journal"
    if damage == "older":
        shutil.rmtree(folder / "raft")
        shutil.copytree(tmp_path / "older" / "raft", folder / "raft")
    elif damage == "journal cut":
        older = (tmp_path / "older" / "raft" / "journal").read_bytes().rstrip(b"\0")
        journal.write_bytes(journal.read_bytes()[: len(older) + 9])
    else:
        journal.unlink()
        (folder / "raft" / "snapshot").unlink(missing_ok=True)
    (folder / "promises").unlink()
    if damage != "snapshot and journal gone":
        shutil.copy(tmp_path / "older" / "promises", folder / "promises")
    before = _files_in(folder / "raft")
    for _ in range(2):
        named = uuid if damage == "older" else f"raft/journal|{uuid}"
        with pytest.raises(MetadataCorruptError, match=named), running(folder):
            pass
        assert _files_in(folder / "raft") == before, "nothing is changed"
    shutil.rmtree(folder / "raft")
    newest.rename(folder / "raft")
    with running(folder) as live:
        assert live.rows() == [b"v"]


@pytest.mark.parametrize("with_promises", [True, False])
def test_a_folder_that_the_metadata_does_not_know_is_not_removed(
    at: Killed, *, with_promises: bool
) -> None:
    """It may be all that is left of a stream: it is named until an operator removes it."""
    unknown = at.folder / "streams" / "00000000-0000-4000-8000-000000000000"
    shutil.copytree(at.log.parent, unknown)
    if not with_promises:
        (at.folder / "promises").unlink()
    for _ in range(2):
        with pytest.raises(MetadataCorruptError, match=unknown.name), running(at.folder):
            pass
    unknown.rename(at.folder.parent / "taken away")
    with running(at.folder) as live:
        assert live.rows() == at.values
