"""A copy of a table's log is the log, fetched once and brought forward; see log_copy.py.

What the store does not list unchanged is never taken from the copy.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    CorruptDataError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    StaleColdEndError,
    TableRolledBackError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.faulty_store import Fault, FaultyStore
from simkit.tier.lab import CLUSTER, TierLab, cut_of
from tiering.proof.proofs import prove
from tiering.read.certify import certify_counts
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo
from tiering.table import log_copy
from tiering.table.delta_log import commit_digest, log_key
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.log_copy import fetch_log
from tiering.table.table import TableSnapshot

_CHECKPOINT = "_delta_log/00000000000000000003.checkpoint.parquet"
_ELSEWHERE = StoreConfig.from_env("s3://bucket/table", {})


class Remote(FaultyStore):
    """A folder that calls itself a table in S3, and notes what is fetched."""

    def __init__(self, lab: TierLab, *, etags: str = "md5") -> None:
        super().__init__(lab.table.store)
        self.fetched: Counter[str] = Counter()
        self.before_puts: list[Callable[[], object]] = []  # each is called before one PUT
        self._etags = etags

    @property
    def config(self) -> StoreConfig:
        """Of S3."""
        return _ELSEWHERE

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """See the port."""
        self.fetched[key] += 1
        return super().get(key, start, end)

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """See the port."""
        if self.before_puts:
            self.before_puts.pop(0)()
        stored = super().put_if_absent(key, body, crc32c=crc32c)
        return None if stored is None else self._named(stored)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See the port; an ETag changes with the bytes."""
        return map(self._named, super().list(prefix, start_after=start_after))

    def _named(self, one: ObjectInfo) -> ObjectInfo:
        if self._etags == "none":
            return one._replace(stamp=None)
        body = (_root(self) / one.key).read_bytes()
        return one._replace(stamp=None, etag=f'"{hashlib.new(self._etags, body).hexdigest()}"')

    def requests_count(self) -> int:
        """Return how many requests were made since the last call, and begin anew."""
        count = sum(self.calls.values())
        self.calls.clear()
        self.fetched.clear()
        return count

    def of_the_log(self) -> dict[str, int]:
        """Return how often each file of the log was fetched."""
        return {key: n for key, n in self.fetched.items() if key.startswith("_delta_log/")}


def _root(remote: Remote) -> Path:
    return remote._store.config.root


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
    table = DeltaStreamTable(copy)
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
        DeltaStreamTable(copy).snapshot(3)
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


# ------------------------------------------------------------------------------- brought forward


def remote_table(lab: TierLab, remote: Remote) -> DeltaStreamTable:
    """Return the table for writing, as a broker has it."""
    return DeltaStreamTable(remote, stream=lab.stream, cluster=CLUSTER)


def ship_one(lab: TierLab) -> None:
    """Another process commits one more range."""
    lab.source.fill(1, 20)
    lab.ship_all()


def read_again(table: DeltaStreamTable, lab: TierLab) -> int:
    """Open and prove the newest version as a reader does; return the version."""
    newest = lab.table.snapshot().version
    snapshot = table.snapshot(newest)
    certify_counts(snapshot, cut_of(snapshot, lab.stream), table.store)
    return newest


def test_a_later_read_asks_for_listings_and_new_commits_only(lab: TierLab) -> None:
    """Two requests for an unchanged table, and one for each commit since."""
    remote = Remote(lab)
    table = DeltaStreamTable(remote)
    read_again(table, lab)
    remote.requests_count()
    read_again(table, lab)
    assert dict(remote.calls) == {"list": 2}
    for more in (1, 2):
        for _ in range(more):
            ship_one(lab)
        remote.requests_count()
        newest = read_again(table, lab)
        assert remote.of_the_log() == {
            log_key(number): 1 for number in range(newest - more + 1, newest + 1)
        }
        assert remote.requests_count() == 2 + more


def test_an_unchanged_table_is_found_and_proved_with_one_request(lab: TierLab) -> None:
    """What a broker does for each cut."""
    remote = Remote(lab)
    table = remote_table(lab, remote)
    prove(table.snapshot(), table.store)
    remote.requests_count()
    found = table.snapshot()
    prove(found, table.store)
    commit_digest(table.store, found.version)
    assert remote.requests_count() == 1


@pytest.mark.parametrize("etags", ["md5", "sha256"])
def test_a_bit_that_was_wrong_on_its_way_is_not_kept(lab: TierLab, etags: str) -> None:
    """Of a commit file that stays valid: the store's answer is asked for again, or refused."""
    lab.ship_all()
    remote = Remote(lab, etags=etags)
    remote.faults["get"].append(Fault.FLIPPED)
    with pytest.raises(RemoteTierUnavailableError, match="damaged on its way"):
        fetch_log(remote)
    copy = fetch_log(remote)
    assert copy is not None
    for key in copy.held:
        assert copy.get(key) == lab.table.store.get(key)


def test_a_wrong_bit_that_comes_late_is_not_kept(lab: TierLab) -> None:
    """Other files of one fetch have shown meanwhile that the store's ETags are no MD5."""
    lab.ship_all()
    others_have_shown = threading.Event()

    class Late(Remote):
        def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
            is_first = not self.fetched
            found = super().get(key, start, end)
            if is_first:
                others_have_shown.wait(60)
                return found[:-2] + bytes([found[-2] ^ 1]) + found[-1:]
            if self.fetched[key] == 2:
                others_have_shown.set()
            return found

    with pytest.raises(RemoteTierUnavailableError, match="damaged on its way"):
        fetch_log(Late(lab, etags="sha256"))


@pytest.mark.parametrize(("etags", "gets"), [("md5", 1), ("sha256", 2)])
def test_an_append_is_six_requests(lab: TierLab, etags: str, gets: int) -> None:
    """The object, its read-back, the commit, a listing that shows it, a last look, the ledger.

    Only an ETag that is the MD5 of our bytes shows them; else the commit is read back as well.
    """
    remote = Remote(lab, etags=etags)
    shipper = lab.shipper(table=remote_table(lab, remote))
    lab.source.fill(2, 20)
    shipper.run_cycle()
    remote.requests_count()
    shipper.run_cycle()
    assert dict(remote.calls) == {"put": 3, "get": gets, "list": 1, "head": 1}
    found = lab.table.snapshot()
    assert found.cold_end(0) == 100
    proof = prove(found, lab.table.store)
    assert proof.files[found.files[-1].path].etag == remote._named(_info(found)).etag


def _info(snapshot: TableSnapshot) -> ObjectInfo:
    return ObjectInfo(snapshot.files[-1].path, snapshot.files[-1].size_bytes)


def test_a_commit_that_the_store_holds_with_other_bytes_is_found(lab: TierLab) -> None:
    """The PUT was answered; the listing has another object under its key, of the same size."""

    class Damaging(Remote):
        def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
            stored = super().put_if_absent(key, body, crc32c=crc32c)
            if key == log_key(4):
                path = _root(self) / key
                path.write_text(path.read_text().replace("appId", "appIx"))
            return stored

    shipper = lab.shipper(table=remote_table(lab, Damaging(lab)))
    lab.source.fill(1, 20)
    with pytest.raises(CorruptDataError):
        shipper.run_cycle()


def test_a_table_is_created_with_one_put(tmp_path: Path) -> None:
    """Two listings see that there is none yet, and one sees the new one."""
    lab = TierLab(tmp_path / "new")
    remote = Remote(lab)
    made = remote_table(lab, remote).create()
    assert dict(remote.calls) == {"list": 3, "put": 1}
    assert lab.table.snapshot().table_id == made.table_id
    again = Remote(lab)
    assert remote_table(lab, again).create().table_id == made.table_id
    assert dict(again.calls) == {"list": 1, "get": 1}


def test_of_two_creators_one_wins(tmp_path: Path) -> None:
    """The second has seen no table; it finds the first one's."""
    lab = TierLab(tmp_path / "new")
    remote = Remote(lab)
    remote.before_puts = [lab.table.create]
    made = remote_table(lab, remote).create()
    assert made == replace(lab.table.snapshot(), uri=made.uri)
    assert made.version == 0


def test_a_log_without_its_first_commit_is_a_table_all_the_same(lab: TierLab) -> None:
    """As a clean-up leaves it: nothing is created on top of a checkpoint."""
    lab.table.checkpoint()
    remote = Remote(lab)
    library = remote_table(lab, remote)._library
    for number in range(3):
        (folder_of(lab) / f"{number:020}.json").unlink()
    assert library.create(ROW_SCHEMA, partition_by=["partition"], name=None, properties={}) is False
    assert not (folder_of(lab) / f"{0:020}.json").exists()


def test_of_two_writers_on_copies_one_wins_each_version(lab: TierLab) -> None:
    """The second finds its version taken, takes the winner's commit over and commits on it."""
    tables = [remote_table(lab, Remote(lab)) for _ in range(2)]
    shippers = [lab.shipper(table=table) for table in tables]
    for table in tables:
        table.snapshot()
    lab.source.fill(2, 20)
    shippers[0].run_cycle()
    with pytest.raises(StaleColdEndError):
        tables[1].commit(
            replace(lab.table.snapshot(3), uri=tables[1].uri),
            [], {0: OffsetRange(Offset(60), Offset(80))}, commit_id="x", ranges_json="[]",
        )  # fmt: skip
    shippers[1].run_cycle()
    assert {one.snapshot().cold_end(0) for one in (*tables, lab.table)} == {100}


def test_a_commit_without_an_answer_is_found_by_the_next_cycle(lab: TierLab) -> None:
    """It may be in the store or not; the copy knows nothing of it until it is listed."""
    for fault in (Fault.ANSWER_LOST, Fault.REFUSED):
        remote = Remote(lab)
        shipper = lab.shipper(table=remote_table(lab, remote))
        shipper.run_cycle()
        lab.source.fill(1, 20)
        remote.faults["put"].extend([None, fault])  # the object, the commit
        with pytest.raises(RemoteTierUnavailableError):
            shipper.run_cycle()
        while shipper.run_cycle():
            pass
        snapshot = lab.table.snapshot()
        assert snapshot.cold_end(0) == lab.source.log_end
        certify_counts(snapshot, cut_of(snapshot, lab.stream), lab.table.store)


def test_a_log_that_was_cut_is_rolled_back_for_a_copy_too(lab: TierLab) -> None:
    """The newest commit is gone; the copy still has it, and must not show it."""
    table = remote_table(lab, Remote(lab))
    newest = table.snapshot().version
    (folder_of(lab) / f"{newest:020}.json").unlink()
    for _ in range(2):
        with pytest.raises(TableRolledBackError):
            table.find()
    with pytest.raises(ObjectMissingError):
        table.snapshot(newest)


def test_a_rewritten_commit_is_another_log_for_a_copy_too(lab: TierLab) -> None:
    """Below the newest version, and of the same length: only the listing tells."""
    remote = Remote(lab)
    table = remote_table(lab, remote)
    read_again(table, lab)
    path = folder_of(lab) / "00000000000000000002.json"
    text = path.read_text()
    path.write_text(text.replace('numRecords\\": 20', 'numRecords\\": 21'))
    assert path.read_text() != text
    remote.requests_count()
    with pytest.raises(CorruptDataError):
        read_again(table, lab)
    assert remote.fetched[log_key(2)] == 1


def test_a_table_in_place_of_another_is_read_anew(lab: TierLab, tmp_path: Path) -> None:
    """The same versions with other commits: none of them comes from the copy."""
    remote = Remote(lab)
    table = DeltaStreamTable(remote)
    read_again(table, lab)
    other = TierLab(tmp_path / "other", stream=replace(lab.stream, uuid=StreamUuid(str(uuid4()))))
    other.source.fill(3, 10)
    other.ship_all()
    shutil.rmtree(folder_of(lab).parent)
    shutil.copytree(folder_of(other).parent, folder_of(lab).parent)
    assert table.snapshot(3).stream_uuid == other.stream.uuid


def test_a_deleted_object_is_missed_by_a_later_read(lab: TierLab) -> None:
    """As after a VACUUM by another program: the log is unchanged, an object is gone."""
    table = DeltaStreamTable(Remote(lab))
    read_again(table, lab)
    (folder_of(lab).parent / lab.table.snapshot().files[0].path).unlink()
    with pytest.raises(ObjectMissingError):
        read_again(table, lab)


def test_a_log_that_was_cleaned_up_is_fetched_again(lab: TierLab) -> None:
    """Commits below a checkpoint are gone, as another tool leaves it: the same rows."""
    remote = Remote(lab)
    table = DeltaStreamTable(remote)
    before = table.snapshot(3)
    lab.table.checkpoint()
    for number in range(3):
        (folder_of(lab) / log_key(number).rpartition("/")[2]).unlink()
    remote.requests_count()
    assert table.snapshot(3).files == before.files
    assert set(remote.of_the_log()) == {
        log_key(3),
        "_delta_log/00000000000000000003.checkpoint.parquet",
    }
    ship_one(lab)
    remote.requests_count()
    assert table.snapshot(4).version == 4
    assert remote.of_the_log() == {log_key(4): 1}


def test_a_long_copy_begins_at_a_newer_checkpoint(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings begin at the copy's checkpoint, so they stay short; files it has are kept."""
    monkeypatch.setattr(log_copy, "_COMMITS_MAX", 3)
    remote = Remote(lab)
    first = fetch_log(remote, 3)
    lab.table.checkpoint()
    ship_one(lab)
    remote.requests_count()
    second = fetch_log(remote, known=first)
    assert second is not None
    assert (second.base, second.version) == (3, 4)
    assert set(remote.of_the_log()) == {
        log_key(4),
        "_delta_log/00000000000000000003.checkpoint.parquet",
    }
    third = fetch_log(remote, known=second)
    assert third is not None
    assert third.folder == second.folder
    old = fetch_log(remote, 2, known=third)
    assert old is not None
    assert (old.base, old.version) == (-1, 2)


@pytest.mark.parametrize("how", ["no ETags", "an emptied folder"])
def test_what_cannot_be_compared_is_fetched_again(lab: TierLab, how: str) -> None:
    """A store without ETags, or a temporary folder that something else has emptied."""
    remote = Remote(lab, etags="none" if how == "no ETags" else "md5")
    first = fetch_log(remote)
    assert first is not None
    if how == "an emptied folder":
        shutil.rmtree(first.folder)
        assert first.get(log_key(1)) == remote.get(log_key(1))
    remote.requests_count()
    second = fetch_log(remote, known=first)
    assert second is not None
    assert remote.of_the_log() == {log_key(number): 1 for number in range(4)}


def test_an_answer_that_was_cut_short_does_not_stay_in_the_copy(lab: TierLab) -> None:
    """A proxy may end a body early and say so itself: the listing has the object's true size.

    The copy would count as the log, and every later use of the table would fail, until a restart.
    """
    remote = Remote(lab)
    table = DeltaStreamTable(remote)
    table.snapshot()
    ship_one(lab)
    remote.faults["get"].append(Fault.TRUNCATED)
    with pytest.raises(RemoteTierUnavailableError, match="cut short"):
        table.snapshot()
    assert table.snapshot().version == lab.table.snapshot().version
