"""The metadata of a single broker: a Raft group of one, without another copy."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.codec.disk.raft_log_format import (
    META_SLOT_SIZE,
    META_SLOT_STRIDE,
    decode_meta,
    encode_meta,
)
from broker.core.metadata.commands import CreateStream, DropLease, RegisterBroker
from broker.errors import (
    InvalidConfigError,
    LogFailedError,
    MetadataCorruptError,
    StreamExistsError,
)
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.raft import Entry, EntryKind, NodeId
from broker.model.stream import Stream, StreamConfig
from broker.ports.system import File
from broker.runtime.ingest.sessions import ALONE, begin_session, note_alone, take_clean_stop
from broker.runtime.metadata import lone
from broker.runtime.metadata.lone import open_alone, open_lone_journal
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal import RaftJournal
from simkit.brokers.brokers import disk_broker
from simkit.brokers.lone_broker import OWNER, STREAM, Running
from simkit.disk.bad_files import BadFiles
from simkit.disk.disk import PowerLostError, SimDisk

ME: Final = BrokerId("b1")


class FailingFiles:
    """A real folder, in which syncs below one name fail while :attr:`failing` is set."""

    def __init__(self, files: DiskFiles) -> None:
        self._files = files
        self.failing = ""

    def open(self, path: str, *, create: bool = False) -> Any:
        """Open."""
        return _FailingFile(self._files.open(path, create=create), path, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _FailingFile:
    def __init__(self, file: File, path: str, files: FailingFiles) -> None:
        self._file, self._path, self._files = file, path, files

    def datasync(self) -> None:
        if self._files.failing and self._path.startswith(self._files.failing):
            raise OSError(errno.EIO, "simulated: the device did not confirm", self._path)
        self._file.datasync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _create(number: int, *, partitions: int = 1) -> CreateStream:
    stream = Stream(
        name=f"s{number}",
        uuid=StreamUuid(f"00000000-0000-4000-8000-{number:012}"),
        config=StreamConfig(subject=f"s{number}", partitions=partitions),
        created_us=number,
        table_name=f"s{number}",
    )
    return CreateStream(stream=stream, leader=ME)


@contextmanager
def _log(root: Path, **settings: Any) -> Iterator[RaftMetadataLog]:
    files = DiskFiles(root)
    promises = Promises(files, OWNER)
    crashes: list[BaseException] = []
    try:
        log = open_alone(
            files,
            cluster="c",
            me=ME,
            clock=SystemClock(),
            on_crash=crashes.append,
            promises=promises,
            **settings,
        )
        yield log
        log.close()
    finally:
        promises.close()
        files.close()
    assert not crashes


def test_what_was_answered_is_there_when_the_log_is_opened_again(tmp_path: Path) -> None:
    """The state is there at once, without an election timeout and without a barrier."""
    with _log(tmp_path) as log:
        for number in range(3):
            log.propose(_create(number))
        with pytest.raises(StreamExistsError):
            log.propose(_create(1, partitions=2))
    for _ in range(2):
        with _log(tmp_path) as log:
            assert log.office is not None, "it leads already"
            assert sorted(log.state.streams) == ["s0", "s1", "s2"]


@pytest.mark.parametrize("end", ["kill", "lose_power"])
def test_a_first_start_may_end_at_any_disk_operation(end: str) -> None:
    """The next one begins, and never takes a folder that is half made for one that was lost."""
    steps = 0
    while True:
        disk = SimDisk(random.Random(steps))
        files = disk.files()
        disk.stop_after = steps
        try:
            _journal(files).save(entries=[Entry(1, 1, EntryKind.NOOP, 0, 0, b"")])
        except PowerLostError:
            getattr(disk, end)()
        else:
            break
        assert len(_journal(disk.files()).stored.log.entries) in {0, 1}
        steps += 1
    assert steps > 20, "the operations were counted"


def _journal(files: Any) -> RaftJournal:
    return open_lone_journal(files, cluster="c", me=NodeId(ME), promises=Promises(files, OWNER))


@pytest.mark.parametrize("kept", ["promises", "controllers.json", "streams", "sessions"])
def test_a_lost_folder_is_not_a_new_one(tmp_path: Path, kept: str) -> None:
    """Any one of the places that mention the folder is enough to refuse; no new folder is made."""
    with disk_broker(tmp_path, owner=OWNER) as broker:
        if kept == "streams":
            broker.streams.create(STREAM, StreamConfig(subject="s"))
    _remove(tmp_path / "raft")
    for name in {"promises", "controllers.json"} - {kept}:
        (tmp_path / name).unlink()
    if kept == "sessions":  # without any mention the broker was never in use: it is new
        with _log(tmp_path) as log:
            assert not log.state.streams
        return
    for _ in range(2):
        with pytest.raises(MetadataCorruptError, match="raft"), _log(tmp_path):
            pass
        assert not (tmp_path / "raft").exists()


def test_a_journal_that_lost_its_end_is_left_as_it_is(tmp_path: Path) -> None:
    """By the promises a lost end is told from a torn one before anything is truncated."""
    with _log(tmp_path) as log:
        log.propose(_create(1))
        log.propose(_create(2))
    journal = tmp_path / "raft" / "journal"
    whole = journal.read_bytes()
    used = len(whole.rstrip(b"\0"))
    (tmp_path / "raft" / "meta").write_bytes(_fresh_meta(tmp_path))
    for cut in (used - 9, used - 600):
        damaged = whole[:cut] + bytes(len(whole) - cut)
        journal.write_bytes(damaged)
        with pytest.raises(MetadataCorruptError, match="raft"), _log(tmp_path):
            pass
        assert journal.read_bytes() == damaged
    journal.write_bytes(whole)
    with _log(tmp_path) as log:
        assert sorted(log.state.streams) == ["s1", "s2"]


def _fresh_meta(root: Path) -> bytes:
    """Return the slots as they were before a checkpoint noted the journal's end."""
    data = (root / "raft" / "meta").read_bytes()
    slot = decode_meta(data[:META_SLOT_SIZE])
    older = encode_meta(replace(slot, synced=1, hard=replace(slot.hard, commit=0)))
    return b"".join(
        older + data[at + META_SLOT_SIZE : at + META_SLOT_STRIDE] for at in (0, META_SLOT_STRIDE)
    )


def test_a_broker_alone_leaves_the_proof_of_its_folder(tmp_path: Path) -> None:
    """With it the broker keeps its records when it joins a cluster; a clean stop counts once."""
    note = tmp_path / "clean_stop.json"
    for _ in range(2):
        with disk_broker(tmp_path, owner=OWNER):
            assert not note.exists(), "believed once"
        assert note.exists()
    files = DiskFiles(tmp_path)
    assert take_clean_stop(files) == ALONE
    assert begin_session(files)[1] == (ALONE,)
    note_alone(files)
    assert begin_session(files)[1][-1:] == (ALONE,), "and again after a try as one of several"
    files.close()


def test_a_full_disk_takes_commands_for_a_while_and_makes_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that free disk space need the remaining room, so no snapshot is made."""
    monkeypatch.setattr(lone, "_JOURNAL_BYTES_MAX", 40_000)
    disks: list[BadFiles] = []

    def wrapped(files: DiskFiles) -> Any:
        disks.append(BadFiles(files))
        return disks[0]

    with disk_broker(tmp_path, wrap=wrapped, owner=OWNER) as broker:
        broker.streams.create(STREAM, StreamConfig(subject="s"))
        disks[0].full = True
        for _ in range(1_500):
            broker._metadata.propose(DropLease(lease_id=LeaseId("none")))
        assert (tmp_path / "raft" / "journal").stat().st_size > 100_000
        assert not (tmp_path / "raft" / "snapshot").exists()
    with disk_broker(tmp_path, owner=OWNER) as broker:
        broker._metadata.propose(DropLease(lease_id=LeaseId("none")))
        assert (tmp_path / "raft" / "snapshot").exists()


def _remove(folder: Path) -> None:
    for one in folder.iterdir():
        one.unlink()
    folder.rmdir()


def test_the_folder_of_a_broker_of_a_cluster_is_refused(tmp_path: Path) -> None:
    """It could lead partitions of others. It is refused even if no other broker was registered."""
    with _log(tmp_path) as log:
        log.propose(RegisterBroker(broker=ME, session="s", known_sessions=("",)))
    files = DiskFiles(tmp_path)
    session, _ = begin_session(files)
    files.close()
    with pytest.raises(InvalidConfigError, match="belongs to a broker of"), _log(tmp_path):
        pass
    files = DiskFiles(tmp_path)
    assert begin_session(files)[1][-1] == session, "its proof of a clean stop is as it was"
    files.close()


def test_a_disk_that_fails_ends_the_metadata_and_no_reads(tmp_path: Path) -> None:
    """Reads go on, because no other broker has the records; metadata commands are refused."""
    disks: list[FailingFiles] = []

    def wrapped(files: DiskFiles) -> Any:
        disks.append(FailingFiles(files))
        return disks[0]

    logs: list[RaftMetadataLog] = []

    def watched(log: RaftMetadataLog) -> RaftMetadataLog:
        logs.append(log)
        return log

    with disk_broker(tmp_path, wrap=wrapped, watched=watched, owner=OWNER) as broker:
        live = Running(broker, tmp_path)
        broker.streams.create(STREAM, StreamConfig(subject="s"))
        live.put(b"v")
        disks[0].failing = "raft/"
        for _ in range(2):
            with pytest.raises(LogFailedError):
                broker.cuts.take_lease(STREAM, owner="reader", ttl_ms=60_000)
        assert live.rows() == [b"v"]
        failure = logs[0].failure
        assert isinstance(failure, LogFailedError), "readiness has the failure"
        assert live.put(b"w").base_offset == 1, "the log is on a disk that works"
    with disk_broker(tmp_path, owner=OWNER) as broker:
        assert Running(broker, tmp_path).rows() == [b"v", b"w"]
