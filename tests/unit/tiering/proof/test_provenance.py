"""A table version is ours, commit by commit, or it is refused by version, operation and author.

Every foreign change here is made with delta-rs, as any other program might, or by editing the
folder's files. Each is checked by a process that knew the table before, and by a new one.

The file is not split: it is a list of commits by other hands, each refused or let through.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.schema import Field as DeltaField
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    CorruptDataError,
    ForeignHistoryError,
    ObjectCorruptError,
    TableMismatchError,
)
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.lab import TickingClock, TierLab, certify, cut_of, forget_proofs
from simkit.tier.source import MemoryTierCatalog
from tiering.proof.proofs import decode, encode, prove
from tiering.read.certify import certify_counts, require_sound
from tiering.table.delta_log import commit_digest
from tiering.table.table import transaction_id
from tiering.tiering import Tiering

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forgetful")]

EACH = 40
COUNT = 3
END = EACH * COUNT


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A stream of 120 records, all of it cold, in three files."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(COUNT, EACH)
    lab.ship_all()
    forget_proofs()  # a reader does not have the uploader's proofs
    return lab


def root(lab: TierLab) -> Path:
    """Return the table's folder."""
    return lab.table.store.config.root


def test_a_cut_is_of_the_commit_that_made_its_version(lab: TierLab) -> None:
    """In a table that was put back and written to, the same version number is another commit."""
    snapshot, store = lab.table.snapshot(), lab.table.store
    cut = cut_of(snapshot, lab.stream)
    digest = commit_digest(store, snapshot.version)
    certify_counts(snapshot, replace(cut, table_digest=digest), store)
    with pytest.raises(ForeignHistoryError, match="replaced by an older copy"):
        certify_counts(snapshot, replace(cut, table_digest="0" * 64), store)


def rewritten(lab: TierLab, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """Return all rows with a change, to be written back as by another program."""
    rows = pa.table(DeltaTable(lab.table.uri).to_pyarrow_table()).sort_by("offset")
    return change(rows.select(ROW_SCHEMA.names).cast(ROW_SCHEMA))


def with_column(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows with other values in a column."""
    at = ROW_SCHEMA.get_field_index(name)
    return rows.set_column(at, ROW_SCHEMA.field(name), values)


def exchanged(rows: pa.Table) -> pa.Table:
    """Exchange two offsets."""
    offsets = rows.column("offset").to_numpy().copy()
    offsets[[7, 8]] = offsets[[8, 7]]
    return with_column(rows, "offset", pa.array(offsets))


def update(column: str, value: str) -> Callable[[TierLab], None]:
    """Return an UPDATE of one row by delta-rs."""
    return lambda lab: (
        DeltaTable(lab.table.uri).update({column: value}, predicate="offset = 5"),
        None,
    )[1]


def merge(lab: TierLab) -> None:
    """MERGE one changed row."""
    row = with_column(lab.source.truth(5, 6), "value", pa.array([b"merged"], pa.binary()))
    table = DeltaTable(lab.table.uri)
    table.merge(row, "s.offset = t.offset", source_alias="s", target_alias="t").when_matched_update(
        {"value": "s.value"}
    ).execute()


def delete_and_insert(lab: TierLab) -> None:
    """Delete two rows and insert them with each other's offsets."""
    rows = rewritten(lab, exchanged).slice(7, 2)
    DeltaTable(lab.table.uri).delete("offset = 7 or offset = 8")
    write_deltalake(lab.table.uri, rows, mode="append")


def overwrite(lab: TierLab) -> None:
    """Write all rows again, one of them changed."""
    write_deltalake(lab.table.uri, rewritten(lab, exchanged), mode="overwrite")


def append_what_was_deleted(lab: TierLab) -> None:
    """Delete a file's rows and write the very same ones again."""
    DeltaTable(lab.table.uri).delete("offset < 40")
    write_deltalake(lab.table.uri, lab.source.truth(0, 40), mode="append")


FOREIGN = {
    "update value": (update("value", "X'00'"), "UPDATE"),
    "update timestamp": (update("timestamp", "timestamp + interval '1' hour"), "UPDATE"),
    "update epoch": (update("leader_epoch", "7"), "UPDATE"),
    "merge": (merge, "MERGE"),
    "delete and insert": (delete_and_insert, "DELETE"),
    "overwrite": (overwrite, "WRITE"),
    "append of the same": (append_what_was_deleted, "DELETE"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_change_of_equal_counts_is_named(lab: TierLab, name: str) -> None:
    """Counts and bounds are right, rows are not: the error has version, operation and author."""
    change, operation = FOREIGN[name]
    assert certify(lab) == [END]
    change(lab)
    for _ in range(2):
        with pytest.raises(TableMismatchError) as caught:
            certify(lab)
        assert (caught.value.version, caught.value.operation) == (COUNT + 1, operation)
        assert "delta-rs" in str(caught.value.author)
        forget_proofs()
    assert certify(lab, COUNT) == [END]  # the version before is as it was


def test_nothing_is_shipped_or_served_on_top_of_a_foreign_change(lab: TierLab) -> None:
    """The uploader stops before it packs, cut and read-through are refused; RESTORE mends it."""
    update("value", "X'00'")(lab)
    lab.source.fill(1, EACH)
    shipper = lab.shipper()
    objects = set(root(lab).glob("partition=0/*"))
    for _ in range(2):
        with pytest.raises(TableMismatchError, match="UPDATE"):
            shipper.run_cycle()
    assert set(root(lab).glob("partition=0/*")) == objects
    tiering = Tiering(lab.lake, catalog_of(lab), TickingClock())
    with pytest.raises(TableMismatchError, match="UPDATE"):
        tiering.table_state(lab.stream)
    with pytest.raises(TableMismatchError, match="UPDATE"):
        tiering.read(lab.stream, 0, Offset(0), Offset(10))
    DeltaTable(lab.table.uri).restore(COUNT)
    assert certify(lab) == [END]
    lab.ship_all(shipper)
    assert certify(lab) == [END + EACH]


ADDED = DeltaField("extra", PrimitiveType("string"))


@pytest.mark.parametrize("seen", [False, True], ids=["not seen", "seen by a reader"])
@pytest.mark.parametrize("which", ["delete", "another column"])
def test_a_table_that_changed_while_it_was_shipped_to_can_be_restored(
    lab: TierLab, which: str, seen: bool
) -> None:
    """The uploader knows an older version, and a reader at this broker may have seen the newest.

    A commit on top of the change would be undone by the RESTORE that the error asks for.
    """
    table = lab.lake.table(lab.stream)
    shipper = lab.shipper(table=table)
    lab.ship_all(shipper)
    if which == "delete":
        DeltaTable(lab.table.uri).delete("offset % 7 = 3")
    else:
        DeltaTable(lab.table.uri).alter.add_columns([ADDED])
    if seen:
        table.find()
    lab.source.fill(1, EACH)
    for _ in range(2):
        with pytest.raises(TableMismatchError, match=r"DELETE|ADD COLUMN") as caught:
            shipper.run_cycle()
        assert caught.value.version == COUNT + 1 == lab.table.snapshot().version
    assert lab.source.cold_end == END
    DeltaTable(lab.table.uri).restore(COUNT, protocol_downgrade_allowed=True)
    lab.ship_all(shipper)
    assert certify(lab) == [END + EACH]


def test_a_restore_to_an_older_version_is_no_undoing(lab: TierLab) -> None:
    """Only a restore to exactly the state before the change undoes it."""
    update("value", "X'00'")(lab)
    DeltaTable(lab.table.uri).restore(COUNT - 1)
    with pytest.raises(CorruptDataError):
        certify(lab)
    with pytest.raises(TableMismatchError, match="UPDATE"):
        prove(lab.table.snapshot(), lab.table.store)


def test_a_rewrite_that_says_it_changes_nothing_is_compared_with_the_ledger(lab: TierLab) -> None:
    """The commit only claims so: rows and bounds agree, so the rows are read, once."""
    rewrite(lab, exchanged)
    for _ in range(2):
        with pytest.raises(ObjectCorruptError, match="digest"):
            certify(lab)
        with pytest.raises(ObjectCorruptError, match="digest"):
            require_sound(lab.table.snapshot(), lab.table.store, 0, span(3, 12))
        forget_proofs()


def test_an_honest_rewrite_is_read_once_and_remembered(lab: TierLab) -> None:
    """OPTIMIZE by others: the rows are compared once; the next process only compares checksums."""
    DeltaTable(lab.table.uri).optimize.compact()
    requests = []
    for _ in range(2):
        lab.store.calls.clear()
        assert certify(lab) == [END]
        assert any("-contents" in path.name for path in root(lab).glob("_headwater/proof/*"))
        found = prove(lab.table.snapshot(), lab.table.store)
        assert all(one.ours and one.crc32c is not None for one in found.files.values())
        requests.append(lab.store.calls["get"])
        forget_proofs()
    assert requests[0] - requests[1] > COUNT  # as many ledger entries, and the rows


@pytest.mark.parametrize("rows", [END - 1, END + 1])
def test_a_rewrite_that_changes_the_number_of_rows_is_no_compaction(
    lab: TierLab, rows: int
) -> None:
    """Rows and bounds of each partition have to stay in a commit that changes no data."""
    rewrite(lab, lambda table: pa.concat_tables([table, table.slice(0, 1)]), told=rows)
    with pytest.raises(TableMismatchError, match="claims to change no data"):
        prove(lab.table.snapshot(), lab.table.store)


def test_one_action_that_changes_data_makes_the_commit_foreign(lab: TierLab) -> None:
    """The flag dataChange of each action counts, of removed files, too."""
    for change in ((True, False), (False, True)):
        copy = TierLab(root(lab).parents[2] / f"{change}")
        copy.source.fill(COUNT, EACH)
        copy.ship_all()
        rewrite(copy, exchanged, adds=change[0], removes=change[1])
        with pytest.raises(TableMismatchError, match="changes data"):
            prove(copy.table.snapshot(), copy.table.store)


def test_our_transactions_are_moved_by_our_commits_alone(lab: TierLab) -> None:
    """A foreign commit that moves the cold end is named, whatever else it does."""
    partition = PartitionId(lab.stream.uuid, PartitionNumber(0))
    DeltaTable(lab.table.uri).create_write_transaction(
        [], mode="append", schema=ROW_SCHEMA, partition_by=["partition"],
        commit_properties=CommitProperties(
            app_transactions=[Transaction(transaction_id("lab", partition), END + 5)]
        ),
    )  # fmt: skip
    with pytest.raises(TableMismatchError, match="moves our transactions"):
        prove(lab.table.snapshot(), lab.table.store)


def test_housekeeping_changes_no_proof(lab: TierLab) -> None:
    """Properties that are not ours, comments, VACUUM and checkpoints pass."""
    table = DeltaTable(lab.table.uri)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    table.create_checkpoint()
    assert certify(lab) == [END]
    lab.source.fill(1, EACH)
    lab.ship_all()
    assert certify(lab) == [END + EACH]


def test_our_properties_are_not_changed_by_others(lab: TierLab) -> None:
    """The properties of the table stay those of its creation."""
    DeltaTable(lab.table.uri).alter.set_table_properties(
        {"headwater.namespace": "other"}, raise_if_not_exists=False
    )
    with pytest.raises(TableMismatchError, match="properties"):
        prove(lab.table.snapshot(), lab.table.store)


# -------------------------------------------------------------------------------- the log by hand


def edited(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Change the actions of a commit file in place."""
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        change(action)
    path.write_text("\n".join(json.dumps(action) for action in actions) + "\n")


def commit_file(lab: TierLab, version: int) -> Path:
    """Return the file of a commit."""
    return root(lab) / f"_delta_log/{version:020}.json"


def exchange_stats(lab: TierLab, name: str) -> None:
    """Exchange a statistic between the files of commits 1 and 2, as a careless tool might."""
    found: dict[int, str] = {}
    for version in (1, 2):
        edited(commit_file(lab, version), lambda a: note_stats(found, version, a))  # noqa: B023
    for version, other in ((1, 2), (2, 1)):
        edited(commit_file(lab, version), lambda a: put_stats(a, found[other], name))  # noqa: B023


def note_stats(found: dict[int, str], version: int, action: dict[str, dict[str, object]]) -> None:
    """Note an add action's statistics."""
    if "add" in action:
        found[version] = str(action["add"]["stats"])


def put_stats(action: dict[str, dict[str, object]], other: str, name: str) -> None:
    """Put one statistic of another file into an add action."""
    if "add" in action:
        mine, theirs = json.loads(str(action["add"]["stats"])), json.loads(other)
        for bound in ("minValues", "maxValues"):
            mine[bound][name] = theirs[bound][name]
        action["add"]["stats"] = json.dumps(mine)


@pytest.mark.parametrize("name", ["timestamp", "offset"])
@pytest.mark.parametrize("known", [False, True])
def test_exchanged_statistics_are_named(lab: TierLab, name: str, known: bool) -> None:
    """Proved commits are not walked again, so the list of files is compared with the proof's."""
    if known:
        certify(lab)
    exchange_stats(lab, name)
    with pytest.raises(TableMismatchError):
        prove(lab.lake.table(lab.stream).snapshot(), lab.table.store)
    with pytest.raises(CorruptDataError):
        certify(lab)


def test_statistics_that_a_checkpoint_tells_differently_are_named(lab: TierLab) -> None:
    """The commits are unchanged, but Spark and delta-rs read the checkpoint."""
    exchange_stats(lab, "timestamp")
    lab.lake.table(lab.stream).checkpoint()
    exchange_stats(lab, "timestamp")  # back again
    forget_proofs()
    with pytest.raises(TableMismatchError, match="committed as"):
        prove(lab.lake.table(lab.stream).snapshot(), lab.table.store)


def test_a_log_rewritten_at_the_last_proved_version_is_not_gone_on_with(lab: TierLab) -> None:
    """The anchor differs: the same version and files, but another text."""
    certify(lab)
    edited(commit_file(lab, COUNT), lambda a: a.get("commitInfo", {}).update(userName="somebody"))
    with pytest.raises(TableMismatchError, match="rewritten"):
        certify(lab)


def test_a_table_put_in_the_place_of_another_is_proved_by_itself(tmp_path: Path) -> None:
    """The proof of a table is no proof of the next one in its folder."""
    for value in (0, 1):
        lab = TierLab(tmp_path / "lake")
        lab.source.fill(COUNT, EACH)
        lab.ship_all()
        assert certify(lab) == [END]
        if value:
            update("value", "X'00'")(lab)
            with pytest.raises(TableMismatchError, match="UPDATE"):
                certify(lab)
        shutil.rmtree(tmp_path / "lake")


def test_a_table_of_more_files_than_its_account_is_named(lab: TierLab) -> None:
    """Our commit id alone does not make a commit ours."""
    add = add_of(lab, lab.source.truth(0, 40))
    actions = commit_file(lab, COUNT).read_text().splitlines()
    commit_file(lab, COUNT).write_text("\n".join([*actions, json.dumps({"add": add})]) + "\n")
    with pytest.raises(TableMismatchError, match="other files"):
        prove(lab.table.snapshot(), lab.table.store)


def add_of(lab: TierLab, rows: pa.Table) -> dict[str, object]:
    """Write a file of these rows and return what adds it."""
    path = root(lab) / "partition=0/stranger.parquet"
    pq.write_table(rows.drop_columns(["partition"]), path)
    first = json.loads(commit_file(lab, 1).read_text().splitlines()[1])
    return {
        "path": f"partition=0/{path.name}", "partitionValues": {"partition": "0"},
        "size": path.stat().st_size, "modificationTime": 1, "dataChange": True,
        "stats": first["add"]["stats"],
    }  # fmt: skip


# ----------------------------------------------------------------------------------- the objects


def files(lab: TierLab) -> list[Path]:
    """Return the data files, by first offset."""
    return sorted(root(lab).glob("partition=0/*.parquet"))


def test_every_kind_of_flipped_byte_is_named_by_the_default_certificate(lab: TierLab) -> None:
    """The committed checksum covers every bit of an object: pages, page headers, footer."""
    victim = files(lab)[1]
    good = victim.read_bytes()
    for position in range(0, len(good), 97):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        victim.write_bytes(bytes(damaged))
        with pytest.raises(ObjectCorruptError) as caught:
            certify(lab)
        assert caught.value.key == f"partition=0/{victim.name}"
    victim.write_bytes(good)
    assert certify(lab) == [END]


def test_an_object_is_read_once_and_again_when_it_was_written_again(lab: TierLab) -> None:
    """A folder tells size, times and inode; a replaced object has other ones."""
    assert certify(lab) == [END]
    lab.store.calls.clear()
    assert certify(lab) == [END]
    assert lab.store.calls["get"] < COUNT + 3  # no object is read
    victim = files(lab)[0]
    before = victim.stat()
    damaged = bytearray(victim.read_bytes())
    damaged[100] ^= 1
    victim.write_bytes(bytes(damaged))
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ObjectCorruptError, match="crc32c"):
        certify(lab)


def test_a_read_of_a_range_proves_the_objects_of_that_range(lab: TierLab) -> None:
    """Damage outside the range does not fail a read-through, and costs it nothing."""
    victim = files(lab)[2]
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    require_sound(lab.table.snapshot(), lab.table.store, 0, span(0, 80))
    with pytest.raises(ObjectCorruptError):
        require_sound(lab.table.snapshot(), lab.table.store, 0, span(0, 81))


# -------------------------------------------------------------------------------- the kept proof


def test_a_stored_proof_is_gone_on_with(lab: TierLab) -> None:
    """Tiering stores one with a checkpoint; a new process reads it and the commits after it."""
    lab.source.fill(57, 2)
    lab.ship_all()
    newest = lab.table.snapshot().version
    stored = sorted(root(lab).glob("_headwater/proof/*"))
    assert stored[-1].name == f"{newest:020}.json.gz"
    lab.source.fill(1, EACH)
    lab.ship_all()
    forget_proofs()
    snapshot = lab.table.snapshot()
    lab.store.calls.clear()
    found = prove(snapshot, lab.table.store)
    assert lab.store.calls["get"] == 1 + 1 + (snapshot.version - newest)  # proof, anchor, commits
    forget_proofs()
    for path in stored:
        path.unlink()
    assert prove(snapshot, lab.table.store) == found


def test_a_damaged_or_foreign_stored_proof_is_passed_over(lab: TierLab, tmp_path: Path) -> None:
    """A stored proof is a short cut: without it the walk is longer, and the result the same."""
    lab.source.fill(57, 2)
    lab.ship_all()
    snapshot = lab.table.snapshot()
    want = prove(snapshot, lab.table.store)
    (path,) = root(lab).glob(f"_headwater/proof/{snapshot.version:020}*")
    good = path.read_bytes()
    other = TierLab(tmp_path / "other")
    other.source.fill(60, 2)
    other.ship_all()
    theirs = encode(prove(other.table.snapshot(), other.table.store))
    for bad in (b"", b"{}", good[:-9], good[:40] + b"\0" + good[41:], theirs):
        path.write_bytes(bad)
        forget_proofs()
        assert prove(snapshot, lab.table.store) == want
    assert decode(good, "key") == want


def test_a_stored_proof_does_not_outlive_a_rewritten_log(lab: TierLab) -> None:
    """The anchor of a stored proof is compared, as that of a proof in memory."""
    lab.source.fill(57, 2)
    lab.ship_all()
    version = lab.table.snapshot().version
    edited(commit_file(lab, version), lambda a: a.get("commitInfo", {}).update(userName="x"))
    forget_proofs()
    with pytest.raises(TableMismatchError, match="rewritten"):
        certify(lab)


def test_a_table_without_a_whole_log_stands_on_its_stored_proof(lab: TierLab) -> None:
    """The log was cleaned up: commits below the proof are not needed any more."""
    lab.source.fill(57, 2)
    lab.ship_all()
    version = lab.table.snapshot().version
    assert (root(lab) / f"_headwater/proof/{version:020}.json.gz").exists()
    for number in range(version):
        commit_file(lab, number).unlink()
    forget_proofs()
    assert certify(lab) == [END + 114]


# --------------------------------------------------------------------------------------- helpers


def catalog_of(lab: TierLab) -> MemoryTierCatalog:
    """Return a broker's view with the lab's one stream."""
    catalog = MemoryTierCatalog()
    catalog.add(lab.stream)
    return catalog


def span(start: int, end: int) -> OffsetRange:
    """Return a range."""
    return OffsetRange(Offset(start), Offset(end))


def rewrite(
    lab: TierLab,
    change: Callable[[pa.Table], pa.Table],
    *,
    told: int = END,
    adds: bool = False,
    removes: bool = False,
) -> None:
    """Put all rows, changed, into one file, in a commit with the given flags."""
    rows = rewritten(lab, change)
    table = DeltaTable(lab.table.uri)
    path = root(lab) / "partition=0/home-made.parquet"
    pq.write_table(rows.drop_columns(["partition"]), path)
    stamps = (rows.column("timestamp")[0].as_py(), rows.column("timestamp")[-1].as_py())
    stats = {
        "numRecords": told,
        "minValues": {"offset": 0, "timestamp": f"{stamps[0].isoformat()}"},
        "maxValues": {"offset": END - 1, "timestamp": f"{stamps[1].isoformat()}"},
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    table.create_write_transaction(
        [
            *(
                RemoveAction(
                    path=f"partition=0/{one.name}", data_change=removes, deletion_timestamp=1,
                    size=one.stat().st_size, partition_values={"partition": "0"},
                )
                for one in files(lab) if one != path
            ),
            AddAction(
                path=f"partition=0/{path.name}", size=path.stat().st_size,
                partition_values={"partition": "0"}, modification_time=1, data_change=adds,
                stats=json.dumps(stats),
            ),
        ],
        mode="append", schema=ROW_SCHEMA, partition_by=["partition"],
    )  # fmt: skip
