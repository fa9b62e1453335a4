"""Any damage to a table is named by a typed error, and never served or skipped.

Each case ships five segments, damages the table in one way, and asks the reader, the cheap
certificate and the full verification. OPTIMIZE and VACUUM by others are no damage.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    CorruptDataError,
    GapError,
    ObjectCorruptError,
    ObjectMissingError,
    OffsetOutOfRangeError,
    OverlapError,
    StreamRecreatedError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.lab import TierLab, cut_of, read_table
from simkit.tier.source import make_stream
from tiering.read.certify import certify_counts
from tiering.read.lake import Lake
from tiering.read.verify import verify_table
from tiering.ship.shipper import PartitionShipper
from tiering.table.ledger import ledger_key
from tiering.table.table import TableSnapshot

pytestmark = pytest.mark.slow

EACH = 40
COUNT = 5
END = EACH * COUNT


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A stream of 200 records, all of it cold, in five files."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(COUNT, EACH)
    lab.ship_all()
    return lab


def root(lab: TierLab) -> Path:
    """Return the table's folder."""
    return lab.table.store.config.root


def files(lab: TierLab) -> list[Path]:
    """Return the data files on disk, by first offset."""
    return sorted(root(lab).glob("partition=0/*.parquet"))


def commits(lab: TierLab) -> list[Path]:
    """Return the commit files on disk, oldest first."""
    return sorted(root(lab).glob("_delta_log/*.json"))


def certify(lab: TierLab, snapshot: TableSnapshot | None = None) -> list[int]:
    """Run the cheap certificate over the newest version; return the counts."""
    snapshot = snapshot if snapshot is not None else lab.table.snapshot()
    proofs, files_count, files_bytes = certify_counts(
        snapshot, cut_of(snapshot, lab.stream), lab.table.store
    )
    assert (files_count, files_bytes) == (len(snapshot.files), snapshot.files_bytes)
    return [proof.cold_count for proof in proofs]


def fresh(lab: TierLab) -> None:
    """Empty the table's cache, as in a new process."""
    lab.table = lab.lake.table(lab.stream)


# ----------------------------------------------------------------------------------- no damage


def test_an_untouched_table_is_read_certified_and_verified(lab: TierLab) -> None:
    """The rows are the log's rows, in order, bit for bit."""
    assert read_table(lab.table, 0).equals(lab.source.truth())
    assert certify(lab) == [END]
    proof = verify_table(lab.table.snapshot(), lab.table.store)[0]
    assert (proof.start, proof.end, proof.cold_count) == (0, END, END)
    assert proof.digest is not None


def test_any_part_of_the_range_is_read_exactly(lab: TierLab) -> None:
    """Starts and ends inside files, at their bounds, and empty ranges."""
    for start, end in ((0, 1), (39, 41), (40, 80), (13, 187), (199, 200), (77, 77), (0, 0)):
        wanted = OffsetRange(Offset(start), Offset(end))
        assert read_table(lab.table, 0, wanted).equals(lab.source.truth(start, end))


def test_only_the_files_of_the_range_are_fetched(lab: TierLab) -> None:
    """Reading one segment's offsets touches one object."""
    snapshot = lab.table.snapshot()
    lab.store.calls.clear()
    read_table(lab.table, 0, OffsetRange(Offset(45), Offset(50)))
    assert lab.store.calls["get"] == 1
    assert snapshot.files[1].min_offset == 40


def test_a_range_that_is_not_cold_is_refused(lab: TierLab) -> None:
    """The reader never gives less than was asked for."""
    with pytest.raises(OffsetOutOfRangeError):
        read_table(lab.table, 0, OffsetRange(Offset(0), Offset(END + 1)))
    with pytest.raises(OffsetOutOfRangeError):
        read_table(lab.table, 7, OffsetRange(Offset(0), Offset(1)))


@pytest.mark.parametrize("lost", [1, 2, COUNT + 1], ids=["last", "last two", "all"])
def test_a_table_that_was_rolled_back_is_named_at_every_try(lab: TierLab, lost: int) -> None:
    """A running uploader, with more to ship, never calls it anything else, and never goes on."""
    shipper = lab.shipper()
    lab.ship_all(shipper)
    for commit in commits(lab)[-lost:]:
        commit.unlink()
    require_never_shipped(lab, shipper)


def test_a_roll_back_of_somebody_elses_commit_is_named_at_every_try(lab: TierLab) -> None:
    """A foreign OPTIMIZE is undone: no row of ours is missing, but other changes may be.

    Only a new process, which an operator started, ships again.
    """
    shipper = lab.shipper()
    lab.ship_all(shipper)
    assert DeltaTable(lab.table.uri).optimize.compact()["numFilesRemoved"] == COUNT
    lab.source.fill(1, EACH)
    lab.ship_all(shipper)
    for commit in commits(lab)[-2:]:
        commit.unlink()
    require_never_shipped(lab, shipper)


def test_a_roll_back_of_optimize_alone_is_named_at_every_try(lab: TierLab) -> None:
    """The error comes even though every row of ours is still there."""
    shipper = lab.shipper(table=lab.table)
    lab.ship_all(shipper)
    assert DeltaTable(lab.table.uri).optimize.compact()["numFilesRemoved"] == COUNT
    assert len(lab.table.snapshot().files) == 1
    commits(lab)[-1].unlink()
    require_never_shipped(lab, shipper)
    assert lab.ship_all(lab.shipper()).cold_end(0) == lab.source.log_end


def require_never_shipped(lab: TierLab, shipper: PartitionShipper) -> None:
    """More records come; each try says what happened to the table, and none adds to it."""
    before = commits(lab)
    lab.source.fill(1, EACH)
    for _ in range(3):
        with pytest.raises(TableRolledBackError):
            shipper.run_cycle()
    assert commits(lab) == before


def test_optimize_and_vacuum_by_others_change_no_proof(lab: TierLab) -> None:
    """Compaction rewrites files, vacuum removes the old ones; rows, counts and digests stay."""
    before = verify_table(lab.table.snapshot(), lab.table.store)
    plain = DeltaTable(lab.table.uri)
    assert plain.optimize.compact()["numFilesRemoved"] == COUNT
    removed = DeltaTable(lab.table.uri).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert len(removed) >= COUNT
    assert not any("_headwater" in path for path in removed)
    fresh(lab)
    assert len(lab.table.snapshot().files) == 1
    assert read_table(lab.table, 0).equals(lab.source.truth())
    assert certify(lab) == [END]
    assert verify_table(lab.table.snapshot(), lab.table.store) == before
    lab.source.fill(1, EACH)
    assert lab.ship_all().cold_end(0) == END + EACH


def test_z_order_interleaves_files_and_reads_stay_exact(tmp_path: Path) -> None:
    """Rows sorted by another column and cut into files: overlapping ranges are merged by offset."""
    lab = TierLab(tmp_path)
    lab.source.fill(4, 3_000)
    lab.ship_all()
    table = DeltaTable(lab.table.uri)
    table.optimize.z_order(["value"], target_size=20_000)
    fresh(lab)
    snapshot = lab.table.snapshot()
    spans = [(one.min_offset or 0, one.end_offset or 0) for one in snapshot.files]
    assert any(low < high for (_, high), (low, _) in itertools.pairwise(spans))
    assert read_table(lab.table, 0).equals(lab.source.truth())
    wanted = OffsetRange(Offset(2_900), Offset(6_100))
    assert read_table(lab.table, 0, wanted).equals(lab.source.truth(2_900, 6_100))
    assert certify(lab) == [12_000]
    verify_table(snapshot, lab.table.store)


def test_windows_bound_the_memory_of_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge larger than its window goes over the row groups several times, with equal result."""
    lab = TierLab(tmp_path)
    lab.source.fill(2, 5_000)
    lab.ship_all()
    DeltaTable(lab.table.uri).optimize.z_order(["value"], target_size=20_000)
    fresh(lab)
    monkeypatch.setattr("tiering.read.reader._WINDOW_BYTES", 1)
    assert read_table(lab.table, 0).equals(lab.source.truth())


def test_a_plain_delta_reader_sees_every_row_once(lab: TierLab) -> None:
    """delta-rs without Headwater reads the same rows."""
    rows = pa.table(DeltaTable(lab.table.uri).to_pyarrow_table()).sort_by("offset")
    assert rows.select(ROW_SCHEMA.names).cast(ROW_SCHEMA).equals(lab.source.truth())


# ------------------------------------------------------------------------------------- damage


def test_a_deleted_object_is_named(lab: TierLab) -> None:
    """Reader, certificate and verification all say which object is gone."""
    victim = files(lab)[2]
    victim.unlink()
    for ask in (lambda: read_table(lab.table, 0), lambda: certify(lab),
                lambda: verify_table(lab.table.snapshot(), lab.table.store)):  # fmt: skip
        with pytest.raises(ObjectMissingError) as caught:
            ask()
        assert caught.value.key == f"partition=0/{victim.name}"


def test_a_truncated_object_is_named(lab: TierLab) -> None:
    """A shorter object does not give fewer rows."""
    victim = files(lab)[1]
    victim.write_bytes(victim.read_bytes()[:-100])
    for ask in (lambda: read_table(lab.table, 0), lambda: certify(lab)):
        with pytest.raises(ObjectCorruptError) as caught:
            ask()
        assert caught.value.key == f"partition=0/{victim.name}"


def test_every_flipped_byte_is_found_by_verification(lab: TierLab) -> None:
    """One flipped bit anywhere in an object is found; a read is exact, or a typed error."""
    victim = files(lab)[0]
    good = victim.read_bytes()
    for position in range(0, len(good), 41):
        damaged = bytearray(good)
        damaged[position] ^= 0x04
        victim.write_bytes(bytes(damaged))
        with pytest.raises(ObjectCorruptError) as caught:
            verify_table(lab.table.snapshot(), lab.table.store)
        assert caught.value.key == f"partition=0/{victim.name}"
        try:
            rows = read_table(lab.table, 0)
        except CorruptDataError:
            continue
        assert rows.equals(lab.source.truth())


def test_a_swapped_object_is_found_by_verification(lab: TierLab) -> None:
    """Another valid Parquet file of the same size and offsets has other digests."""
    victim = files(lab)[0]
    rows = pq.read_table(victim)
    values = pa.array([b"x" * EACH] * EACH, pa.binary())
    forged = rows.set_column(
        rows.schema.get_field_index("value"), rows.schema.field("value"), values
    )
    pq.write_table(forged, victim)
    entry = commits(lab)[1]
    entry.write_text(
        "\n".join(_resized(line, victim.stat().st_size) for line in entry.read_text().splitlines())
    )
    fresh(lab)
    with pytest.raises(TableMismatchError):  # the object differs from its committed checksum
        certify(lab)
    with pytest.raises(ObjectCorruptError):
        verify_table(lab.table.snapshot(), lab.table.store)
    # And under another name, where no checksum of the object is known:
    renamed = victim.rename(victim.with_name("part-0.parquet"))
    entry.write_text(entry.read_text().replace(victim.name, renamed.name))
    fresh(lab)
    with pytest.raises(ObjectCorruptError, match="digest"):
        verify_table(lab.table.snapshot(), lab.table.store)


def _resized(line: str, size: int) -> str:
    action = json.loads(line)
    if "add" in action:
        action["add"]["size"] = size
    return json.dumps(action)


def test_a_removed_last_commit_is_a_rolled_back_table(lab: TierLab) -> None:
    """The table looks whole but old; the known commits prove that it was rolled back."""
    snapshot = lab.table.snapshot()
    cut = cut_of(snapshot, lab.stream)
    commits(lab)[-1].unlink()
    fresh(lab)
    assert lab.table.snapshot().cold_end(0) == END - EACH
    with pytest.raises(TableRolledBackError) as caught:
        lab.table.find(cold_end_min={0: END})
    assert (caught.value.expected, caught.value.found) == (END, END - EACH)
    with pytest.raises(ObjectMissingError) as missing:
        lab.table.snapshot(cut.table_version)
    assert missing.value.key == f"_delta_log/{cut.table_version:020}.json"


def test_a_removed_last_commit_is_noticed_by_a_table_that_was_open(lab: TierLab) -> None:
    """A cached version that vanished is not built upon."""
    lab.table.snapshot()
    commits(lab)[-1].unlink()
    with pytest.raises(TableRolledBackError):
        lab.table.find(cold_end_min={0: END})


def test_a_removed_last_commit_stops_the_uploader(lab: TierLab) -> None:
    """The ledger proves what was committed, so a restarted uploader does not ship over it."""
    commits(lab)[-1].unlink()
    lab.source.fill(1, EACH)
    for _ in range(2):
        shipper = lab.shipper()
        with pytest.raises(TableRolledBackError):
            shipper.run_cycle()
    lab.source.recorded.clear()  # even if the metadata was lost as well
    with pytest.raises(TableRolledBackError, match="were committed to it before") as caught:
        lab.shipper().run_cycle()
    assert (caught.value.expected, caught.value.found) == (END, END - EACH)


def test_a_removed_commit_in_the_middle_is_named(lab: TierLab) -> None:
    """The log has a hole: the missing commit's key is in the error."""
    victim = commits(lab)[2]
    victim.unlink()
    fresh(lab)
    with pytest.raises(ObjectMissingError) as caught:
        lab.table.snapshot()
    assert caught.value.key == f"_delta_log/{victim.name}"


def test_a_removed_table_is_a_rolled_back_table(lab: TierLab) -> None:
    """A table that vanished as a whole is not created again over its ledger."""
    shutil.rmtree(root(lab) / "_delta_log")
    lab.source.recorded.clear()
    with pytest.raises(TableRolledBackError):
        lab.shipper().run_cycle()


def test_rows_appended_by_a_stranger_are_named(lab: TierLab) -> None:
    """A blind append beyond the cold end: rows that the broker never committed."""
    stranger = lab.source.truth(0, 5)
    above = stranger.set_column(1, ROW_SCHEMA.field("offset"), pa.array(range(1000, 1005)))
    write_deltalake(lab.table.uri, above, mode="append")
    fresh(lab)
    with pytest.raises(TableMismatchError):
        certify(lab)
    with pytest.raises(TableMismatchError):
        verify_table(lab.table.snapshot(), lab.table.store)
    assert read_table(lab.table, 0).equals(lab.source.truth())  # none of them is in the range


def test_rows_doubled_by_a_stranger_are_named(lab: TierLab) -> None:
    """A blind append of offsets that are there already: OverlapError with the range."""
    write_deltalake(lab.table.uri, lab.source.truth(50, 60), mode="append")
    fresh(lab)
    for ask in (lambda: read_table(lab.table, 0), lambda: certify(lab)):
        with pytest.raises(OverlapError) as caught:
            ask()
        assert caught.value.start == 50


def test_rows_deleted_by_a_stranger_are_a_gap(lab: TierLab) -> None:
    """A DELETE in the middle, at the front and at the end: GapError names the range."""
    for condition, start, end in (("offset >= 70 and offset < 75", 70, 75), ("offset < 3", 0, 3),
                                  ("offset >= 197", 197, 200)):  # fmt: skip
        copy = TierLab(root(lab).parent.parent.parent / f"copy-{start}")
        copy.source.fill(COUNT, EACH)
        copy.ship_all()
        DeltaTable(copy.table.uri).delete(condition)
        fresh(copy)
        for ask in (lambda: read_table(copy.table, 0), lambda: certify(copy)):  # noqa: B023
            with pytest.raises(GapError) as caught:
                ask()
            assert (caught.value.start, caught.value.end) == (start, end)


def test_a_whole_file_deleted_by_a_stranger_is_a_gap(lab: TierLab) -> None:
    """Removing a file's add action leaves a hole between files."""
    DeltaTable(lab.table.uri).delete("offset >= 40 and offset < 80")
    fresh(lab)
    with pytest.raises(GapError) as caught:
        certify(lab)
    assert (caught.value.start, caught.value.end) == (40, 80)


def test_a_table_of_another_incarnation_is_refused(lab: TierLab) -> None:
    """Another stream's table under our name is neither read as ours nor appended to."""
    other = make_stream(uuid="11111111-2222-3333-4444-555555555555")
    table = lab.lake.table(other)
    for ask in (table.find, table.create, table.snapshot):
        with pytest.raises(TableMismatchError):
            ask()
    snapshot = lab.table.snapshot()
    with pytest.raises(StreamRecreatedError):
        certify_counts(snapshot, cut_of(snapshot, other), lab.table.store)
    with pytest.raises(TableMismatchError):
        Lake(lab.store, cluster="twin").table(lab.stream).find()


def test_a_table_that_is_not_ours_is_refused(lab: TierLab) -> None:
    """A foreign Delta table at the place says so by name."""
    place = root(lab).parent / "foreign"
    write_deltalake(str(place), pa.table({"a": [1]}))
    with pytest.raises(TableMismatchError, match="not a table of Headwater"):
        lab.lake.table_at(str(place)).snapshot()


def _use_features(lab: TierLab, reader: list[str], *more: dict[str, Any]) -> None:
    """Let the last commit switch features on, and have more actions."""
    last = commits(lab)[-1]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": reader,
        "writerFeatures": reader,
    }
    actions = [json.dumps(one) for one in ({"protocol": protocol}, *more)]
    last.write_text("\n".join([last.read_text(), *actions, ""]))
    fresh(lab)


def test_a_table_with_deletion_vectors_is_refused(lab: TierLab) -> None:
    """They hide rows of files: counts would lie. Also where the vector cannot be read."""
    found = [json.loads(line) for line in commits(lab)[-1].read_text().splitlines()]
    (add,) = [one["add"] for one in found if "add" in one]
    vector = {
        "storageType": "u", "pathOrInlineDv": "2++BKlrD>MOYkm+N99u=", "offset": 1,
        "sizeInBytes": 34, "cardinality": 1,
    }  # fmt: skip
    _use_features(lab, ["deletionVectors"], {"add": {**add, "deletionVector": vector}})
    with pytest.raises(TableMismatchError, match="RESTORE") as caught:
        lab.table.snapshot()
    assert caught.value.features == ["deletionVectors"]


def test_a_table_that_may_have_deletion_vectors_and_has_none_is_read(lab: TierLab) -> None:
    """The property `delta.enableDeletionVectors` changes no row, and records are shipped."""
    end = lab.table.snapshot().cold_end(0)
    _use_features(lab, ["deletionVectors"])
    assert certify(lab) == [end]
    lab.source.fill(1, 20)
    lab.ship_all()
    assert certify(lab) == [end + 20]


@pytest.mark.parametrize("feature", ["columnMapping", "typeWidening"])
def test_a_table_whose_files_mean_something_else_is_refused(lab: TierLab, feature: str) -> None:
    """The features of a table say so, and the error says how they are removed."""
    _use_features(lab, [feature])
    with pytest.raises(TableMismatchError, match="DROP FEATURE"):
        lab.table.snapshot()


def test_a_lost_ledger_entry_fails_verification(lab: TierLab) -> None:
    """Without its ledger entry a range cannot be proved."""
    (root(lab) / ledger_key(0, 80)).unlink()
    with pytest.raises(GapError, match="ledger") as caught:
        verify_table(lab.table.snapshot(), lab.table.store)
    assert (caught.value.start, caught.value.end) == (80, 120)


def test_a_damaged_ledger_entry_is_named(lab: TierLab) -> None:
    """A ledger object that does not parse, or is about another range, is an error by key."""
    entry = root(lab) / ledger_key(0, 80)
    good = entry.read_text()
    for bad in ("", "[]", good.replace('"start": 80', '"start": 81'), good[:-20],
                good.replace('"end": 120', '"end": 10')):  # fmt: skip
        entry.write_text(bad)
        with pytest.raises(ObjectCorruptError):
            verify_table(lab.table.snapshot(), lab.table.store)
