"""Reads of an unchanged version are proved by its listing, and long listings are cut in parts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from broker.errors import (
    CorruptDataError,
    ObjectCorruptError,
    ObjectMissingError,
    TableMismatchError,
)
from broker.model.cut import Cut
from broker.model.offsets import Offset
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.lab import TierLab, cut_of
from simkit.tier.source import UUID, make_stream
from tiering.read import certify, listing
from tiering.read.certify import certify_counts
from tiering.read.lake import kept_table
from tiering.read.listing import data_objects
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo
from tiering.table.delta_log import log_key
from tiering.table.table import FILES_PREFIX, TableSnapshot


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A table with five files."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(5, 20)
    lab.ship_all()
    return lab


def root_of(lab: TierLab) -> Path:
    """Return the table's folder."""
    return lab.table.store.config.root


def read(lab: TierLab, version: int = 5) -> TableSnapshot:
    """Open and prove a version as a reader of this process does."""
    table = kept_table(lab.table.uri)
    snapshot = table.snapshot(version)
    certify_counts(snapshot, cut_of(snapshot, lab.stream), table.store)
    return snapshot


# ------------------------------------------------------------------------------ unchanged versions


def test_an_unchanged_version_is_opened_and_compared_once(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second read has the same value, and compares nothing file by file."""
    first = read(lab)
    compared: list[int] = []
    monkeypatch.setattr(certify, "prove_partition", lambda *_: compared.append(1))
    assert read(lab) is first
    assert compared == []
    lab.source.fill(1, 20)
    lab.ship_all()
    assert read(lab) is first  # a later commit is not in the way
    assert read(lab, 6).ranges[0].end == 120
    assert compared == [1, 1]


def exchange(lab: TierLab, snapshot: TableSnapshot) -> None:
    """Write other bytes into an object, of the same length, and set its old times."""
    path = root_of(lab) / snapshot.files[1].path
    before, body = path.stat(), bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def delete(lab: TierLab, snapshot: TableSnapshot) -> None:
    """Delete an object."""
    (root_of(lab) / snapshot.files[1].path).unlink()


def cut_short(lab: TierLab, snapshot: TableSnapshot) -> None:
    """Cut an object short."""
    os.truncate(root_of(lab) / snapshot.files[1].path, snapshot.files[1].size_bytes - 1)


def rewrite_a_commit(lab: TierLab, snapshot: TableSnapshot) -> None:
    """Change the statistics in a commit."""
    del snapshot
    path = root_of(lab) / log_key(3)
    path.write_text(path.read_text().replace('numRecords\\": 20', 'numRecords\\": 21'))


def put_another_table_there(lab: TierLab, snapshot: TableSnapshot) -> None:
    """Replace the table by another with as many versions."""
    del snapshot
    other = TierLab(root_of(lab).parent / "other", stream=replace(lab.stream, created_us=7))
    other.source.fill(5, 10)
    other.ship_all()
    shutil.rmtree(root_of(lab))
    shutil.copytree(root_of(other), root_of(lab))


def prove_again(cut: Cut) -> None:
    """Read the cut once more."""
    table = kept_table(cut.table_uri)
    certify_counts(table.snapshot(cut.table_version), cut, table.store)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (exchange, ObjectCorruptError),
        (delete, ObjectMissingError),
        (cut_short, ObjectCorruptError),
        (rewrite_a_commit, TableMismatchError),
        (put_another_table_there, CorruptDataError),
    ],
)
def test_what_changes_after_a_read_is_found_by_the_next(
    lab: TierLab, change: object, error: type[Exception]
) -> None:
    """In a folder, where any process can write; each read after the change says so."""
    before = read(lab)
    cut = cut_of(before, lab.stream)
    change(lab, before)  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(error):
            prove_again(cut)


def test_another_streams_table_in_the_same_folder_is_read_as_itself(lab: TierLab) -> None:
    """A process that has read a table keeps nothing of it for the next one at its place."""
    read(lab)
    shutil.rmtree(root_of(lab).parent)
    stream = make_stream(uuid="0" * 8 + UUID[8:], partitions=2)
    other = TierLab(Path(lab.lake.uri.removeprefix("file://")), stream=stream)
    other.source.fill(5, 10)
    other.ship_all()
    assert other.table.uri == lab.table.uri
    assert read(other).ranges[0].end == 50


def test_a_wider_read_is_proved_after_a_narrow_one(lab: TierLab) -> None:
    """A read of the first rows has not looked at the later objects."""
    snapshot = lab.table.snapshot()
    whole = cut_of(snapshot, lab.stream)
    narrow = replace(whole, partitions=(replace(whole.partitions[0], until=Offset(20)),))
    certify_counts(snapshot, narrow, lab.table.store)
    exchange(lab, replace(snapshot, files=snapshot.files[2:]))
    certify_counts(snapshot, narrow, lab.table.store)
    with pytest.raises(ObjectCorruptError):
        certify_counts(snapshot, whole, lab.table.store)


def test_files_are_the_same_values_in_later_versions(lab: TierLab) -> None:
    """Only what a commit added is translated; what somebody rewrote is translated anew."""
    table = kept_table(lab.table.uri)
    before = table.snapshot(5)
    lab.source.fill(2, 20)
    lab.ship_all()
    later = table.snapshot(7)
    assert all(one is two for one, two in zip(before.files, later.files, strict=False))
    DeltaTable(str(root_of(lab))).optimize.compact()
    for version in (8, 6, 8, 5):
        assert table.snapshot(version) == lab.lake.table_at(table.uri).snapshot(version)


# ------------------------------------------------------------------------------------ long listings


class Remote(FaultyStore):
    """A folder that calls itself a table in S3; notes each listing, and each object of one."""

    def __init__(self, lab: TierLab) -> None:
        super().__init__(lab.table.store)
        self.began_above: list[str] = []
        self.told: list[str] = []

    @property
    def config(self) -> StoreConfig:
        """Of S3."""
        return StoreConfig.from_env("s3://bucket/table", {})

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See the port."""
        self.began_above.append(start_after)
        for one in super().list(prefix, start_after=start_after):
            self.told.append(one.key)
            yield one


def test_a_long_listing_is_read_in_parts_without_overlap(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files a part; objects of nobody's are in the listing wherever they are."""
    snapshot = lab.table.snapshot()
    for name in ("0", "00000000000000000030-x", "00000000000000000050-x", "9"):
        (root_of(lab) / f"partition=0/{name}.parquet").write_bytes(b"x")
    plain = list(lab.table.store.list(FILES_PREFIX))
    assert len(plain) == 9
    for page, parts in ((1_000, 1), (2, 3), (1, 6)):
        monkeypatch.setattr(listing, "_PAGE", page)
        remote = Remote(lab)
        assert data_objects(snapshot, remote) == plain
        assert len(remote.began_above) == parts
        assert sorted(remote.told) == [one.key for one in plain]
