"""The purge of a table in a folder: what goes, what stays, and what is refused."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import (
    InvalidRequestError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    TableMismatchError,
    UnknownStreamError,
)
from broker.model.ids import StreamUuid
from simkit.tier.lab import TierLab
from tiering.purge import purger as purger_module
from tiering.purge.owner import (
    MARK_KEY,
    RESERVED_KEY,
    TableOwner,
    owner_of,
    put_mark,
    require_marked,
    reserve,
)
from tiering.purge.purger import TablePurger
from tiering.store.local_store import LocalStore
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store

OTHER = TableOwner(stream_uuid=StreamUuid(str(uuid.uuid4())), stream="other")


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A shipped table."""
    found = TierLab(tmp_path / "lake")
    found.source.fill(4, 20)
    found.ship_all()
    return found


def _owner(lab: TierLab) -> TableOwner:
    return TableOwner(stream_uuid=lab.stream.uuid, stream=lab.stream.name)


def _purger(lab: TierLab) -> TablePurger:
    return TablePurger(StoreConfig.from_env(lab.table.uri))


def _run(purger: TablePurger, owner: TableOwner, **hooks: Any) -> Any:
    calm = {"ask": lambda: (), "pause": lambda _: None, "told": lambda _: None}
    return purger.run(owner, **{**calm, **hooks})


def _put(store: ObjectStore, key: str, body: bytes = b"x") -> None:
    assert store.put_if_absent(key, body, crc32c=crc32c(body)) is not None


def _keys(lab: TierLab) -> list[str]:
    return [info.key for info in lab.store.list("")]


def test_everything_of_the_stream_goes_and_nothing_else(lab: TierLab) -> None:
    """Of the neighbours' folders, and of the probe at the lake's root, nothing goes."""
    others = [
        "_headwater/conditional_put_probe",
        f"{lab.stream.namespace}/{lab.stream.table_name}2/partition=0/x.parquet",
        f"{lab.stream.namespace}/{lab.stream.table_name}__latest/partition=0/x.parquet",
    ]
    for key in others:
        _put(lab.store, key)
    mine = lab.lake.store.under(f"{lab.stream.namespace}/{lab.stream.table_name}__latest-"
                                f"{lab.stream.uuid[:8]}")  # fmt: skip
    put_mark(mine, _owner(lab))
    _put(mine, "partition=0/of-the-key-snapshot.parquet")
    temporary = lab.table.store.config.root / "_headwater" / f".{'0' * 16}.tmp"
    temporary.write_bytes(b"of a broker that was killed")
    told: list[int] = []
    size = _purger(lab).size(_owner(lab))
    done = _run(_purger(lab), _owner(lab), told=told.append)
    assert done.sure
    assert done.objects_count == size.objects_count == told[-1] > 4
    assert size.data_files_count == 5, "those of the key snapshot, too"
    assert _keys(lab) == others
    assert not lab.table.store.config.root.exists(), "no folder and no temporary file is left"
    assert reserve(lab.table.store, OTHER), "the next stream of the name gets it"


@pytest.mark.parametrize("deletes", [1, 6, 11])
def test_a_purge_that_was_killed_is_continued(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch, deletes: int
) -> None:
    """After each number of deletions the folder says whose it is; a second run finishes."""
    left = [deletes]
    erase = LocalStore.erase

    def dying(self: LocalStore, keys: list[str]) -> None:
        for key in keys:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            erase(self, [key])

    monkeypatch.setattr(purger_module, "_AT_ONCE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "erase", dying)
        try:
            _run(_purger(lab), _owner(lab))
        except KeyboardInterrupt:
            assert not reserve(lab.table.store, OTHER), "no new stream gets the folder meanwhile"
            assert _purger(lab).owner() == _owner(lab)
            with pytest.raises(ObjectMissingError):
                lab.lake.table_at(lab.table.uri).snapshot(99)
    assert _run(_purger(lab), _owner(lab)).sure
    assert _keys(lab) == []


def test_a_table_of_another_stream_is_not_touched(lab: TierLab) -> None:
    """It may be that of a later stream with the same name."""
    before = _keys(lab)
    with pytest.raises(TableMismatchError):
        _run(_purger(lab), OTHER)
    assert _keys(lab) == before


def test_a_reservation_says_whose_a_folder_is(lab: TierLab) -> None:
    """Before anything else is in it. A purge of another stream that went on there ends."""
    store = open_store(StoreConfig.from_env(f"{lab.lake.uri}/default/new"))
    assert owner_of(store) is None
    assert reserve(store, OTHER)
    assert [one.key for one in store.list("")] == [RESERVED_KEY]
    assert owner_of(store) == OTHER
    put_mark(store, _owner(lab))
    with pytest.raises(TableMismatchError, match="a new stream may have it"):
        require_marked(store, _owner(lab))
    assert [one.key for one in store.list("")] == [RESERVED_KEY]
    with pytest.raises(TableMismatchError, match="of stream"):
        TablePurger(store.config).require_own(_owner(lab))


def test_a_folder_of_two_streams_is_refused(lab: TierLab) -> None:
    """Somebody copied tables together."""
    put_mark(lab.table.store, OTHER)
    before = _keys(lab)
    with pytest.raises(TableMismatchError):
        _run(_purger(lab), OTHER)
    assert _keys(lab) == before


@pytest.mark.parametrize(
    "address", ["s3://bucket", "s3://bucket/orders", "/orders", "/lake/orders", "/"]
)
def test_a_bucket_and_a_root_are_no_tables(address: str) -> None:
    """An address is a lake, a namespace and a table."""
    with pytest.raises(InvalidRequestError):
        TablePurger(StoreConfig.from_env(address, {"AWS_REGION": "us-east-1"}))


def test_a_late_upload_is_deleted_and_the_count_begins_anew(lab: TierLab) -> None:
    """It comes in the pause between two listings."""
    late = ["partition=0/late.parquet", "_delta_log/00000000000000000009.json"]

    def pause(_: float) -> None:
        if late:
            _put(lab.table.store, late.pop())

    done = _run(_purger(lab), _owner(lab), pause=pause)
    assert done.sure
    assert not late
    assert _keys(lab) == []


def test_the_mark_stays_while_a_broker_may_write(lab: TierLab) -> None:
    """So the folder stays taken, and says whose it was."""
    done = _run(_purger(lab), _owner(lab), ask=lambda: ("b (does not answer)",))
    assert not done.sure
    assert done.waiting_for == ("b (does not answer)",)
    assert [info.key for info in lab.table.store.list("")] == [MARK_KEY]
    assert _purger(lab).owner() == _owner(lab)


def test_a_store_that_refuses_a_delete_is_told_with_what_is_left(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is lost: the next run goes on."""

    def refused(self: LocalStore, keys: list[str]) -> None:
        raise RemoteTierUnavailableError(f"{keys[0]}: S3 answered AccessDenied", key=keys[0])

    count = len(_keys(lab))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "erase", refused)
        with pytest.raises(RemoteTierUnavailableError, match="AccessDenied") as caught:
            _run(_purger(lab), _owner(lab))
    assert caught.value.left == count + 1, "and the mark"
    assert _run(_purger(lab), _owner(lab)).sure


@pytest.mark.parametrize("kept", ["_delta_log/", "_headwater/lineage/", "partition=", MARK_KEY])
def test_what_is_left_of_a_table_says_whose_it_was(lab: TierLab, kept: str) -> None:
    """A commit, a claim, a data file or the mark: each is enough."""
    store = open_store(lab.table.store.config)
    claim = b'{"v": 1, "stream_uuid": "%s"}' % lab.stream.uuid.encode()
    _put(store, "_headwater/lineage/0/00000000000000000001.json", claim)
    put_mark(store, _owner(lab))
    store.erase([info.key for info in store.list("") if not info.key.startswith(kept)])
    found = owner_of(store)
    assert found is not None
    assert found.stream_uuid == lab.stream.uuid


def test_a_shipper_begins_nothing_for_a_deleted_stream(lab: TierLab) -> None:
    """Not even the rest of a cycle: it would make the table anew."""
    lab.source.fill(1, 20)
    shipper = lab.shipper()
    shipper.take_step()
    lab.source.starts.deleted = True
    before = _keys(lab)
    with pytest.raises(UnknownStreamError):
        shipper.run_cycle()
    assert _keys(lab) == before
