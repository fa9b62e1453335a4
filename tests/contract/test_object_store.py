"""What every object store must do, on a local directory and on S3 (moto)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from broker.codec.checksum import crc32c
from broker.errors import (
    CorruptDataError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
)
from simkit.servers.motoproc import fresh, moto_location
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore, ObjectStore, require_conditional_put
from tiering.store.opening import open_for_reading, open_store


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreConfig]:
    """One moto for the module."""
    with moto_location(tmp_path_factory.mktemp("moto")) as location:
        yield location


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.integration),
        pytest.param("s3 for reading", marks=pytest.mark.integration),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "local":
        return open_store(StoreConfig.from_env(str(tmp_path / "lake with space")))
    opened = open_store if request.param == "s3" else open_for_reading
    return opened(fresh(request.getfixturevalue("moto")))


def put(store: ObjectStore, key: str, body: bytes) -> bool:
    """Create an object with the right checksum."""
    return store.put_if_absent(key, body, crc32c=crc32c(body)) is not None


def test_an_object_is_read_back_whole_and_in_parts(store: ObjectStore) -> None:
    """GET returns all bytes, or exactly those of the range."""
    body = bytes(range(256)) * 10
    assert put(store, "a/b=1/c.bin", body)
    assert store.get("a/b=1/c.bin") == body
    assert store.get("a/b=1/c.bin", 5, 9) == body[5:9]
    assert store.get("a/b=1/c.bin", 2550) == body[2550:]
    assert store.get("a/b=1/c.bin", 7, 7) == b""


def test_an_object_is_never_replaced(store: ObjectStore) -> None:
    """The second create with other bytes changes nothing and says so; the same bytes are fine."""
    assert put(store, "x", b"first")
    assert not put(store, "x", b"other")
    assert store.get("x") == b"first"
    assert put(store, "x", b"first")


@pytest.mark.parametrize("kind", [bytes, memoryview, pa.py_buffer])
def test_the_same_bytes_are_the_same_object_whatever_holds_them(
    store: ObjectStore, kind: Callable[[bytes], Any]
) -> None:
    """As after a PUT that took place and was answered by an error. Data are Arrow buffers."""
    body, other = bytes(range(256)), bytes(range(255, -1, -1))
    for _ in range(2):
        assert store.put_if_absent("x", kind(body), crc32c=crc32c(body))
    assert store.put_if_absent("x", kind(other), crc32c=crc32c(other)) is None
    assert store.get("x") == body


def test_what_was_erased_is_gone_and_nothing_else(store: ObjectStore) -> None:
    """A key is free again; erasing what is not there is no error."""
    if not hasattr(store, "erase"):
        pytest.skip("a reader erases nothing")
    erasable = cast("ErasableStore", store)
    for key in ("a/1", "a/2", "b"):
        assert put(store, key, b"old")

    erasable.erase(["a/1", "b", "never"])

    assert [info.key for info in store.list("")] == ["a/2"]
    assert put(store, "a/1", b"new")


def test_one_of_many_racing_creates_wins(store: ObjectStore) -> None:
    """Eight threads create one key with different bytes: exactly one succeeds."""
    outcomes: dict[bytes, bool] = {}
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        body = f"writer {number}".encode()
        barrier.wait()
        outcomes[body] = put(store, "race", body)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [body for body, won in outcomes.items() if won] == [store.get("race")]


def test_a_missing_object_is_a_typed_error(store: ObjectStore) -> None:
    """GET and HEAD of nothing raise ObjectMissingError with the key."""
    for ask in (store.get, store.head):
        with pytest.raises(ObjectMissingError) as caught:
            ask("not/there")
        assert caught.value.key == "not/there"


def test_a_range_beyond_the_end_is_a_typed_error(store: ObjectStore) -> None:
    """An object shorter than its recorded size does not give fewer bytes silently."""
    put(store, "short", b"12345")
    for start, end in ((0, 6), (3, 50), (9, 12)):
        with pytest.raises(ObjectCorruptError):
            store.get("short", start, end)


def test_a_wrong_checksum_is_refused(store: ObjectStore) -> None:
    """A body that does not have the promised CRC is not stored."""
    with pytest.raises((CorruptDataError, RemoteTierUnavailableError)):
        store.put_if_absent("bad", b"body", crc32c=crc32c(b"other body"))
    with pytest.raises(ObjectMissingError):
        store.head("bad")


def test_head_tells_size_and_checksum_where_it_is_kept(store: ObjectStore) -> None:
    """The size is exact; the checksum is right or not told."""
    put(store, "x", b"body")
    info = store.head("x")
    assert info.size_bytes == 4
    assert info.crc32c in (None, crc32c(b"body"))


def test_the_answer_to_a_put_names_the_object_as_the_store_does(store: ObjectStore) -> None:
    """Its ETag is the one that HEAD and a listing give; a folder gives none."""
    created = store.put_if_absent("x", b"body", crc32c=crc32c(b"body"))
    assert created is not None
    assert (created.key, created.size_bytes) == ("x", 4)
    listed = next(iter(store.list("x")))
    assert created.etag == store.head("x").etag == listed.etag
    assert (created.etag is None) == (store.config.kind == "local")


def test_listing_is_by_key_and_pages(store: ObjectStore) -> None:
    """A prefix lists its objects in order, also above a key; other prefixes stay out."""
    keys = [f"p/{number:04}" for number in range(30)]
    for key in reversed(keys):
        put(store, key, b"12")
    put(store, "q/1", b"1")
    assert [(info.key, info.size_bytes) for info in store.list("p/")] == [(key, 2) for key in keys]
    assert [info.key for info in store.list("p/", start_after=keys[27])] == keys[28:]
    assert [info.key for info in store.list("p/002")] == keys[20:30]
    assert list(store.list("nothing/")) == []


def test_a_store_below_a_folder_sees_only_that(store: ObjectStore) -> None:
    """`under` moves the root: keys are relative to it in both directions."""
    put(store, "ns/table/x", b"1")
    below = store.under("ns/table")
    assert below.get("x") == b"1"
    put(below, "y/z", b"2")
    assert store.get("ns/table/y/z") == b"2"
    assert [info.key for info in below.list("")] == ["x", "y/z"]
    assert below.config.uri == f"{store.config.uri}/ns/table"


def test_keys_do_not_leave_the_root(store: ObjectStore) -> None:
    """A key with dots is refused or an ordinary name; it never reaches another folder."""
    if store.config.kind == "s3":
        pytest.skip("a key is a string there")
    for key in ("../x", "a/../../x", "/etc/passwd", ""):
        with pytest.raises(ObjectMissingError):
            store.get(key)


def test_the_probe_accepts_a_store_that_refuses_overwrites(store: ObjectStore) -> None:
    """Both kinds pass, also the second time, when the probe's object is there already."""
    require_conditional_put(store)
    require_conditional_put(store)


def test_nobody_answering_is_unavailable(moto: StoreConfig) -> None:
    """A dead endpoint is RemoteTierUnavailableError, which callers retry."""
    dead = replace(
        moto, endpoint="http://127.0.0.1:9", connect_timeout_s=0.5, attempts_max=1,
        uri=f"{moto.uri}/{uuid.uuid4().hex}",
    )  # fmt: skip
    for opened in (open_store, open_for_reading):
        store = opened(dead)
        with pytest.raises(RemoteTierUnavailableError):
            put(store, "x", b"1")
        with pytest.raises(RemoteTierUnavailableError):
            store.get("x")
        with pytest.raises(RemoteTierUnavailableError):
            list(store.list(""))
