"""VACUUM of Delta tables whose checkpoints have forgotten what was removed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.errors import ObjectCorruptError
from tiering.read.lake import Lake
from tiering.table.delta_library import DeltaLibrary
from tiering.table.delta_log import log_key, removals_since
from tiering.table.delta_maintenance import RETAIN_HOURS_FLOOR, MaintainedTable

_DAY_MS: Final = 24 * 3600 * 1000
_TIMES: Final = ("modificationTime", "deletionTimestamp", "timestamp", "createdTime")


def grow_older(root: Path, *, days: int) -> None:
    """Move a table's whole past back in time: its files, and what its commits say."""
    for path in sorted(root.rglob("*")):
        if path.is_dir():
            continue
        if path.parent.name == "_delta_log" and path.suffix == ".json":
            lines = [_moved(json.loads(line), days) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        then = path.stat().st_mtime - days * _DAY_MS / 1000
        os.utime(path, (then, then))


def _moved(action: dict[str, dict[str, object]], days: int) -> dict[str, dict[str, object]]:
    for body in action.values():
        for name in _TIMES:
            if isinstance(at := body.get(name), int):
                body[name] = at - days * _DAY_MS
    return action


def replaced(root: Path, *, days_ago: int, rows: int = 4) -> int:
    """Write files that are replaced that long ago, and a checkpoint; return the version before."""
    for number in range(rows):
        write_deltalake(
            root, pa.table({"n": [number], "d": ["a b%/c"]}), mode="append", partition_by=["d"]
        )
    grow_older(root, days=12)
    before = DeltaTable(root).version()
    DeltaTable(root).optimize.compact()
    grow_older(root, days=days_ago)
    write_deltalake(root, pa.table({"n": [rows], "d": ["a b%/c"]}), mode="append")
    DeltaTable(root).create_checkpoint()
    return before


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def rows_of(root: Path, version: int) -> list[int]:
    """Read one version whole."""
    rows = DeltaTable(root, version=version).to_pyarrow_table()
    return sorted(rows.column("n").to_pylist())


def test_files_of_a_version_in_the_retention_stay(tmp_path: Path) -> None:
    """A version of the hours stays whole although a checkpoint forgot its files; strays go."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    stray = root / "d=a b" / "stray.parquet"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"never committed")
    os.utime(stray, (1, 1))
    table = MaintainedTable(Lake.open(root).store)

    would = table.vacuum(retain_hours=10 * 24, dry_run=True)
    done = table.vacuum(retain_hours=10 * 24, dry_run=False)

    assert would.paths == done.paths == ("d=a b/stray.parquet",)
    assert rows_of(root, before) == [0, 1, 2, 3]
    assert rows_of(root, before + 2) == [0, 1, 2, 3, 4]
    assert len(table.vacuum(retain_hours=RETAIN_HOURS_FLOOR, dry_run=False).paths) == 4
    with pytest.raises(FileNotFoundError):
        rows_of(root, before)
    assert rows_of(root, before + 2) == [0, 1, 2, 3, 4]


def test_a_short_duration_of_the_table_forgets_nothing(tmp_path: Path) -> None:
    """A table may say that checkpoints forget removals after an hour; the hours asked for count."""
    root = tmp_path / "t"
    write_deltalake(
        root,
        pa.table({"n": [9], "d": ["x"]}),
        partition_by=["d"],
        configuration={"delta.deletedFileRetentionDuration": "interval 1 hours"},
    )
    before = replaced(root, days_ago=2)
    table = MaintainedTable(Lake.open(root).store)
    assert table.vacuum(retain_hours=3 * 24, dry_run=False).paths == ()
    assert rows_of(root, before) == [0, 1, 2, 3, 9]


def test_a_version_that_nobody_can_open_keeps_nothing(tmp_path: Path) -> None:
    """If the log below a checkpoint was cleaned up, the files of versions before it may go."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    for version in range(before + 1):
        (root / log_key(version)).unlink()
    done = MaintainedTable(Lake.open(root).store).vacuum(retain_hours=10 * 24, dry_run=False)
    assert len(done.paths) == 4
    assert rows_of(root, before + 2) == [0, 1, 2, 3, 4]


def test_of_the_versions_to_keep_only_the_oldest_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a version that can be opened all can be; each look may read the whole log anew."""
    root = tmp_path / "t"
    for number in range(8):
        write_deltalake(
            root, pa.table({"n": [number], "d": [number % 4]}), mode="append", partition_by=["d"]
        )
    grow_older(root, days=12)
    for number in range(4):
        DeltaTable(root).optimize.compact(partition_filters=[("d", "=", str(number))])
    grow_older(root, days=8)
    for version in (8, 11):
        DeltaTable(root, version=version).create_checkpoint()
    for version in range(7):
        (root / log_key(version)).unlink()
    looked: list[int] = []
    opened = DeltaLibrary.opened

    def counted(self: DeltaLibrary, version: int) -> DeltaTable:
        looked.append(version)
        return opened(self, version)

    monkeypatch.setattr(DeltaLibrary, "opened", counted)
    table = MaintainedTable(Lake.open(root).store)
    assert len(table.vacuum(retain_hours=10 * 24, dry_run=False).paths) == 2, "of version 7"
    assert looked == [7, 8]
    assert [rows_of(root, version) for version in (8, 9, 10)] == [list(range(8))] * 3


def test_a_commit_without_a_time_counts_as_late(tmp_path: Path) -> None:
    """Removals are those of commits after the moment, and of commits that state no time."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    store = Lake.open(root).store
    commit = root / log_key(before + 1)
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    (moment_ms,) = (one["commitInfo"]["timestamp"] for one in actions if "commitInfo" in one)
    found = removals_since(store, moment_ms - 1, until_ms=_now_ms())
    assert set(found.values()) == {before + 1}
    assert len(found) == 4
    assert all((root / path).exists() for path in found), "paths are as the store has them"
    assert removals_since(store, moment_ms, until_ms=_now_ms()) == {}
    timeless = [one for one in actions if "commitInfo" not in one]
    commit.write_text("".join(json.dumps(one) + "\n" for one in timeless))
    assert removals_since(store, moment_ms, until_ms=_now_ms()) == found


@pytest.mark.parametrize("days_ago", [25, 20_000])
def test_a_commit_whose_clock_was_wrong_hides_no_removal(tmp_path: Path, days_ago: int) -> None:
    """A later commit that states an earlier time does not end the protection of older versions."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    commit = root / log_key(before + 2)
    lines = [_moved(json.loads(line), days_ago) for line in commit.read_text().splitlines()]
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = MaintainedTable(Lake.open(root).store)
    assert table.vacuum(retain_hours=10 * 24, dry_run=True).paths == ()
    assert table.vacuum(retain_hours=10 * 24, dry_run=False).paths == ()
    assert rows_of(root, before) == [0, 1, 2, 3]


def test_a_removal_with_an_early_time_is_as_late_as_the_commits_before_it(tmp_path: Path) -> None:
    """As in Delta, no commit is earlier than one of the versions below it."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    commit = root / log_key(before + 1)
    lines = [_moved(json.loads(line), 100) for line in commit.read_text().splitlines()]
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = Lake.open(root).store
    earlier = (root / log_key(before)).read_text().splitlines()
    (moment_ms,) = (
        one["commitInfo"]["timestamp"] for one in map(json.loads, earlier) if "commitInfo" in one
    )
    assert len(removals_since(store, moment_ms - 1, until_ms=_now_ms())) == 4
    assert removals_since(store, moment_ms, until_ms=_now_ms()) == {}


def test_a_commit_of_the_future_makes_no_later_removal_late(tmp_path: Path) -> None:
    """Its clock was wrong; else nothing that was removed since would ever be deleted."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    removal = (root / log_key(before + 1)).read_text().splitlines()
    (moment_ms,) = (
        one["commitInfo"]["timestamp"] for one in map(json.loads, removal) if "commitInfo" in one
    )
    commit = root / log_key(before)
    lines = [_moved(json.loads(line), -1000) for line in commit.read_text().splitlines()]
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert removals_since(Lake.open(root).store, moment_ms, until_ms=_now_ms()) == {}


def test_a_commit_that_cannot_be_read_stops_vacuum(tmp_path: Path) -> None:
    """What a damaged commit removed is not known, so nothing is deleted."""
    root = tmp_path / "t"
    before = replaced(root, days_ago=8)
    held = sorted(root.rglob("*.parquet"))
    (root / log_key(before + 1)).write_text("{")
    with pytest.raises(ObjectCorruptError, match="not a valid file"):
        MaintainedTable(Lake.open(root).store).vacuum(retain_hours=10 * 24, dry_run=False)
    assert sorted(root.rglob("*.parquet")) == held
