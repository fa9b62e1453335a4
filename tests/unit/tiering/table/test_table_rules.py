"""The promises of a table's commit, and the tables that are refused: one rule at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from broker.errors import (
    FilesReplacedError,
    RemoteTierUnavailableError,
    StaleColdEndError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.lab import CLUSTER, TierLab
from tiering.table.delta_log import log_key
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.table import KIND_PROPERTY, TableSnapshot


class Rig:
    """A table, with a record of the keys that its store was asked to sync."""

    def __init__(self, lab: TierLab) -> None:
        self.lab = lab
        self.durable: list[str] = []

    @property
    def root(self) -> Path:
        """The table's folder."""
        root: Path = self.lab.table.store.config.root
        return root

    def another(self) -> DeltaStreamTable:
        """Return the table as another process has it."""
        return self.lab.lake.table(self.lab.stream)

    def commit(
        self, start: int, end: int, *, base: TableSnapshot | None = None,
        table: DeltaStreamTable | None = None,
    ) -> int:  # fmt: skip
        """Move the cold end, without a file."""
        table = table or self.lab.table
        return table.commit(
            base or table.snapshot(),
            [],
            {0: OffsetRange(Offset(start), Offset(end))},
            commit_id=f"{start}-{end}",
            ranges_json="[]",
        )

    def edit(self, version: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Change each action of a commit file in place."""
        path = self.root / log_key(version)
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            change(action)
        path.write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a recorded store without a table."""
    rig = Rig(TierLab(tmp_path / "lake"))
    sync = FaultyStore.make_durable

    def make_durable(self: FaultyStore, keys: Sequence[str]) -> None:
        sync(self, keys)
        rig.durable += keys

    monkeypatch.setattr(FaultyStore, "make_durable", make_durable)
    return rig


# ------------------------------------------------------------------------------ commits


def test_what_is_told_as_committed_is_durable(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table itself, a commit, and one whose answer was lost."""
    rig.lab.table.create()
    assert rig.durable == [log_key(0)]
    rig.commit(0, 20)
    assert rig.durable[1:] == [log_key(1)]
    write = DeltaTable.create_write_transaction

    def lossy(self: DeltaTable, *args: object, **kwargs: object) -> None:
        write(self, *args, **kwargs)  # type: ignore[arg-type]
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        raise CommitFailedError("412")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lossy)
    assert rig.commit(20, 40) == 2
    assert rig.durable[2:] == [log_key(2)]


def test_a_log_that_loses_a_commit_of_this_process_is_refused(rig: Rig) -> None:
    """A process knows of the commits that it wrote, even if it has not read them again."""
    base = rig.lab.table.create()
    rig.commit(0, 20, base=base)
    (rig.root / log_key(1)).unlink()
    with pytest.raises(TableRolledBackError):
        rig.lab.table.find()
    with pytest.raises(TableRolledBackError):
        rig.commit(0, 20, base=base)


def test_a_commit_begins_where_the_table_ends(rig: Rig) -> None:
    """A commit above or below the cold end is refused, also if another process has moved it."""
    base = rig.lab.table.create()
    rig.commit(0, 20, base=base, table=rig.another())
    for start in (0, 19, 21, 30):
        with pytest.raises(StaleColdEndError) as caught:
            rig.commit(start, 40, base=base if start == 0 else None)
        assert caught.value.found == 20
    assert rig.commit(20, 40) == 2


def test_nothing_is_committed_on_top_of_a_foreign_change(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other software writes rows between our check and our commit."""
    base = rig.lab.table.create()
    write = DeltaTable.create_write_transaction

    def raced(self: DeltaTable, *args: object, **kwargs: object) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        add = {
            "path": "partition=0/x.parquet", "size": 1, "partitionValues": {"partition": "0"},
            "modificationTime": 1, "dataChange": True,
        }  # fmt: skip
        body = [{"add": add}, {"commitInfo": {"operation": "WRITE", "engineInfo": "other"}}]
        (rig.root / log_key(1)).write_text("\n".join(map(json.dumps, body)))
        raise CommitFailedError("412")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", raced)
    with pytest.raises(TableMismatchError, match="WRITE by engineInfo other"):
        rig.commit(0, 20, base=base)


def test_after_a_look_that_failed_no_older_answer_is_given(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that waited for a failed load loads the table itself."""
    table = rig.lab.table
    table.create()
    assert table.cold_ends() == {0: 0}
    rig.commit(0, 20, table=rig.another())
    newest = table._library.newest

    def failing() -> object:
        monkeypatch.setattr(table._library, "newest", newest)
        raise RemoteTierUnavailableError("503")

    monkeypatch.setattr(table._library, "newest", failing)
    with pytest.raises(RemoteTierUnavailableError):
        table.cold_ends()
    assert table._cold_ends is None
    assert table.cold_ends() == {0: 20}


# ------------------------------------------------------------------------------ replacements


def test_files_are_replaced_only_where_everything_is_as_it_was_planned(rig: Rig) -> None:
    """The files are still there, and the ranges of the partitions that move are the same."""
    rig.lab.source.fill(2, 20)
    planned = rig.lab.ship_all()
    file = planned.files[0]

    def expire(removed: Sequence[Any]) -> int:
        return rig.lab.table.replace_files(
            planned, removed=removed, added=(), data_change=True, commit_id="expire",
            moves={0: OffsetRange(Offset(20), Offset(40))},
        )  # fmt: skip

    with pytest.raises(FilesReplacedError, match="not in"):
        expire([replace(file, path="partition=0/other.parquet")])
    with pytest.raises(FilesReplacedError, match="not in"):
        expire([file, replace(file, path="partition=0/other.parquet")])
    rig.lab.source.fill(1, 20)
    rig.lab.ship_all(rig.lab.shipper(table=rig.another()))
    with pytest.raises(StaleColdEndError) as caught:
        expire([file])  # what was planned would move the cold end back
    assert (caught.value.expected, caught.value.found) == (40, 60)
    now = rig.lab.table.snapshot()
    assert len(now.files) == 3


# ------------------------------------------------------------------------------ whose it is


def _set(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"][key] = value

    return change


def _add(**values: object) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"].update(values)

    return change


@pytest.mark.parametrize(
    ("version", "change", "words"),
    [
        (0, _set("headwater.cluster", "twin"), "belongs to stream"),
        (0, _set("headwater.format_version", "2"), "has table format"),
        (0, _set(KIND_PROPERTY, "latest"), "is a table of kind"),
        (0, _set("headwater.stream_json", "{}"), "not a table of Headwater"),
        (
            1,
            _add(path="partition=1/x", partitionValues={"partition": "1"}),
            "belongs to no partition",
        ),
        (1, _add(path="s3://other/partition=0/x"), "belongs to no partition"),
    ],
)
def test_what_is_not_exactly_ours_is_neither_read_nor_written(
    rig: Rig, version: int, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    """Cluster, format, kind, owner; files of other partitions or places."""
    rig.lab.source.fill(1, 20)
    rig.lab.ship_all()
    rig.edit(version, change)
    table = rig.another()
    for ask in (table.find, table.create, table.snapshot):
        with pytest.raises(TableMismatchError, match=words):
            ask()
    assert rig.lab.lake.cluster == CLUSTER
