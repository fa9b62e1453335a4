"""The metadata journal answers only for what is durable, and never takes damage for emptiness."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path

import pytest

from broker.adapters.disk import metadata_log as local_metadata_log
from broker.adapters.disk.files import DiskFiles
from broker.adapters.disk.metadata_log import LocalMetadataLog
from broker.core.metadata.commands import CreateStream, DeleteStream, RegisterBroker, encode
from broker.core.metadata.size import STATE_WEIGHT_MAX
from broker.errors import (
    LogFailedError,
    MetadataCorruptError,
    MetadataFullError,
    UnknownStreamError,
)
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import PARTITIONS_MAX, Stream, StreamConfig
from simkit.disk.disk import SimDisk

ME = BrokerId("me")


def _stream(number: int, *, partitions: int = 1) -> Stream:
    return Stream(
        name=f"s{number}",
        uuid=StreamUuid(f"00000000-0000-0000-0000-{number:012}"),
        config=StreamConfig(subject=f"s{number}", partitions=partitions),
        created_us=number,
        table_name=f"s{number}",
    )


def _create(number: int) -> bytes:
    return encode(CreateStream(stream=_stream(number), leader=ME))


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


def test_a_log_that_is_full_refuses_by_name_and_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the limit, by streams of many partitions; a snapshot is made on the way."""
    monkeypatch.setattr(local_metadata_log, "_JOURNAL_BYTES_MAX", 8_000)
    files = DiskFiles(tmp_path)
    log = LocalMetadataLog(files)

    def create(number: int) -> bool:
        wide = _stream(number, partitions=PARTITIONS_MAX)
        command = CreateStream(stream=wide, leader=ME, weight_max=STATE_WEIGHT_MAX)
        with contextlib.suppress(MetadataFullError):
            log.propose(encode(command))
            return True
        return False

    created = sum(itertools.takewhile(bool, map(create, range(1_000))))
    log.close()
    files.close()
    assert 20 < created < 1_000
    assert (tmp_path / "metadata" / "snapshot").exists()
    assert len(_names(tmp_path)) == created
