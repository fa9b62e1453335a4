"""The compare-and-set commit on delta-rs, and the contents of a version."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError

from broker.errors import ObjectMissingError, StaleColdEndError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.lab import CLUSTER, TierLab, read_table
from simkit.tier.source import UUID, make_stream
from tiering.ship.segment_writer import SegmentPlace, write_segment
from tiering.table.ledger import encode_ranges
from tiering.table.table import NewFile, TableSnapshot, transaction_id


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A lake with a stream of 60 records in three segments, none shipped."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(3, 20)
    return lab


def store_file(
    lab: TierLab, start: int, end: int, name: str = "x", *, partition: int = 0
) -> tuple[NewFile, str]:
    """Put an object of the log's records into the store; return it and its account."""
    wanted = OffsetRange(Offset(start), Offset(end))
    place = SegmentPlace(
        cluster=CLUSTER,
        partition=lab.source.partition_id,
        subject=lab.source.subject,
        path=f"partition={partition}/{start:020}-{end:020}-{name}.parquet",
    )
    built = write_segment(
        lab.source.read(wanted.start, wanted.end, bytes_max=1 << 30), wanted, place
    )
    assert lab.table.store.put_if_absent(place.path, built.body, crc32c=built.entry.crc32c)
    file = NewFile(
        path=place.path,
        size_bytes=built.entry.size_bytes,
        partition=partition,
        modified_us=1,
        stats_json=built.stats_json,
    )
    return file, encode_ranges([replace(built.entry, partition=partition)])


def commit(
    lab: TierLab, base: TableSnapshot, start: int, end: int, name: str = "x", *, partition: int = 0
) -> int:
    """Store and commit a range on top of a version."""
    file, account = store_file(lab, start, end, name, partition=partition)
    return lab.table.commit(
        base,
        [file],
        {partition: OffsetRange(Offset(start), Offset(end))},
        commit_id=f"{start}-{end}-{name}",
        ranges_json=account,
    )


def test_a_new_table_tells_whose_it_is(lab: TierLab) -> None:
    """A new table's properties carry the stream; every partition is empty; the columns are ours."""
    assert lab.table.find() is None
    snapshot = lab.table.create()
    assert lab.table.create() == snapshot
    assert (snapshot.version, snapshot.stream_uuid, snapshot.cluster) == (0, UUID, CLUSTER)
    assert snapshot.properties["headwater.stream"] == "orders"
    assert json.loads(snapshot.properties["headwater.stream_json"])["config"]["subject"] == "orders"
    assert snapshot.properties["delta.dataSkippingStatsColumns"] == "offset,timestamp"
    assert "delta.appendOnly" not in snapshot.properties
    assert "delta.setTransactionRetentionDuration" not in snapshot.properties
    assert snapshot.ranges == {0: OffsetRange(Offset(0), Offset(0))}
    plain = DeltaTable(lab.table.uri)
    assert plain.metadata().partition_columns == ["partition"]
    assert (plain.protocol().min_reader_version, plain.protocol().min_writer_version) == (1, 2)


def test_a_commit_moves_files_and_cold_end_together(lab: TierLab) -> None:
    """One version: the file with its bounds, and the transaction."""
    assert commit(lab, lab.table.create(), 0, 20) == 1
    snapshot = lab.table.snapshot()
    assert (snapshot.version, snapshot.cold_end(0)) == (1, 20)
    file = snapshot.files[0]
    assert (file.records_count, file.min_offset, file.max_offset) == (20, 0, 19)
    assert DeltaTable(lab.table.uri).transaction_version(
        transaction_id(CLUSTER, lab.source.partition_id)
    ) == 20  # fmt: skip


def test_a_version_is_a_value_that_travels(lab: TierLab) -> None:
    """A snapshot is plain data, and an old version can be loaded again."""
    commit(lab, lab.table.create(), 0, 20)
    commit(lab, lab.table.snapshot(), 20, 40)
    old = lab.table.snapshot(1)
    assert copy.deepcopy(old) == old
    assert old.cold_end(0) == 20
    assert lab.lake.table_at(lab.table.uri).snapshot(1) == old
    with pytest.raises(ObjectMissingError):
        lab.table.snapshot(3)


def test_a_commit_on_an_old_version_is_stale(lab: TierLab) -> None:
    """The loser's error has the cold end, and its file is not in the table."""
    first = lab.table.create()
    commit(lab, first, 0, 20)
    with pytest.raises(StaleColdEndError) as caught:
        commit(lab, first, 0, 20, "again")
    assert (caught.value.expected, caught.value.found) == (0, 20)
    assert len(lab.table.snapshot().files) == 1


def test_the_same_range_again_in_sequence_is_refused(lab: TierLab) -> None:
    """delta-rs accepts one transaction version twice in a row; we do not."""
    commit(lab, lab.table.create(), 0, 20)
    version = lab.table.snapshot().version
    plain = DeltaTable(lab.table.uri)
    app = transaction_id(CLUSTER, lab.source.partition_id)
    plain.create_write_transaction(  # without our check the commit succeeds
        [], mode="append", schema=plain.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(app, 20)]),
    )  # fmt: skip
    assert lab.table.snapshot().version == version + 1
    for start, end in ((0, 20), (10, 20), (25, 40)):
        with pytest.raises(StaleColdEndError):
            commit(lab, lab.table.snapshot(), start, end, f"again-{start}")


def test_a_harmless_commit_in_between_is_stepped_over(lab: TierLab) -> None:
    """A foreign OPTIMIZE neither loses our commit nor makes us overwrite files."""
    commit(lab, lab.table.create(), 0, 20)
    commit(lab, lab.table.snapshot(), 20, 40)
    base = lab.table.snapshot()
    DeltaTable(lab.table.uri).optimize.compact()
    assert commit(lab, base, 40, 60) == base.version + 2
    assert read_table(lab.table, 0).equals(lab.source.truth())


def test_a_commit_whose_answer_was_lost_is_recognised(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version was written, the library reports a conflict: it is found by its commit id."""
    base = lab.table.create()
    write = DeltaTable.create_write_transaction

    def lossy(self: DeltaTable, *args: object, **kwargs: object) -> None:
        write(self, *args, **kwargs)  # type: ignore[arg-type]
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        raise CommitFailedError("412")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lossy)
    assert commit(lab, base, 0, 20) == 1
    assert len(lab.table.snapshot().files) == 1


def test_features_that_cannot_be_written_are_named(lab: TierLab) -> None:
    """It is not a lost race: the error tells which feature to remove; reads go on."""
    base = lab.table.create()
    DeltaTable(lab.table.uri).alter.add_feature(
        TableFeatures.RowTracking, allow_protocol_versions_increase=True
    )
    with pytest.raises(TableMismatchError, match="DROP FEATURE") as caught:
        commit(lab, base, 0, 20)
    assert "rowTracking" in caught.value.features
    assert lab.table.snapshot().version == 1


def test_our_commits_are_listed_and_others_are_not(lab: TierLab) -> None:
    """The log of the table tells which ranges a commit was about."""
    commit(lab, lab.table.create(), 0, 20)
    DeltaTable(lab.table.uri).optimize.compact()
    commit(lab, lab.table.snapshot(), 20, 40)
    assert [one.commit_id for one in lab.table.commits(above=-1)] == ["0-20-x", "20-40-x"]
    assert [one.commit_id for one in lab.table.commits(above=1)] == ["20-40-x"]
    assert lab.table.commits(above=99) == []


def test_a_checkpoint_keeps_transactions_and_files(lab: TierLab) -> None:
    """A reader that starts at the checkpoint sees the same version."""
    commit(lab, lab.table.create(), 0, 20)
    commit(lab, lab.table.snapshot(), 20, 40)
    before = lab.table.snapshot()
    lab.table.checkpoint()
    assert list((lab.table.store.config.root / "_delta_log").glob("*.checkpoint.parquet"))
    assert lab.lake.table(lab.stream).snapshot() == before


def test_a_hint_without_its_checkpoint_is_named_and_may_be_deleted(lab: TierLab) -> None:
    """As if somebody had removed the checkpoints of a whole log."""
    lab.ship_all()
    lab.table.checkpoint()
    log = lab.table.store.config.root / "_delta_log"
    for checkpoint in log.glob("*.checkpoint*.parquet"):
        checkpoint.unlink()
    with pytest.raises(ObjectMissingError, match="delete that file") as caught:
        lab.lake.table(lab.stream).snapshot()
    assert caught.value.key == "_delta_log/_last_checkpoint"
    (log / "_last_checkpoint").unlink()
    assert lab.lake.table(lab.stream).snapshot().cold_end(0) == 60


def test_partitions_move_independently(tmp_path: Path) -> None:
    """A commit to one partition does not make another's base stale."""
    stream = make_stream(partitions=2)
    lab = TierLab(tmp_path, stream=stream)
    lab.source.fill(1, 5)
    base = lab.table.create()
    for partition in (0, 1):
        commit(lab, base, 0, 5, f"p{partition}", partition=partition)
    assert {number: held.end for number, held in lab.table.snapshot().ranges.items()} == {
        0: 5,
        1: 5,
    }


def test_files_are_skipped_by_offset_and_time(lab: TierLab) -> None:
    """delta-rs prunes by our statistics, also where a timestamp lies within a millisecond."""
    lab.ship_all()
    table = DeltaTable(lab.table.uri)
    assert len(table.file_uris(file_pruning_predicate="offset >= 20 AND offset < 40")) == 1
    stamps = lab.source.truth().column("timestamp")
    for row in range(60):
        found = pa.table(table.to_pyarrow_table(filters=[("timestamp", "=", stamps[row].as_py())]))
        assert row in found.column("offset").to_pylist()
