"""How the objects of a version are proved: by size, checksum, ETag, stamp or rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import ObjectCorruptError, ObjectMissingError
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.hand_log import STREAM, add, entry
from tiering.proof import object_proof, range_proof
from tiering.proof.object_proof import require_objects
from tiering.proof.provenance import ProvedFile, Provenance
from tiering.proof.range_proof import checksum_of
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo
from tiering.store.opening import open_store
from tiering.table.commit_files import file_in
from tiering.table.ledger import Ledger
from tiering.table.table import TableSnapshot

pytestmark = pytest.mark.usefixtures("forgetful")


class EtagStore(FaultyStore):
    """A store with ETags and without stamps, as S3."""

    def head(self, key: str) -> ObjectInfo:
        """See the port."""
        info = super().head(key)
        etag = hashlib.sha256(self._store.get(key)).hexdigest()
        return info._replace(etag=etag, stamp=None)


class Objects:
    """Objects of ten bytes, each of ten records, and the proof that has them."""

    def __init__(self, root: Path, *, etags: bool) -> None:
        kind = EtagStore if etags else FaultyStore
        self.store = kind(open_store(StoreConfig.from_env(str(root))))
        self.root = root
        self.files: dict[str, ProvedFile] = {}
        self.end = 0

    def put(self, **values: Any) -> str:
        """Store the next object; ``values`` are what its commit noted otherwise."""
        one = replace(entry(self.end, self.end + 10), size_bytes=10)
        self.end += 10
        data = f"{one.start:010}".encode()
        assert self.store.put_if_absent(one.path, data, crc32c=crc32c(data))
        proved = ProvedFile(file_in(add(one)["add"]), crc32c(data), self.store.head(one.path).etag)
        self.files[one.path] = replace(proved, **values)
        return one.path

    def exchange(self, path: str) -> None:
        """Put other bytes of the same size in an object's place."""
        (self.root / path).write_bytes(b"x" * 10)

    def prove(self, start: int, end: int, listed: Mapping[str, ObjectInfo] | None = None) -> None:
        """Prove the objects of a range."""
        held = {0: OffsetRange(Offset(0), Offset(self.end))}
        found = TableSnapshot(
            uri=str(self.root), version=1, stream_uuid=STREAM.uuid, cluster="c", properties={},
            files=tuple(one.file for one in self.files.values()), ranges=held,
        )  # fmt: skip
        proof = Provenance(version=1, files=dict(self.files), ranges=held)
        within = {0: OffsetRange(Offset(start), Offset(end))}
        require_objects(proof, found, self.store, within=within, listed=listed)

    def fails(self, start: int, end: int, words: str) -> None:
        """Prove a range twice; it has to fail each time."""
        for _ in range(2):
            with pytest.raises(ObjectCorruptError, match=words):
                self.prove(start, end)


@pytest.fixture
def local(tmp_path: Path) -> Objects:
    """Objects in a folder, which has stamps."""
    return Objects(tmp_path / "t", etags=False)


@pytest.fixture
def remote(tmp_path: Path) -> Objects:
    """Objects in a store with ETags."""
    return Objects(tmp_path / "t", etags=True)


def test_a_damaged_object_is_refused_at_every_try(local: Objects) -> None:
    """Alone and among others, which are read side by side."""
    first = local.put()
    local.exchange(first)
    local.fails(0, 10, "its crc32c is")
    for _ in range(3):
        local.put()
    local.fails(0, 40, "its crc32c is")
    local.prove(10, 40)


@pytest.mark.parametrize(
    ("start", "end", "is_needed"),
    [(19, 30, True), (20, 30, False), (5, 11, True), (5, 10, False), (10, 10, False)],
)
def test_the_objects_with_rows_of_the_range_are_proved(
    local: Objects, start: int, end: int, is_needed: bool
) -> None:
    """Those that share one offset with it, and no others."""
    local.put()
    damaged = local.put()
    local.put()
    local.exchange(damaged)
    if is_needed:
        local.fails(start, end, "its crc32c is")
    else:
        local.prove(start, end)


def test_an_object_is_read_once_and_again_when_it_was_written_again(local: Objects) -> None:
    """A folder has no ETags: any process can write into it."""
    path = local.put()
    local.prove(0, 10)
    local.store.calls.clear()
    local.prove(0, 10)
    assert local.store.calls["get"] == 0
    local.exchange(path)
    local.fails(0, 10, "its crc32c is")


def test_an_object_that_was_exchanged_has_another_etag(remote: Objects) -> None:
    """A new ETag makes the proof read the bytes. Without a committed checksum the ETag decides."""
    path = remote.put()
    remote.prove(0, 10)
    assert remote.store.calls["get"] == 0  # the ETag is the commit's: nothing is read
    remote.exchange(path)
    remote.fails(0, 10, "its crc32c is")
    (remote.root / path).write_bytes(b"0000000000")
    remote.files[path] = replace(remote.files[path], etag="another by the store")
    remote.prove(0, 10)  # the bytes are those that were committed
    bare = remote.put(crc32c=None)
    remote.prove(10, 20)
    remote.exchange(bare)
    remote.fails(10, 20, "its ETag is")


def test_an_object_of_another_size_or_none_at_all_is_named(local: Objects) -> None:
    """The size comes from a HEAD request, or from the caller's listing."""
    path = local.put()
    listed = {path: local.store.head(path)._replace(size_bytes=9)}
    with pytest.raises(ObjectCorruptError, match="its size is 9"):
        local.prove(0, 10, listed)
    listed = {path: local.store.head(path)._replace(crc32c=1)}
    with pytest.raises(ObjectCorruptError, match="its crc32c is 1"):
        local.prove(0, 10, listed)
    (local.root / path).unlink()
    with pytest.raises(ObjectMissingError):
        local.prove(0, 10)


def test_a_file_of_others_keeps_the_checksum_that_was_proved_of_it(local: Objects) -> None:
    """Its rows were compared once; later other bytes are refused before they are parsed."""
    path = local.put(ours=False)
    local.exchange(path)
    local.fails(0, 10, "its crc32c is")


# ------------------------------------------------------------------------------ others' rows


@pytest.mark.parametrize(
    ("held", "span", "whole"),
    [
        ((0, 60), (20, 40), (20, 40)),
        ((0, 60), (25, 30), (20, 40)),
        ((0, 60), (15, 45), (0, 60)),
        ((5, 60), (10, 15), (5, 20)),
        ((0, 35), (25, 30), (20, 35)),
    ],
)
def test_rows_of_others_are_compared_over_whole_ranges_of_the_ledger(
    local: Objects,
    monkeypatch: pytest.MonkeyPatch,
    held: tuple[int, int],
    span: tuple[int, int],
    whole: tuple[int, int],
) -> None:
    """A part of a range has no digest, and beyond the version's end there are no rows."""
    for start in (0, 20, 40):
        Ledger(local.store).put(entry(start, start + 20))
    asked: list[tuple[int, int]] = []

    def verify(*arguments: Any) -> Iterator[None]:
        asked.append((arguments[3].start, arguments[3].end))
        return iter(())

    monkeypatch.setattr(object_proof, "verify_entries", verify)
    found = TableSnapshot(
        uri="t", version=0, stream_uuid=STREAM.uuid, cluster="c", properties={}, files=(),
        ranges={0: OffsetRange(Offset(held[0]), Offset(held[1]))},
    )  # fmt: skip
    object_proof._prove_span(found, local.store, 0, OffsetRange(Offset(span[0]), Offset(span[1])))
    assert asked == [whole]


def test_spans_that_touch_are_compared_together() -> None:
    """A span within another one does not shorten it."""

    def joined(*spans: tuple[int, int]) -> list[tuple[int, int]]:
        given = [OffsetRange(Offset(start), Offset(end)) for start, end in spans]
        return [(one.start, one.end) for one in object_proof._joined(given)]

    assert joined((0, 30), (5, 10), (40, 50)) == [(0, 30), (40, 50)]
    assert joined((20, 30), (0, 10), (10, 20)) == [(0, 30)]
    assert joined() == []


def test_the_checksum_of_an_object_is_of_all_its_bytes(
    local: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pieces it is read in."""
    path = local.put()
    data = (local.root / path).read_bytes()
    for size in (1, 3, 5, 9, 10, 11):
        monkeypatch.setattr(range_proof, "_CHUNK_BYTES", size)
        assert checksum_of(local.store, path, 10) == crc32c(data)
