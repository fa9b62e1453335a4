"""A copy of a table's log is the log, fetched once; what it cannot stand for is not copied."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import ObjectCorruptError
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.lab import TierLab, cut_of
from tiering.read.certify import certify_counts
from tiering.store.location import StoreConfig
from tiering.table.delta_log import log_key
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.log_copy import fetch_log
from tiering.table.table import TableSnapshot

_ELSEWHERE = StoreConfig.from_env("s3://bucket/table", {})


class Remote(FaultyStore):
    """A folder that calls itself a table in S3, and notes what is fetched."""

    def __init__(self, lab: TierLab) -> None:
        super().__init__(lab.table.store)
        self.fetched: Counter[str] = Counter()

    @property
    def config(self) -> StoreConfig:
        """Of S3."""
        return _ELSEWHERE

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """See the port."""
        self.fetched[key] += 1
        return super().get(key, start, end)

    def of_the_log(self) -> dict[str, int]:
        """Return how often each file of the log was fetched."""
        return {key: n for key, n in self.fetched.items() if key.startswith("_delta_log/")}


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A table with four versions."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(3, 20)
    lab.ship_all()
    return lab


def folder_of(lab: TierLab) -> Path:
    """Return the folder of the table's log."""
    return lab.table.store.config.root / "_delta_log"


def opened(remote: Remote, version: int) -> tuple[TableSnapshot, DeltaStreamTable]:
    """Open a version from a copy of its log."""
    copy = fetch_log(remote, version)
    assert copy is not None
    table = DeltaStreamTable(copy, log_copy=copy.folder)
    return table.snapshot(version), table


def test_a_version_is_opened_and_proved_with_one_request_for_each_commit(lab: TierLab) -> None:
    """And it is the version that is opened without a copy, an older one too."""
    newest = lab.table.snapshot()
    for version in (newest.version, 2):
        remote = Remote(lab)
        plain = lab.table.snapshot(version)
        found, table = opened(remote, version)
        assert replace(found, uri=plain.uri) == plain

        cut = cut_of(found, lab.stream)
        certificates, _, _ = certify_counts(found, cut, table.store)
        assert [one.cold_count for one in certificates] == [plain.ranges[0].end]
        assert remote.of_the_log() == {log_key(number): 1 for number in range(version + 1)}
        assert remote.calls["list"] == 3  # the log, the data files, the stored proofs


def test_a_copy_begins_at_the_newest_checkpoint(lab: TierLab) -> None:
    """Commits below it may be gone; the checkpoint of a later version is another one's."""
    lab.table.checkpoint()
    base = lab.table.snapshot().version
    lab.source.fill(2, 20)
    newest = lab.ship_all()
    for number in range(base):
        (folder_of(lab) / f"{number:020}.json").unlink()
    for version in (base, base + 1, newest.version):
        remote = Remote(lab)
        found, _ = opened(remote, version)
        assert found.files == lab.table.snapshot(version).files
        first = base if version == base else base + 1
        commits = {log_key(number): 1 for number in range(first, version + 1)}
        assert remote.of_the_log() == {
            f"_delta_log/{base:020}.checkpoint.parquet": 1,
            **commits,
        }


def test_a_damaged_commit_is_found_in_the_copy_as_in_the_log(lab: TierLab) -> None:
    """The error names the table, not the copy."""
    (folder_of(lab) / "00000000000000000002.json").write_text('{"add": ')
    copy = fetch_log(Remote(lab), 3)
    assert copy is not None
    with pytest.raises(ObjectCorruptError, match="s3://bucket/table"):
        DeltaStreamTable(copy, log_copy=copy.folder).snapshot(3)
    with pytest.raises(ObjectCorruptError):
        lab.table.snapshot(3)


def test_what_a_copy_cannot_stand_for_is_not_copied(lab: TierLab) -> None:
    """A folder, a log with a gap, a version that is not there, checkpoints of several files."""
    log = folder_of(lab)
    assert fetch_log(lab.table.store, 3) is None
    assert fetch_log(Remote(lab), 9) is None
    sidecar = log / "_sidecars" / "x.parquet"
    parts = log / "00000000000000000003.checkpoint.0000000001.0000000002.parquet"
    for odd in (sidecar, parts):
        odd.parent.mkdir(exist_ok=True)
        odd.write_bytes(b"x")
        assert fetch_log(Remote(lab), 3) is None
        odd.unlink()
    assert fetch_log(Remote(lab), 3) is not None
    (log / "00000000000000000001.json").unlink()
    assert fetch_log(Remote(lab), 3) is None
