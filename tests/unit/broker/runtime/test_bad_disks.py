"""A bad replica affects no other replica, and a broker starts on a full disk."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from broker.adapters.disk.files import DiskFiles
from broker.errors import CorruptDataError, DiskFullError, HeadwaterError
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.runtime.cluster import promise_keeper
from simkit.brokers.lone_broker import STREAM, Killed, Running, running
from simkit.disk.bad_files import BadFiles


class _BadDisk:
    """Wraps the broker's files, so that a test can change the faults."""

    files: BadFiles

    def __init__(self, **faults: object) -> None:
        self._faults = faults

    def __call__(self, files: DiskFiles) -> BadFiles:
        """Return the files with the first faults."""
        self.files = BadFiles(files)
        for name, value in self._faults.items():
            setattr(self.files, name, value)
        return self.files


def _other_stream_works(live: Running) -> None:
    live.broker.streams.create("other", StreamConfig(subject="o"))
    partition = live.broker.partitions.handle("other", 0)
    assert partition.health.failure is None
    assert partition.leads


FILES = ["recovery", "epochs", "first.log", "middle.log", "last.log", "first.index"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suspect", [False, True])
def test_an_unreadable_file_is_one_bad_replica(at: Killed, name: str, *, suspect: bool) -> None:
    """The broker starts, other streams serve; this one's rows are exact or the damage is named."""
    segments = at.segments()
    pick = {"first": segments[0], "middle": segments[2], "last": segments[-1]}
    stem, _, kind = name.partition(".")
    path = pick[stem].with_suffix(f".{kind}").name if kind else name
    if suspect:  # a read met damage before: the next start scans every byte
        (at.log / "suspect").touch()
    with running(at.folder, wrap=_BadDisk(unreadable={path})) as live:
        _other_stream_works(live)
        with suppress(CorruptDataError):
            assert live.rows() == at.values
        for number in (0, 9, 26, 39):
            with suppress(CorruptDataError):
                assert live.partition.reads.offset_at(1000 * (number + 1)) == number
        result = live.put(b"new")
        assert isinstance(result, HeadwaterError) or result.base_offset == 40
    with running(at.folder) as live:  # the sector can be read again: nothing was lost meanwhile
        assert live.rows()[:40] == at.values


def test_a_sector_that_fails_while_it_runs_fails_the_replica_by_name(at: Killed) -> None:
    """The reader gets the damage as a typed error, and further writes are refused."""
    disk = _BadDisk()
    with running(at.folder, wrap=disk) as live:
        disk.files.unreadable.add(at.segments()[0].name)
        with pytest.raises(CorruptDataError, match="cannot be read"):
            live.rows()
        assert isinstance(live.put(b"new"), HeadwaterError)
        _other_stream_works(live)


def test_a_full_disk_is_logged_once_until_there_is_room(at: Killed) -> None:
    """One warning in plain words, and one line when writes are taken again."""
    disk = _BadDisk()
    with capture_logs() as logged, running(at.folder, wrap=disk) as live:
        disk.files.full = True
        refused = [live.put(b"x" * 3000) for _ in range(5)]
        assert isinstance(refused[-1], DiskFullError)
        assert "the broker's disk is full" in refused[-1].message
        disk.files.full = False
        assert not isinstance(live.put(b"x"), HeadwaterError)
    told = [(one["event"], one["log_level"]) for one in logged if "disk_" in one["event"]]
    assert told == [("disk_full", "warning"), ("disk_has_room", "warning")]


def test_what_frees_a_full_disk_is_not_refused_for_another_stream(at: Killed) -> None:
    """The log of a new stream has no room. A purge that was done is not said to have failed."""
    disk = _BadDisk()
    with running(at.folder, wrap=disk) as live:
        disk.files.full = True
        for _ in range(2):
            with pytest.raises(DiskFullError):
                live.broker.streams.create("new", StreamConfig(subject="n"))
        streams = live.broker.streams
        assert streams.alter(STREAM, {"dedup_window_ms": 0}).after.config.dedup_window_ms == 0
        end = live.partition.tier.segments()[1].end_offset
        live.partition.tier.record_cold_end(end)
        assert streams.purge(STREAM, 0, before=end, operator="me").records_count == end
        assert live.partition.reads.log_start == end
        assert streams.delete(STREAM).name == STREAM
        assert [one.name for one in streams.all()] == ["new"]
        disk.files.full = False
        assert streams.create("new", StreamConfig(subject="n")).name == "new"


def test_a_broker_starts_on_a_full_disk_reads_and_frees(at: Killed) -> None:
    """Reads and what tiering asks for work; writes are refused until there is room, then taken."""
    disk = _BadDisk(full=True)
    with running(at.folder, wrap=disk) as live:
        assert live.rows() == at.values
        refused = [live.put(b"x" * 3000) for _ in range(3)]
        assert any(isinstance(one, DiskFullError) for one in refused), refused
        sealed = [one for one in live.partition.tier.segments() if one.sealed]
        # A metadata command on a full disk.
        live.partition.tier.record_cold_end(sealed[1].end_offset)
        assert live.partition.tier.cold_end == sealed[1].end_offset
        live.partition._queue.call(
            lambda: live.partition._local.log.free([one.base_offset for one in sealed[:2]])
        )
        assert live.partition.reads.log_start == sealed[1].end_offset
        disk.files.full = False
        end = live.partition.reads.log_end
        assert live.put(b"room").base_offset == end


def test_a_torn_roll_on_a_full_disk_is_completed_by_the_first_write(at: Killed) -> None:
    """The next segment could not be made. The log is readable, and the first write completes it."""
    point = (at.log / "recovery").read_bytes()
    with running(at.folder) as live:
        live.partition.tier.seal_active()
    at.segments()[-1].unlink()  # the empty next segment, whose name was not durable
    (at.log / "recovery").write_bytes(point)  # the recovery point moves after the roll
    disk = _BadDisk(full=True)
    with running(at.folder, wrap=disk) as live:
        assert live.rows() == at.values
        assert isinstance(live.put(b"x"), DiskFullError)
        disk.files.full = False
        assert live.put(b"x").base_offset == 40
        assert live.partition.reads.offset_at(1) == Offset(0)


def test_a_data_folder_without_promises_opens_on_a_full_disk(at: Killed) -> None:
    """There is no room for the promises: records are read, and writes are refused."""
    (at.folder / "promises").unlink()
    with running(at.folder, wrap=_BadDisk(full=True)) as live:
        assert live.rows() == at.values
        assert isinstance(live.put(b"x"), DiskFullError)


def test_a_promise_that_cannot_be_written_stops_nothing(
    at: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on btrfs, ZFS or over a quota: a stream is made, written and deleted once there is room.

    While there is none, the start, reads and the deletion from the metadata work.
    """
    monkeypatch.setattr(promise_keeper, "_EVERY_MS", 3_600_000)  # it would try by itself, and log
    disk = _BadDisk(unwritable={"promises": errno.EDQUOT})
    with capture_logs() as logged, running(at.folder, wrap=disk) as live:
        assert live.rows() == at.values
        assert live.broker.streams.delete(STREAM).name == STREAM
        assert at.uuid in {one.stream_uuid for one in live.broker._promises.replicas()}
        disk.files.unwritable.clear()
        live.broker._open_what_waits()
        assert not at.log.exists()
        assert live.broker._promises.replicas() == []
        _other_stream_works(live)
    assert [one["event"] for one in logged if one["log_level"] != "info"] == ["log_not_removed"]
    with running(at.folder) as live:
        assert [one.name for one in live.broker.streams.all()] == ["other"]


def test_a_stream_without_room_for_its_log_is_opened_once_there_is(at: Killed) -> None:
    """The error is that the disk is full, not that another broker leads. Other streams are read."""
    disk = _BadDisk(full=True)
    with running(at.folder, wrap=disk) as live:
        with pytest.raises(DiskFullError):
            live.broker.streams.create("new", StreamConfig(subject="n"))
        with pytest.raises(DiskFullError):
            live.broker.partitions.handle("new", 0)
        assert live.rows() == at.values
        disk.files.full = False
        live.broker._open_what_waits()
        assert live.broker.partitions.handle("new", 0).leads
