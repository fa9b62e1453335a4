"""The metadata journal answers only for what is durable, and never takes damage for emptiness."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker.adapters import local_metadata_log
from broker.adapters.disk_files import DiskFiles
from broker.adapters.local_metadata_log import LocalMetadataLog
from broker.core.metadata.commands import CreateStream, DeleteStream, RegisterBroker, encode
from broker.errors import LogFailedError, MetadataCorruptError, UnknownStreamError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from simkit.disk import SimDisk

ME = BrokerId("me")


def _create(number: int) -> bytes:
    stream = Stream(
        name=f"s{number}",
        uuid=StreamUuid(f"00000000-0000-0000-0000-{number:012}"),
        config=StreamConfig(subject=f"s{number}"),
        created_us=number,
        table_name=f"s{number}",
    )
    return encode(CreateStream(stream=stream, leader=ME))


def _filled(root: Path, count: int) -> None:
    files = DiskFiles(root)
    log = LocalMetadataLog(files)
    for number in range(count):
        log.propose(_create(number))
    log.close()
    files.close()


def _names(root: Path) -> list[str]:
    files = DiskFiles(root)
    try:
        return sorted(LocalMetadataLog(files).state.streams)
    finally:
        files.close()


def test_commands_survive_a_restart(tmp_path: Path) -> None:
    """What was answered is there again; a refused command leaves no trace."""
    _filled(tmp_path, 3)
    files = DiskFiles(tmp_path)
    log = LocalMetadataLog(files)
    uuid = StreamUuid("00000000-0000-0000-0000-000000000009")
    with pytest.raises(UnknownStreamError):
        log.propose(encode(DeleteStream(name="nope", expected_uuid=uuid)))
    assert log.propose(encode(RegisterBroker(broker=ME))) == {"broker_epoch": 1}
    log.close()
    files.close()
    assert _names(tmp_path) == ["s0", "s1", "s2"]


@pytest.mark.parametrize("seed", range(20))
def test_what_an_opened_log_shows_survives_a_power_cut(seed: int) -> None:
    """A sync failed and the process ended: whoever opens the journal next has it durable."""
    disk = SimDisk(random.Random(seed))
    log = LocalMetadataLog(disk.files())
    log.propose(_create(0))
    disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        log.propose(_create(1))
    disk.kill()
    shown = sorted(LocalMetadataLog(disk.files()).state.streams)
    disk.lose_power()
    assert sorted(LocalMetadataLog(disk.files()).state.streams) == shown == ["s0", "s1"]


def test_a_snapshot_replaces_a_long_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal stays short, and the state is the same through any number of snapshots."""
    monkeypatch.setattr(local_metadata_log, "_JOURNAL_BYTES_MAX", 2000)
    _filled(tmp_path, 20)
    assert (tmp_path / "metadata" / "snapshot").exists()
    assert (tmp_path / "metadata" / "journal").stat().st_size < 4000
    assert len(_names(tmp_path)) == 20


def test_an_entry_cut_short_was_never_answered(tmp_path: Path) -> None:
    """At every length of the last entry the ones before it stay, and the journal goes on."""
    _filled(tmp_path, 2)
    journal = tmp_path / "metadata" / "journal"
    whole = journal.read_bytes()
    last = len(whole) // 2  # both entries are equally long
    for cut in range(last, len(whole)):
        journal.write_bytes(whole[:cut])
        assert _names(tmp_path) == ["s0"], cut
        assert journal.stat().st_size == last


def test_every_flipped_byte_is_named(tmp_path: Path) -> None:
    """Damage anywhere in a whole journal stops the start; the file is left as it is."""
    _filled(tmp_path, 2)
    journal = tmp_path / "metadata" / "journal"
    whole = journal.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        journal.write_bytes(damaged)
        with pytest.raises(MetadataCorruptError):
            _names(tmp_path)
        assert journal.read_bytes() == damaged


def test_a_missing_or_damaged_snapshot_is_not_emptiness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losing either file of the pair stops the start."""
    monkeypatch.setattr(local_metadata_log, "_JOURNAL_BYTES_MAX", 500)
    _filled(tmp_path, 5)
    snapshot = tmp_path / "metadata" / "snapshot"
    journal = tmp_path / "metadata" / "journal"
    good, kept = snapshot.read_bytes(), journal.read_bytes()
    for bad in (good[:3], good[:-1], good[:20] + b"x" + good[21:]):
        snapshot.write_bytes(bad)
        with pytest.raises(MetadataCorruptError):
            _names(tmp_path)
    snapshot.write_bytes(good)
    journal.unlink()
    with pytest.raises(MetadataCorruptError):
        _names(tmp_path)
    journal.write_bytes(kept)
    assert len(_names(tmp_path)) == 5
