"""Proofs of table versions: kept in memory, stored beside the table, checked before their use.

The logs are written by hand (``simkit/tier/hand_log.py``).
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import ObjectCorruptError, ObjectMissingError, TableMismatchError
from broker.model.offsets import Offset
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.hand_log import CREATED, STREAM, Actions, add, body, described, entry, shipped
from tiering.proof import proofs
from tiering.proof.proofs import ProofCache, decode, encode, prove, refuse_foreign
from tiering.proof.provenance import Provenance, Walk
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store
from tiering.table.delta_log import log_key
from tiering.table.table import PROOF_PREFIX, TableSnapshot


class Log:
    """A table's log in a folder, of as many ranges as are asked for."""

    def __init__(self, root: Path, *, created: Actions = CREATED) -> None:
        self.store = FaultyStore(open_store(StoreConfig.from_env(str(root))))
        self.states: list[Provenance] = []
        self._walk = Walk(Provenance(), "t")
        self.commit(created)

    def commit(self, actions: Actions) -> None:
        """Write the next version."""
        version, data = len(self.states), body(actions)
        self.put(log_key(version), data)
        self._walk.step(version, data)
        self.states.append(self._walk.end().copy())

    def ship(self, count: int = 1) -> None:
        """Commit some ranges of ten records."""
        for _ in range(count):
            start = 10 * (len(self.states) - 1)
            self.commit(shipped(entry(start, start + 10)))

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        assert self.store.put_if_absent(key, data, crc32c=crc32c(data))

    def snapshot(self, version: int = -1) -> TableSnapshot:
        """Return a version as a Delta library reads it."""
        state = self.states[version]
        return TableSnapshot(
            uri="t", version=state.version, stream_uuid=STREAM.uuid, cluster="c",
            properties=state.properties, table_id=state.table_id, ranges=dict(state.ranges),
            files=tuple(one.file for one in state.files.values()),
        )  # fmt: skip

    def prove(self, version: int = -1, cache: ProofCache | None = None) -> Provenance:
        """Prove a version as a new process would, or one that knows more."""
        return prove(self.snapshot(version), self.store, cache=cache or ProofCache())

    def drop_commits(self, versions: range) -> None:
        """Delete commit files, as a clean-up of the log does."""
        for version in versions:
            (self.store.config.root / log_key(version)).unlink()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A table of three ranges."""
    log = Log(tmp_path / "t")
    log.ship(3)
    return log


def key_of(version: int, mark: str = "") -> str:
    """Return the key of a stored proof."""
    return f"{PROOF_PREFIX}/{version:020}{mark}.json.gz"


def changed(data: bytes, **values: Any) -> bytes:
    """Return a stored proof with other values, and the digest of the former ones."""
    digest, _, text = gzip.decompress(data).partition(b"\n")
    other = json.dumps({**json.loads(text), **values}, sort_keys=True, separators=(",", ":"))
    return gzip.compress(digest + b"\n" + other.encode(), mtime=0)


def sealed(data: bytes, **values: Any) -> bytes:
    """Return a stored proof with other values and their digest."""
    text = gzip.decompress(changed(data, **values)).partition(b"\n")[2]
    digest = hashlib.sha256(text).hexdigest().encode()
    return gzip.compress(digest + b"\n" + text, mtime=0)


# ------------------------------------------------------------------------------ the stored form


def test_a_stored_proof_is_the_proof_that_was_stored(log: Log) -> None:
    """Every field of every file, also of one whose rows are to be compared yet."""
    again = add(entry(20, 30), changes=False)
    again["add"]["stats"] = again["add"]["stats"].replace(
        '"nullCount": {', '"nullCount": {"value": 3, '
    )
    log.commit([again])
    state = log.states[-1]
    assert {one.ours for one in state.files.values()} == {True, False}
    times = {(one.file.min_timestamp_us, one.file.max_timestamp_us) for one in state.files.values()}
    assert times == {(5_000_000, 6_000_999)}
    assert decode(encode(state), "k") == state


def test_a_stored_proof_that_was_changed_is_refused(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whole compressed bytes, too; also another format, a part, or too many bytes."""
    data = encode(log.states[-1])
    assert decode(sealed(data), "k") == log.states[-1]
    for other in (
        changed(data, version=2), changed(data, columns="x"), sealed(data, v=2), data[:-1], b"",
        sealed(data, files=[[1]]), sealed(data, ranges=7),
    ):  # fmt: skip
        with pytest.raises(ObjectCorruptError):
            decode(other, "k")
    monkeypatch.setattr(proofs, "_BYTES_MAX", len(gzip.decompress(data)) - 1)
    with pytest.raises(ObjectCorruptError):
        decode(data, "k")


def test_a_proof_that_unpacks_to_far_more_than_itself_is_refused(log: Log) -> None:
    """A few KiB in a bucket cost a reader no gigabyte, even with the right digest."""
    text = gzip.decompress(encode(log.states[-1])).partition(b"\n")[2] + b" " * (16 << 20)
    digest = hashlib.sha256(text).hexdigest().encode()
    bomb = gzip.compress(digest + b"\n" + text)
    with pytest.raises(ObjectCorruptError):
        decode(bomb, "k")


# ------------------------------------------------------------------------------ what is believed


def test_a_stored_proof_saves_the_commits_below_it(log: Log) -> None:
    """They may even be gone; without it a version whose commits are gone cannot be proved."""
    log.put(key_of(2), encode(log.states[2]))
    log.drop_commits(range(2))
    assert log.prove() == log.states[-1]
    assert log.prove(2) == log.states[2]
    with pytest.raises(ObjectMissingError):
        log.prove(1)


def test_a_log_that_was_cleaned_up_says_which_commits_it_needs(log: Log) -> None:
    """With exactly these back in place the version is proved."""
    log.put(key_of(1), encode(log.states[1]))
    gone = {number: log.store.get(log_key(number)) for number in range(3)}
    log.drop_commits(range(3))
    with pytest.raises(ObjectMissingError, match="commits from version 2 on") as caught:
        log.prove()
    assert caught.value.key == log_key(2)
    log.put(log_key(2), gone[2])
    assert log.prove() == log.states[-1]


@pytest.mark.parametrize("wrong", ["table", "version", "newer", "damaged"])
def test_a_stored_proof_that_is_of_something_else_is_passed_over(
    log: Log, tmp_path: Path, wrong: str
) -> None:
    """It is of another table, of another or a later version, or unreadable."""
    other = Log(tmp_path / "other", created=[described(id="another")])
    other.ship(3)
    stored = {
        "table": (2, encode(other.states[2])),
        "version": (2, encode(log.states[3])),
        "newer": (3, encode(log.states[3])),
        "damaged": (2, b"x"),
    }
    version, data = stored[wrong]
    log.put(key_of(version), data)
    log.put(key_of(1), encode(log.states[1]))
    log.drop_commits(range(1))
    assert log.prove(2) == log.states[2]


def test_a_proof_in_memory_is_of_the_version_or_below(log: Log) -> None:
    """An older version is proved by itself; the newest known one below it saves the rest."""
    cache = ProofCache()
    assert log.prove(cache=cache) == log.states[-1]
    assert log.prove(1, cache=cache) == log.states[1]
    log.store.calls.clear()
    assert log.prove(1, cache=cache) == log.states[1]
    assert log.store.calls["get"] == 1  # its own commit: is it still the proved one
    log.ship()
    log.store.calls.clear()
    assert log.prove(cache=cache) == log.states[-1]
    assert log.store.calls["get"] == 2
    cache.forget()
    assert cache.nearest(("t", "table"), 9) is None


def test_the_newest_proofs_of_the_tables_used_last_are_kept() -> None:
    """Four versions of each of 64 tables."""
    cache = ProofCache()
    for version in (5, 1, 2, 3, 4):
        cache.put(("t", "id"), Provenance(version=version))
    assert [cache.nearest(("t", "id"), one) is None for one in (1, 2)] == [True, False]
    for number in range(64):
        cache.put((f"{number}", "id"), Provenance(version=1))
        if number == 0:
            cache.put(("t", "id"), Provenance(version=6))
    assert cache.nearest(("0", "id"), 9) is None
    assert cache.nearest(("t", "id"), 9) is not None


@pytest.mark.parametrize("count", [1, 3, 4, 128, 129, 130])
def test_every_commit_is_looked_at_however_many_there_are(
    log: Log, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """They are fetched in parallel in bounded groups; the last one of a group is checked, too."""
    monkeypatch.setattr(proofs, "_THREADS", 16)
    log.ship(count - 1)
    read = [version for version, _ in proofs._commits(log.store, 4, 2 + count)]
    assert read == list(range(4, 3 + count))
    assert log.prove().version == 2 + count


@pytest.mark.parametrize("foreign", [4, 5, 6])
def test_no_commit_of_a_rival_is_left_out(log: Log, foreign: int) -> None:
    """Each commit from the checked version to the newest may be foreign."""
    for version in range(4, 7):
        rows = body([add(entry(90, 99)), {"commitInfo": {}}]) if version == foreign else body([])
        log.put(log_key(version), rows)
    cache = ProofCache()
    log.prove(cache=cache)
    with pytest.raises(TableMismatchError) as caught:
        refuse_foreign(replace(log.snapshot(), version=6), log.store, cache=cache)
    assert caught.value.version == foreign
    refuse_foreign(replace(log.snapshot(), version=foreign - 1), log.store, cache=cache)


def test_a_log_that_was_rewritten_is_not_gone_on_with(log: Log) -> None:
    """The commit that was proved last has changed since; in memory or in a stored proof."""
    cache = ProofCache()
    log.prove(2, cache=cache)
    log.put(key_of(2), encode(log.states[2]))
    path = log.store.config.root / log_key(2)
    path.write_bytes(path.read_bytes().replace(b'"WRITE"', b'"OTHER"'))
    for known in (cache, ProofCache()):
        with pytest.raises(TableMismatchError, match="log was rewritten"):
            log.prove(cache=known)


def test_a_proof_is_of_files_that_the_version_lists(log: Log) -> None:
    """A base proof of the same version is compared as well."""
    cache = ProofCache()
    log.prove(cache=cache)
    listed = log.snapshot()
    object.__setattr__(listed, "files", listed.files[1:])
    for known in (cache, ProofCache()):
        with pytest.raises(TableMismatchError, match="does not list"):
            prove(listed, log.store, cache=known)


def test_an_offset_is_an_offset_after_it_was_stored(log: Log) -> None:
    """Ranges are offsets again after they were stored."""
    found = decode(encode(log.states[-1]), "k").ranges[0]
    assert (found.start, found.end, len(found)) == (Offset(0), Offset(30), 30)
