"""A purge of a table beside others: another purge, a new stream, a job's table, hidden files."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import TableMismatchError
from broker.model.ids import StreamUuid
from simkit.tier.lab import TierLab
from tiering.purge import purger as purger_module
from tiering.purge.owner import MARK_KEY, TableOwner, put_mark
from tiering.purge.purger import TablePurger
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore, ObjectStore
from tiering.store.opening import open_store

NEW = StreamUuid(str(uuid.uuid4()))
CLAIM = b'{"v": 1, "stream_uuid": "%s"}' % NEW.encode()
CLAIM_KEY = "_headwater/lineage/0/00000000000000000001.json"


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A shipped table."""
    found = TierLab(tmp_path / "lake")
    found.source.fill(4, 20)
    found.ship_all()
    return found


def _owner(lab: TierLab) -> TableOwner:
    return TableOwner(stream_uuid=lab.stream.uuid, stream=lab.stream.name)


def _run(lab: TierLab, **hooks: Any) -> Any:
    calm = {"ask": lambda: (), "pause": lambda _: None, "told": lambda _: None}
    purger = TablePurger(StoreConfig.from_env(lab.table.uri))
    return purger.run(_owner(lab), **{**calm, **hooks})


def _put(store: ObjectStore, key: str, body: bytes = b"x") -> None:
    assert store.put_if_absent(key, body, crc32c=crc32c(body)) is not None


def _folder(lab: TierLab) -> ErasableStore:
    return open_store(lab.table.store.config)


def _keys(lab: TierLab) -> list[str]:
    return [info.key for info in _folder(lab).list("")]


@pytest.mark.parametrize("shipped", [True, False])
def test_a_purge_that_wakes_after_another_ended_deletes_nothing_of_a_new_stream(
    lab: TierLab, *, shipped: bool
) -> None:
    """The other purge erased the mark; the folder was free, and the new stream has it."""
    new = [CLAIM_KEY, "partition=0/new.parquet"] if shipped else []

    def pause(_: float) -> None:
        assert _run(lab).sure
        for key in new:
            _put(_folder(lab), key, CLAIM)

    with pytest.raises(TableMismatchError, match="another purge ended here"):
        _run(lab, pause=pause)
    assert _keys(lab) == new


def test_a_new_stream_that_comes_between_two_pages_keeps_its_objects(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page of deletions looks anew whose the folder is."""
    monkeypatch.setattr(purger_module, "_PAGE", 1)

    def told(_: int) -> None:
        if CLAIM_KEY not in _keys(lab):
            _folder(lab).erase(_keys(lab))
            _put(_folder(lab), CLAIM_KEY, CLAIM)
            _put(_folder(lab), "partition=0/new.parquet")

    with pytest.raises(TableMismatchError, match="another purge ended here"):
        _run(lab, told=told)
    assert _keys(lab) == [CLAIM_KEY, "partition=0/new.parquet"]


def test_a_new_stream_that_gets_the_folder_before_the_mark_loses_nothing(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was empty when the purge looked; the mark is taken back."""
    _folder(lab).erase(_keys(lab))

    def late(store: ErasableStore, owner: TableOwner) -> None:
        _put(store, CLAIM_KEY, CLAIM)
        put_mark(store, owner)

    monkeypatch.setattr(purger_module, "put_mark", late)
    with pytest.raises(TableMismatchError, match="another purge ended here"):
        _run(lab)
    assert _keys(lab) == [CLAIM_KEY]


@pytest.mark.parametrize(
    "key",
    ["default/daily/_delta_log/00000000000000000000.json", "appended/1/a.parquet", "a.parquet"],
)
def test_a_table_beneath_the_folder_is_named_and_nothing_is_deleted(lab: TierLab, key: str) -> None:
    """A lake, or a table of a job, was made within the folder of the stream."""
    _put(_folder(lab), key)
    before = _keys(lab)
    with pytest.raises(TableMismatchError, match=key):
        _run(lab)
    assert _keys(lab) == before, "no mark was put"


def test_a_table_made_beneath_the_folder_during_a_purge_stays(lab: TierLab) -> None:
    """The purge looks at every page that it lists."""
    with pytest.raises(TableMismatchError, match="daily/a"):
        _run(lab, pause=lambda _: _put(_folder(lab), "daily/a.parquet"))
    assert _keys(lab) == [MARK_KEY, "daily/a.parquet"]


def test_objects_that_do_not_say_whose_they_are_are_not_deleted(lab: TierLab) -> None:
    """A folder without a claim, a commit, a mark or a footer of ours."""
    _folder(lab).erase(_keys(lab))
    _put(_folder(lab), "partition=0/a.parquet")
    with pytest.raises(TableMismatchError, match="nothing there says whose"):
        _run(lab)
    assert _keys(lab) == ["partition=0/a.parquet"]


def test_files_of_other_engines_within_the_table_go_with_it(lab: TierLab) -> None:
    """Deletion vectors, change data, checkpoints, and Hadoop's checksums, which are hidden."""
    root = lab.table.store.config.root
    for key in (
        "_change_data/cdc.parquet",
        "deletion_vector_1.bin",
        "_delta_log/_sidecars/1.parquet",
    ):
        _put(_folder(lab), key)
    (root / "_delta_log" / ".00000000000000000000.json.crc").write_bytes(b"x")
    (root / ".deletion_vector_1.bin.crc").write_bytes(b"x")
    assert _run(lab).sure
    assert not root.exists()


@pytest.mark.parametrize("hidden", ["link", "partition=0/dangling", "partition=0/.DS_Store"])
def test_what_is_hidden_and_not_the_tables_keeps_the_mark(lab: TierLab, hidden: str) -> None:
    """The purge does not say that it is over; the second run finishes once it is gone."""
    root = lab.table.store.config.root
    path = root / hidden
    if hidden.startswith("partition=0/."):
        path.write_bytes(b"x")
    else:
        path.symlink_to(root.parent if hidden == "link" else root / "nothing")
    done = _run(lab)
    assert not done.sure
    assert "hidden files" in done.waiting_for[0]
    assert hidden in done.waiting_for[0]
    assert _keys(lab) == [MARK_KEY]
    path.unlink()
    assert _run(lab).sure
    assert not root.exists()


def test_nothing_is_erased_after_the_mark(lab: TierLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new stream may have the folder then, with a temporary file of an upload."""
    store = type(_folder(lab))
    erase, temporary = store.erase, lab.table.store.config.root / f".{'0' * 16}.tmp"

    def freed(self: Any, keys: list[str]) -> None:
        erase(self, keys)
        if keys == [MARK_KEY]:
            temporary.parent.mkdir(exist_ok=True)
            temporary.write_bytes(b"of the new stream")

    monkeypatch.setattr(store, "erase", freed)
    assert _run(lab).sure
    assert temporary.exists()
