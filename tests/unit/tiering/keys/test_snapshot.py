"""The key snapshot without Spark: plans, files, names of folders, compare-and-set."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.codec.checksum import crc32c
from broker.codec.schema import FILE_SCHEMA, ROW_SCHEMA
from broker.errors import (
    FilesReplacedError,
    ForeignHistoryError,
    ObjectCorruptError,
    StaleColdEndError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream, StreamConfig
from tiering.keys import plan as key_snapshot_plan
from tiering.keys.plan import BUCKET_BYTES, bucket_of, bucket_path, buckets_for, plan
from tiering.keys.snapshot import latest_table, made_of, open_latest, prove_latest
from tiering.keys.writer import SORTED_COLUMNS, newest_rows, write_buckets
from tiering.proof.proofs import CACHE
from tiering.read.lake import Lake
from tiering.table.delta_log import commit_digest, log_key
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.table import (
    FILES,
    MADE_OF,
    DataFile,
    SparsePrefix,
    TableSnapshot,
    transaction_id,
)

UUID = StreamUuid("01234567-89ab-4def-8123-456789abcdef")
OTHER = StreamUuid("fedcba98-7654-4210-8edc-ba9876543210")


def a_stream(name: str = "s", uuid: StreamUuid = UUID, table_name: str | None = None) -> Stream:
    """Return a stream of two partitions."""
    return Stream(
        name=name,
        uuid=uuid,
        config=StreamConfig(subject=name, partitions=2),
        created_us=1,
        table_name=table_name or name,
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake.open(tmp_path / "lake")


def a_range(start: int, end: int) -> OffsetRange:
    """Return ``[start, end)``."""
    return OffsetRange(Offset(start), Offset(end))


def at(ranges: dict[int, OffsetRange], *files: DataFile) -> TableSnapshot:
    """Return a version with these ranges and files."""
    return TableSnapshot(
        uri="file:///t", version=1, stream_uuid=UUID, cluster="c", properties={}, files=files,
        ranges=ranges,
    )  # fmt: skip


def bucket_file(partition: int, bucket: int, count: int, size: int = 100) -> DataFile:
    """Return a file of a bucket."""
    return DataFile(
        path=bucket_path(partition, bucket, count, 10),
        size_bytes=size,
        partition=partition,
        records_count=1,
        min_offset=Offset(0),
        max_offset=Offset(9),
    )


def sorted_rows(records: list[tuple[int, int, bytes, int, bytes | None]]) -> pa.RecordBatch:
    """Return (partition, bucket, key, offset, value) as the writer gets them: sorted."""
    ordered = sorted(records, key=lambda row: (row[0], row[1], row[2], -row[3]))
    columns: dict[str, Any] = {
        "partition": [row[0] for row in ordered],
        "bucket": [row[1] for row in ordered],
        "offset": [row[3] for row in ordered],
        "timestamp": [1_000_000 + row[3] for row in ordered],
        "key": [row[2] for row in ordered],
        "value": [row[4] for row in ordered],
        "leader_epoch": [1] * len(ordered),
    }
    fields = [
        pa.field("bucket", pa.int32()) if name == "bucket" else ROW_SCHEMA.field(name)
        for name in SORTED_COLUMNS
    ]
    return pa.record_batch(
        [pa.array(columns.get(one.name, [None] * len(ordered)), one.type) for one in fields],
        schema=pa.schema(fields),
    )


def test_the_newest_row_of_each_key_is_kept_however_rows_are_cut_into_batches() -> None:
    """Against a dictionary, for random rows and batches of random sizes."""
    rng = random.Random(5)
    records = [
        (rng.randrange(2), rng.randrange(3), b"%d" % rng.randrange(40), offset,
         None if rng.random() < 0.3 else b"v%d" % offset)
        for offset in range(600)
    ]  # fmt: skip
    rows = sorted_rows(records)
    batches, start = [], 0
    while start < rows.num_rows:
        size = rng.choice([0, 1, 2, 7, 50])
        batches.append(rows.slice(start, size))
        start += size
    newest = {(part, bucket, key): (offset, value) for part, bucket, key, offset, value in records}

    found = [
        (partition, bucket, row["key"], row["offset"], row["value"])
        for partition, bucket, part in newest_rows(batches)
        for row in part.to_pylist()
    ]

    assert sorted(found) == sorted(
        (*place, offset, value) for place, (offset, value) in newest.items() if value is not None
    )


def test_tombstones_of_added_partitions_are_kept() -> None:
    """They hide records of their keys in lower partitions; in these, a tombstone hides nothing."""
    rows = sorted_rows(
        [(0, 0, b"a", 5, None), (1, 0, b"a", 9, None), (1, 0, b"b", 7, b"x"), (2, 0, b"a", 2, None)]
    )

    def kept(keys_from: int | None) -> list[tuple[int, bytes]]:
        return [
            (partition, row["key"])
            for partition, _, part in newest_rows([rows], keys_from)
            for row in part.to_pylist()
        ]

    assert kept(None) == [(1, b"b")]
    assert kept(1) == [(1, b"a"), (1, b"b"), (2, b"a")]
    assert kept(2) == [(1, b"b"), (2, b"a")]


def test_each_bucket_becomes_one_file_with_true_statistics(lake: Lake) -> None:
    """A file has its rows and its statistics; a bucket of tombstones alone has no file."""
    rows = sorted_rows(
        [(0, 0, b"a", 5, b"x"), (0, 0, b"b", 9, b"y"), (0, 1, b"c", 7, None), (1, 0, b"a", 2, b"z")]
    )
    files = list(write_buckets([rows], lake.store, buckets={0: 2, 1: 1}, ends={0: 10, 1: 3}))

    assert [(file.partition, file.bucket, file.records_count) for file in files] == [
        (0, 0, 2),
        (1, 0, 1),
    ]
    stored = pq.read_table(pa.BufferReader(lake.store.get(files[0].path)))
    assert stored.schema.equals(FILE_SCHEMA)
    assert stored.column("offset").to_pylist() == [5, 9]
    assert '"minValues": {"offset": 5' in files[0].stats_json
    assert '"maxValues": {"offset": 9' in files[0].stats_json
    assert len(lake.store.get(files[1].path)) == files[1].size_bytes


def test_the_bucket_of_a_key_is_spread_and_frozen() -> None:
    """The hash is CRC-32 modulo the count, as Spark computes it too: files depend on it."""
    assert [bucket_of(key, 16) for key in (b"", b"a", b"key")] == [0, 3, 9]
    counts = np.bincount([bucket_of(b"%d" % n, 16) for n in range(16_000)])
    assert counts.min() > 700
    assert [buckets_for(size) for size in (0, BUCKET_BYTES, BUCKET_BYTES + 1)] == [1, 1, 2]
    assert buckets_for(5 * BUCKET_BYTES) == 8
    assert buckets_for(10**15) == key_snapshot_plan.BUCKETS_MAX


def test_an_advance_rewrites_only_buckets_with_new_keys() -> None:
    """The plan of a partition with our files removes the touched ones; others stay whole."""
    files = [bucket_file(0, bucket, 4) for bucket in range(4)]
    latest = at({0: a_range(0, 10), 1: a_range(0, 7)}, *files)
    history = at({0: a_range(0, 20), 1: a_range(0, 7)})

    (one,) = plan(latest, history, {0: 100})

    assert (one.partition, one.to_read, one.buckets_count) == (0, a_range(10, 20), 4)
    assert one.removed({1, 3}) == (files[1], files[3])
    assert not one.whole


@pytest.mark.parametrize(
    ("old", "files", "whole", "rebuild", "buckets"),
    [
        (a_range(0, 0), [], True, True, 1),
        (a_range(0, 10), [bucket_file(0, 0, 2), bucket_file(0, 1, 2, BUCKET_BYTES * 9)],
         True, False, 16),
        (a_range(0, 10), [bucket_file(0, 0, 2), bucket_file(0, 0, 2)], True, False, 1),
        (a_range(0, 10), [bucket_file(0, 0, 2), bucket_file(0, 1, 4)], True, False, 1),
        (a_range(3, 10), [bucket_file(0, 0, 1)], True, True, 1),
    ],
)  # fmt: skip
def test_what_cannot_be_advanced_in_place_is_rewritten(
    old: OffsetRange, files: list[DataFile], whole: bool, rebuild: bool, buckets: int
) -> None:
    """First builds, outgrown buckets, foreign files, and a start that retention moved."""
    latest = at({0: old, 1: a_range(0, 0)}, *files)
    history = at({0: a_range(0, 20), 1: a_range(0, 0)})

    (one,) = plan(latest, history, {0: 100})

    assert (one.whole, one.rebuild, one.buckets_count) == (whole, rebuild, buckets)
    assert one.removed(()) == tuple(files)
    assert one.to_read == (a_range(0, 20) if rebuild else a_range(10, 20))


def test_a_history_behind_its_key_snapshot_is_refused() -> None:
    """The stream's table was rolled back: nothing is guessed."""
    with pytest.raises(TableRolledBackError, match="up to 10"):
        plan(at({0: a_range(0, 10)}), at({0: a_range(0, 9)}), {})


def test_the_table_is_found_by_the_incarnation_of_its_stream(lake: Lake) -> None:
    """Each incarnation of a stream has its own key snapshot."""
    assert open_latest(lake, "s", stream_uuid=UUID) is None
    latest_table(lake, a_stream()).create()
    again = a_stream(uuid=OTHER, table_name=f"s-{OTHER[:8]}")
    latest_table(lake, again).create()
    first = open_latest(lake, "s", stream_uuid=UUID)
    second = open_latest(lake, "s", stream_uuid=OTHER)
    assert first is not None
    assert second is not None
    assert first.uri == f"{lake.uri}/default/s__latest"
    assert second.uri == f"{lake.uri}/default/s-{OTHER[:8]}__latest"
    assert (first.ends, second.stream_uuid) == ({0: 0, 1: 0}, OTHER)

    lake.table(a_stream("t__latest", OTHER)).create()
    assert latest_table(lake, a_stream("t")).create().uri.endswith(f"t__latest-{UUID[:8]}")
    found = open_latest(lake, "t", stream_uuid=UUID)
    assert found is not None
    assert found.uri.endswith(f"t__latest-{UUID[:8]}")
    assert open_latest(lake, "t__latest", stream_uuid=OTHER) is None


def test_a_key_snapshot_is_not_taken_for_a_history_nor_a_history_for_it(lake: Lake) -> None:
    """Either table refuses to be opened as the other, and their transactions have other names."""
    table = latest_table(lake, a_stream())
    table.create()
    with pytest.raises(TableMismatchError, match=r"is a table of kind .latest."):
        lake.table_at(table.uri).snapshot()
    snapshot = table.snapshot()
    version = table.replace_files(
        snapshot, removed=[], added=[], moves={0: a_range(2, 9)}, data_change=True, commit_id="a"
    )
    assert table.snapshot(version).ranges == {0: a_range(2, 9), 1: a_range(0, 0)}
    assert transaction_id("c", _partition()) != transaction_id("c", _partition(), "latest")


def test_of_two_replacements_from_one_version_the_second_loses_by_name(lake: Lake) -> None:
    """A range that moved, or a file that is gone, stops a commit; another partition's does not."""
    table = latest_table(lake, a_stream())
    table.create()
    rows = sorted_rows([(0, 0, b"a", 5, b"x"), (1, 0, b"a", 2, b"z")])
    files = [
        file.new_file(modified_us=1_000_000)
        for file in write_buckets([rows], table.store, buckets={0: 1, 1: 1}, ends={0: 9, 1: 3})
    ]
    base = table.snapshot()

    def swap(base: TableSnapshot, name: str, **what: Any) -> int:
        wanted = {"removed": [], "added": [], "moves": {}, "data_change": True, **what}
        return table.replace_files(base, commit_id=name, **wanted)

    swap(base, "a", added=files[:1], moves={0: a_range(0, 9)})
    with pytest.raises(StaleColdEndError):
        swap(base, "b", added=files[:1], moves={0: a_range(0, 12)})
    swap(base, "c", added=files[1:], moves={1: a_range(0, 3)})
    now = table.snapshot()
    assert [file.path for file in now.files] == [file.path for file in files]
    swap(now, "d", removed=now.files[:1])
    with pytest.raises(FilesReplacedError):
        swap(now, "e", removed=now.files[:1])
    assert [file.path for file in table.snapshot().files] == [files[1].path]


# ------------------------------------------------------------------------------ whose commits


Change = Callable[[str], object]

FOREIGN: dict[str, tuple[Change, str]] = {
    "append": (
        lambda uri: write_deltalake(
            uri, pa.table(DeltaTable(uri).to_pyarrow_table()).slice(0, 1), mode="append"
        ),
        "WRITE",
    ),
    "delete": (lambda uri: DeltaTable(uri).delete("offset = 5"), "DELETE"),
    "update": (
        lambda uri: DeltaTable(uri).update({"value": "X'00'"}, predicate="offset = 5"),
        "UPDATE",
    ),
    "restore": (lambda uri: DeltaTable(uri).restore(1), "RESTORE"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_key_snapshot_that_somebody_else_changed_is_refused_by_name(
    lake: Lake, name: str
) -> None:
    """A read and an advance raise an error with version, operation, author and the ways out."""
    table = built(lake)
    assert open_latest(lake, "s", stream_uuid=UUID) is not None
    change, operation = FOREIGN[name]
    change(table.uri)
    for ask in (
        lambda: open_latest(lake, "s", stream_uuid=UUID),
        lambda: prove_latest(table.snapshot(), table.store),
    ):
        with pytest.raises(TableMismatchError, match="headwater job snapshot") as caught:
            ask()
        assert (caught.value.version, caught.value.operation) == (3, operation)
        CACHE.forget()
    good = open_latest(lake, "s", stream_uuid=UUID, version=2)
    assert good is not None
    assert good.ends == {0: 12, 1: 0}


def test_a_changed_byte_of_a_key_snapshot_is_named(lake: Lake) -> None:
    """Its commits have the checksums of its objects, as those of a history do."""
    table = built(lake)
    (file,) = table.snapshot().files
    path = table.store.config.root / file.path
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))
    with pytest.raises(ObjectCorruptError, match="crc32c"):
        open_latest(lake, "s", stream_uuid=UUID)


def test_a_key_snapshot_that_others_optimized_is_built_anew(lake: Lake) -> None:
    """No ledger proves its rows again: it is not read, and the next advance uses none of them."""
    table = built(lake, buckets=2)
    assert DeltaTable(table.uri).optimize.compact()["numFilesRemoved"] == 2
    found = open_latest(lake, "s", stream_uuid=UUID)
    assert found is not None
    assert found.distrusted == {0}
    latest = table.snapshot()
    history = replace(latest, version=1, ranges={0: a_range(0, 12), 1: a_range(0, 0)})
    (one,) = plan(latest, history, {}, distrusted=found.distrusted)
    assert (one.rebuild, one.whole, one.to_read) == (True, True, a_range(0, 12))
    assert plan(latest, history, {}) == []


def test_an_older_copy_of_a_key_snapshot_is_built_anew(lake: Lake) -> None:
    """Key compaction may have dropped tombstones that it never saw; of ten offsets six are left."""
    latest = built(lake, buckets=2).snapshot()
    covered = latest.range_of(0)
    ranges = {0: a_range(0, covered.end + 5), 1: a_range(0, 0)}
    history = replace(latest, version=1, ranges=ranges)
    for whole_end, anew in ((covered.end, False), (covered.end + 1, True)):
        sparse = {0: SparsePrefix(Offset(whole_end), 6)}
        (one,) = plan(latest, replace(history, sparse=sparse), {})
        assert one.rebuild is anew
        assert one.to_read == (ranges[0] if anew else a_range(covered.end, covered.end + 5))


def test_a_commit_of_a_key_snapshot_says_what_it_is_made_of(lake: Lake) -> None:
    """Files with rows, bounds, checksum and digest; table, version and ranges of the history."""
    table = built(lake)
    text = (table.store.config.root / f"_delta_log/{2:020}.json").read_text()
    info = json.loads(text.splitlines()[0])["commitInfo"]
    (account,) = json.loads(info[FILES])
    (file,) = table.snapshot().files
    body = (table.store.config.root / file.path).read_bytes()
    assert account["crc32c"] == crc32c(body)
    assert account["file"][:5] == [0, len(body), 1, 5, 5]
    assert len(account["digest"]) == 64
    assert json.loads(info[MADE_OF])["ranges"] == {"0": [0, 12], "1": [0, 0]}


def test_a_key_snapshot_of_a_history_that_was_put_back_is_refused(lake: Lake) -> None:
    """The stream's table came back as an older copy and went on: its offsets mean other records."""
    stream = a_stream()
    history = lake.table(stream)
    copy = history.store.config.root.with_name("copy")
    history.create()
    shutil.copytree(history.store.config.root, copy)
    DeltaTable(history.uri).alter.set_table_properties({"a": "1"}, raise_if_not_exists=False)
    at_build = history.snapshot()
    assert at_build.version == 1
    latest = latest_table(lake, stream)
    latest.create()
    latest.replace_files(
        latest.snapshot(), removed=[], added=[], moves={0: a_range(0, 9)}, data_change=True,
        commit_id="to 9", made_of=made_of(at_build, commit_digest(history.store, 1)),
    )  # fmt: skip
    DeltaTable(latest.uri).alter.set_table_properties({"a": "1"}, raise_if_not_exists=False)
    known = open_latest(lake, "s", stream_uuid=UUID)
    assert known is not None
    assert known.distrusted == frozenset()
    shutil.rmtree(history.store.config.root)
    copy.rename(history.store.config.root)
    for _ in range(2):  # without that version, and with another one in its place
        with pytest.raises(ForeignHistoryError, match="headwater job snapshot") as caught:
            open_latest(lake, "s", stream_uuid=UUID)
        assert caught.value.version == 1
        DeltaTable(history.uri).alter.set_table_properties({"b": "2"}, raise_if_not_exists=False)


def built(lake: Lake, buckets: int = 1) -> DeltaStreamTable:
    """Return a key snapshot that was advanced twice, to [0, 12) of partition 0."""
    table = latest_table(lake, a_stream())
    table.create()
    for end in (9, 12):
        base = table.snapshot()
        rows = sorted_rows([(0, number, b"a", 5, b"x") for number in range(buckets)])
        history = replace(base, version=end, ranges={0: a_range(0, end), 1: a_range(0, 0)})
        table.replace_files(
            base,
            removed=base.files,
            added=[
                file.new_file(modified_us=1_000_000)
                for file in write_buckets([rows], table.store, buckets={0: buckets}, ends={0: end})
            ],
            moves={0: a_range(0, end)},
            data_change=True,
            commit_id=f"to {end}",
            made_of=made_of(history),
        )
    return table


def _partition() -> Any:
    from broker.model.ids import PartitionId, PartitionNumber

    return PartitionId(UUID, PartitionNumber(0))


@pytest.mark.parametrize("of", ["history", "latest"])
def test_a_key_snapshot_whose_origin_was_cleaned_up_is_not_read(lake: Lake, of: str) -> None:
    """Delta removes commits after 30 days: nothing is wrong then, and nothing is proved."""
    stream = a_stream()
    history, latest = lake.table(stream), latest_table(lake, stream)
    for table in (history, latest):
        table.create()
    latest.replace_files(
        latest.snapshot(), removed=[], added=[], moves={0: a_range(0, 0)}, data_change=True,
        commit_id="to 0", made_of=made_of(history.snapshot(), commit_digest(history.store, 0)),
    )  # fmt: skip
    for table in (history, latest):
        DeltaTable(table.uri).alter.set_table_properties({"a": "1"}, raise_if_not_exists=False)
    cleaned = history if of == "history" else latest
    DeltaTable(cleaned.uri).create_checkpoint()
    CACHE.forget()
    found = open_latest(lake, "s", stream_uuid=UUID)
    assert found is not None
    assert found.distrusted == frozenset()
    for version in range(cleaned.snapshot().version):
        (cleaned.store.config.root / log_key(version)).unlink()
    found = open_latest(lake, "s", stream_uuid=UUID)
    assert found is not None
    assert found.distrusted == {0, 1}
