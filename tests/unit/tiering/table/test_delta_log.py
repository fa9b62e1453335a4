"""Transactions and commits of a version, from the files of a log that are still there."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.codec.checksum import crc32c
from broker.errors import ObjectCorruptError, ObjectMissingError
from simkit.tier.hand_log import body, ours
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store
from tiering.table.delta_log import commits_between, fold, log_key, transactions_at


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """An empty folder."""
    return open_store(StoreConfig.from_env(str(tmp_path)))


def put(store: ObjectStore, key: str, data: bytes) -> None:
    """Store an object."""
    assert store.put_if_absent(key, data, crc32c=crc32c(data))


def commit(store: ObjectStore, version: int, *, app_id: object = "a", number: object = 0) -> None:
    """Write a commit of ours with one transaction."""
    txn = {"txn": {"appId": app_id, "version": number or version}}
    put(store, log_key(version), body([ours(), txn, {"add": {"path": "x"}}]))


def checkpoint(store: ObjectStore, version: int, **transactions: int) -> None:
    """Write a checkpoint in one file; rows that are no transactions are empty there."""
    rows = [{"appId": name, "version": number} for name, number in transactions.items()]
    kind = pa.struct([("appId", pa.string()), ("version", pa.int64())])
    sink = io.BytesIO()
    pq.write_table(pa.table({"txn": pa.array([None, *rows], kind)}), sink)
    put(store, f"_delta_log/{version:020}.checkpoint.parquet", sink.getvalue())


def test_a_version_has_the_transactions_of_its_commits(store: ObjectStore) -> None:
    """The newest of each application id, up to the version and no further."""
    for version in range(5):
        commit(store, version, app_id="b" if version == 2 else "a", number=10 + version)
    assert transactions_at(store, 4) == {"a": 14, "b": 12}
    assert transactions_at(store, 2) == {"a": 11, "b": 12}
    assert transactions_at(store, 1) == {"a": 11}
    assert fold(store, {"a": 1, "c": 3}, above=1, up_to=2) == {"a": 1, "b": 12, "c": 3}


def test_a_version_is_folded_from_the_newest_checkpoint_below_it(store: ObjectStore) -> None:
    """The commits before it may be gone; a checkpoint of a later version is another one's."""
    for version in (3, 5, 6):
        commit(store, version, number=10 + version)
    checkpoint(store, 2, a=1, b=2)
    checkpoint(store, 4, a=3, b=2, c=4)
    assert transactions_at(store, 6) == {"a": 16, "b": 2, "c": 4}
    assert transactions_at(store, 4) == {"a": 3, "b": 2, "c": 4}
    assert transactions_at(store, 3) == {"a": 13, "b": 2}
    assert transactions_at(store, 2) == {"a": 1, "b": 2}
    with pytest.raises(ObjectMissingError):
        transactions_at(store, 1)


@pytest.mark.parametrize(("app_id", "number"), [(7, 1), ("a", "1"), ("a", True), ("a", 1.5)])
def test_a_transaction_that_is_none_is_an_error(
    store: ObjectStore, app_id: object, number: object
) -> None:
    """An unreadable commit is an error and is not skipped."""
    commit(store, 0, app_id=app_id, number=number)
    with pytest.raises(ObjectCorruptError):
        transactions_at(store, 0)


def test_our_commits_are_those_with_our_id_above_a_version(store: ObjectStore) -> None:
    """Up to the version that was asked for, with it; others' commits and gaps are left out."""
    for version in (0, 1, 2, 4, 5):
        commit(store, version)
    put(store, log_key(3), body([{"commitInfo": {}}, {"add": {}}]))

    def found(above: int, up_to: int) -> list[int]:
        return [one.version for one in commits_between(store, above=above, up_to=up_to)]

    assert found(-1, 9) == [0, 1, 2, 4, 5]
    assert found(1, 4) == [2, 4]
    assert found(1, 3) == [2]
    assert found(5, 9) == found(2, 2) == []
