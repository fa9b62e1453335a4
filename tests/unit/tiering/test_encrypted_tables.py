"""Encrypted tables: what the lake has, who reads it with which keys, and what is proved without."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import EncryptionKeyError, ObjectCorruptError
from broker.keys.local_keys import KeyringFile
from broker.model.data_key import StreamDataKeys
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream, StreamConfig
from broker.runtime.stream_keys import StreamKeys
from simkit.encryption_keys import ENCRYPTION, FIRST, SECOND, write_keyring
from simkit.tier.lab import TickingClock, TierLab, certify, forget_proofs, read_table
from simkit.tier.source import make_stream
from tiering.read.reader import read_rows
from tiering.read.verify import verify_table
from tiering.ship.compaction import only, plan_bins, rewrite
from tiering.store import table_keys
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store


def keyring(folder: Path, name: str, **keys: str) -> Path:
    """Write a keyring whose first key wraps."""
    path = folder / f"{name}.toml"
    write_keyring(path, **keys)
    return path


def keys_in(path: Path) -> StreamKeys:
    """Return a broker's keys with this keyring."""

    def no_batches(_: bytes) -> Any:
        raise AssertionError("no batch is encrypted here")

    return StreamKeys(TickingClock(), KeyringFile(path), no_batches)


def located(root: Path, ring: Path | None, told: Stream | None = None) -> StoreConfig:
    """Return the lake as a process with this keyring, or without one, opens it.

    A broker told the process the data keys of ``told``.
    """
    here = StoreConfig.from_env(str(root), {})
    if ring is None:
        return here
    keys = None if told is None else StreamDataKeys(StreamUuid(told.uuid), told.data_keys)
    return replace(here, key_provider="file", keyring_file=str(ring), data_keys=keys)


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """A keyring with one key."""
    return keyring(tmp_path, "one", one=FIRST)


@pytest.fixture
def lab(tmp_path: Path, ring: Path) -> TierLab:
    """A lake with an encrypted table of three files, beside a plain one with the same rows."""
    config = StreamConfig(subject="orders", encryption=ENCRYPTION, table_encryption="ciphertext")
    plain = make_stream()
    stream = replace(plain, config=config, data_keys=keys_in(ring).first(plain.uuid))
    made = TierLab(located(tmp_path / "lake", ring), stream=stream)
    made.source.fill(3, 40)
    made.ship_all()
    return made


@pytest.fixture
def plain(tmp_path: Path) -> TierLab:
    """The same rows in a plain table."""
    made = TierLab(tmp_path / "plain")
    made.source.fill(3, 40)
    made.ship_all()
    return made


def read_as(lab: TierLab, root: Path, ring: Path | None, told: Stream | None = None) -> Any:
    """Return the table's rows as another process reads them."""
    other = TierLab(located(root, ring, told), stream=lab.stream)
    return read_table(other.table, 0)


@dataclass(frozen=True)
class Rotated:
    """A table whose last of four files was written after a rotation, and keyrings beside it."""

    lab: TierLab
    stream: Stream  # as the metadata has it now
    lake: Path
    folder: Path

    def opened(self, name: str, told: Stream | None, **keys: str) -> ObjectStore:
        """Return the table's store as a new process with these keys opens it."""
        ring = keyring(self.folder, name, **keys)
        at = self.lake / "default" / "orders"
        return open_store(located(at, ring, told))

    def joined(self, store: ObjectStore) -> bytes:
        """Join all files as that process does, and return the new one."""
        snapshot = self.lab.table.snapshot()
        (wanted,) = plan_bins(snapshot)
        assert len(wanted.files) == 4
        return store.get(rewrite(only(snapshot, wanted), store, wanted, modified_us=1).path)

    def versions(self, body: bytes) -> set[int]:
        """Return which data keys a file names."""
        return {int(one) for one in re.findall(rf"{self.stream.uuid}/(\d+) ".encode(), body)}


@pytest.fixture
def rotated(lab: TierLab, tmp_path: Path) -> Rotated:
    """The provider has a second key, which wraps from the rotation on."""
    both = keyring(tmp_path, "both", two=SECOND, one=FIRST)
    stream = replace(
        lab.stream, data_keys=keys_in(both).rotated(lab.stream.uuid, lab.stream.data_keys)
    )
    other = TierLab(located(tmp_path / "lake", both), stream=stream)
    other.source = lab.source
    other.source.stream = stream
    other.source.fill(1, 40)
    other.ship_all(other.shipper(source=other.source))
    return Rotated(lab, stream, tmp_path / "lake", tmp_path)


def everything(folder: Path) -> bytes:
    """Return all bytes of a lake."""
    return b"".join(one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file())


def test_a_reader_with_the_key_gets_the_rows(lab: TierLab, plain: TierLab, tmp_path: Path) -> None:
    """The same rows as of a plain table; the files have none of their values."""
    rows = read_table(lab.table, 0)
    assert rows.equals(read_table(plain.table, 0))
    bytes_encrypted, bytes_plain = everything(tmp_path / "lake"), everything(tmp_path / "plain")
    values = [one for one in rows.column("value").to_pylist() if one and len(one) >= 8]
    keys = [one for one in rows.column("key").to_pylist() if one and len(one) >= 8]
    assert values
    for secret in {*values[:50], *keys[:50]}:
        assert secret not in bytes_encrypted
    assert lab.table.snapshot().is_encrypted
    assert not plain.table.snapshot().is_encrypted
    assert len(bytes_plain) < len(bytes_encrypted)


def test_offsets_times_and_counts_need_no_key(lab: TierLab, tmp_path: Path) -> None:
    """The cheap certificate, and every reader that skips by them, works for everybody."""
    forget_proofs()
    other = TierLab(located(tmp_path / "lake", None), stream=lab.stream)
    assert certify(other) == [120]
    snapshot = other.table.snapshot()
    names = ["offset", "timestamp", "leader_epoch"]
    schema = ROW_SCHEMA.empty_table().select(names).schema
    found = list(read_rows(snapshot, other.table.store, 0, snapshot.ranges[0], schema))
    assert sum(one.num_rows for one in found) == 120
    (path, *_) = sorted((tmp_path / "lake").rglob("*.parquet"))
    assert pq.ParquetFile(path).read(columns=["offset"]).num_rows == 40  # with nothing of ours


def test_a_reader_without_the_key_is_told(lab: TierLab, tmp_path: Path) -> None:
    """Missing provider, missing key, another key of that name: an error of its own, no rows."""
    lake = tmp_path / "lake"
    with pytest.raises(EncryptionKeyError, match="HEADWATER_ENCRYPTION_PROVIDER"):
        read_as(lab, lake, None)
    with pytest.raises(EncryptionKeyError, match="no key named 'one'"):
        read_as(lab, lake, keyring(tmp_path, "other", two=SECOND))
    with pytest.raises(EncryptionKeyError, match="not the key that wrapped"):
        read_as(lab, lake, keyring(tmp_path, "wrong", one=SECOND))


def test_the_lake_alone_and_the_provider_are_enough(lab: TierLab, tmp_path: Path) -> None:
    """A file names its data key, wrapped: no broker and no metadata is asked."""
    copy = keyring(tmp_path, "copy", one=FIRST)  # a process that has learnt nothing
    store = open_store(located(tmp_path / "lake" / "default" / "orders", copy))
    snapshot = lab.table.snapshot()
    assert (
        sum(one.num_rows for one in read_rows(snapshot, store, 0, snapshot.ranges[0], ROW_SCHEMA))
        == 120
    )


def test_every_byte_is_verified_against_the_ledger(lab: TierLab) -> None:
    """With the keys the digests are those of the plain rows."""
    forget_proofs()
    (proof,) = verify_table(lab.table.snapshot(), lab.table.store)
    assert (proof.cold_count, proof.start, proof.end) == (120, 0, 120)


def test_a_flipped_bit_is_damage(lab: TierLab, tmp_path: Path) -> None:
    """Of a page of ciphertext: the object is named, no row is given out."""
    path = sorted((tmp_path / "lake").rglob("*.parquet"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(ObjectCorruptError) as caught:
        read_table(lab.table, 0)
    assert caught.value.key.endswith(path.name)


def test_a_rotated_key_writes_new_files_and_the_old_provider_key_may_go(
    rotated: Rotated,
) -> None:
    """Old files name an old wrapping; who was told of the new one needs no other."""
    files = sorted(rotated.lake.rglob("*.parquet"))
    assert [rotated.versions(one.read_bytes()) for one in files] == [{1}, {1}, {1}, {2}]
    alone = keyring(rotated.folder, "alone", two=SECOND)
    assert read_as(rotated.lab, rotated.lake, alone, rotated.stream).num_rows == 160
    stranger = keyring(rotated.folder, "stranger", two=SECOND)
    with pytest.raises(EncryptionKeyError, match="no key named 'one'"):
        read_as(rotated.lab, rotated.lake, stranger)


def test_what_is_joined_after_a_rotation_has_the_new_key(rotated: Rotated) -> None:
    """Also if the process still has the provider's old key, which may be in wrong hands."""
    for store in (
        rotated.opened("job", rotated.stream, two=SECOND),
        rotated.opened("old", rotated.stream, one=FIRST, two=SECOND),
    ):
        body = rotated.joined(store)
        assert rotated.versions(body) == {2}
        assert rotated.stream.data_keys[1].wrapped.encode() in body


def test_an_old_key_is_not_put_on_records_of_a_newer_one(rotated: Rotated) -> None:
    """A process that no broker told of the rotation joins nothing, and leaves nothing behind."""
    before = sorted(rotated.lake.rglob("*.parquet"))
    with pytest.raises(EncryptionKeyError, match="version 2 of its data key") as caught:
        rotated.joined(rotated.opened("behind", rotated.lab.stream, one=FIRST, two=SECOND))
    assert (caught.value.facts["stream"], caught.value.facts["version"]) == ("orders", 1)
    with pytest.raises(EncryptionKeyError, match="no broker told"):
        rotated.joined(rotated.opened("alone", None, one=FIRST, two=SECOND))
    assert sorted(rotated.lake.rglob("*.parquet")) == before


def test_a_keyring_without_the_new_key_still_reads_what_is_older(rotated: Rotated) -> None:
    """Files name the old wrapping. What was written after the rotation needs the new key."""
    store, snapshot = (
        rotated.opened("late", rotated.stream, one=FIRST),
        rotated.lab.table.snapshot(),
    )

    def count(start: int, end: int) -> int:
        wanted = OffsetRange(Offset(start), Offset(end))
        return sum(one.num_rows for one in read_rows(snapshot, store, 0, wanted, ROW_SCHEMA))

    assert count(0, 120) == 120
    with pytest.raises(EncryptionKeyError, match="no key named 'two'"):
        count(120, 160)


def test_a_wrapping_that_was_learnt_late_replaces_no_newer_one(rotated: Rotated) -> None:
    """A task may bring the data keys of an older moment into a process that knows the rotation."""
    now = rotated.opened("alone", rotated.stream, two=SECOND).config
    assert table_keys.keys_at(now) is not None  # the process knows the rotation
    before = located(rotated.lake, Path(now.keyring_file), rotated.lab.stream)
    store = open_store(before.child("default/orders"))
    forget_proofs()
    (proof,) = verify_table(rotated.lab.table.snapshot(), store)
    assert proof.cold_count == 160


def test_files_that_are_joined_stay_encrypted(
    lab: TierLab, plain: TierLab, ring: Path, tmp_path: Path
) -> None:
    """A process without keys does not join them, so no plaintext is ever written."""
    snapshot = lab.table.snapshot()
    (wanted,) = plan_bins(snapshot)
    at = located(tmp_path / "lake" / "default" / "orders", ring, lab.stream)
    made = rewrite(only(snapshot, wanted), open_store(at), wanted, modified_us=1)
    path = next((tmp_path / "lake").rglob(made.path.rpartition("/")[2]))
    with pytest.raises(OSError, match="decrypt"):
        pq.ParquetFile(path).read(columns=["value"])
    joined = replace(snapshot, files=(replace(wanted.files[0], path=made.path,
                     size_bytes=made.size_bytes, records_count=120),))  # fmt: skip
    rows = list(read_rows(joined, lab.table.store, 0, OffsetRange(*_span(wanted)), ROW_SCHEMA))
    assert [one for batch in rows for one in batch.column("value").to_pylist()] == (
        read_table(plain.table, 0).column("value").to_pylist()
    )
    bare = open_store(located(tmp_path / "lake" / "default" / "orders", None))
    with pytest.raises(EncryptionKeyError):
        rewrite(only(snapshot, wanted), bare, wanted, modified_us=1)


def _span(wanted: Any) -> tuple[Any, Any]:
    return wanted.range.start, wanted.range.end


def test_nothing_is_shipped_in_plain_without_a_key(lab: TierLab, tmp_path: Path) -> None:
    """A broker whose lake has no keys stops shipping that stream, and says why."""
    bare = TierLab(located(tmp_path / "other", None), stream=lab.stream)
    bare.source.fill(1, 10)
    with pytest.raises(EncryptionKeyError):
        bare.ship_all()
    assert list((tmp_path / "other").rglob("*.parquet")) == []


@pytest.mark.parametrize(
    "name",
    ["", "x", "u/1", "u/1 []", 'u/0 ["file","k","AAAA"]', 'u/1 ["file","k","?"]', "x" * 99999],
)
def test_a_file_cannot_name_nonsense(ring: Path, name: str) -> None:
    """What a file says is bounded and checked before it is used."""
    keys = table_keys.TableKeys(KeyringFile(ring))
    with pytest.raises(ObjectCorruptError):
        keys.key_named(name)


def test_keys_are_in_no_text(ring: Path, lab: TierLab) -> None:
    """Neither of the keys of a process nor of its parts."""
    keys = table_keys.keys_of("file", str(ring), "")
    assert keys is not None
    secret: Callable[[bytes], str] = lambda key: repr(key)[2:-1]  # noqa: E731
    known = list(keys._keys.values())
    assert known
    assert all(secret(one) not in repr(keys) for one in known)
    assert lab.store.config.keyring_file == str(ring)
