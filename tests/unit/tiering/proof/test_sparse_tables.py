"""A table of which key compaction has removed records is as well guarded as a whole one.

Other software may rewrite files and leave each row as it is. Whatever else it does with the rows
that are left is found, although their offsets alone no longer show that a row is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from broker.errors import GapError, HeadwaterError, ObjectCorruptError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from simkit.tier.lab import TierLab, cut_of, forget_proofs
from simkit.tier.source import make_stream
from tiering.proof.coverage import require_left
from tiering.proof.range_proof import proved_rows
from tiering.read.certify import certify_counts, require_sound
from tiering.read.reader import read_rows
from tiering.read.verify import verify_table
from tiering.table.accounts import accounts
from tiering.table.key_compactions import KeyCompactions
from tiering.table.table import DataFile, SparsePrefix

pytestmark = pytest.mark.usefixtures("forgetful")

COMPACT = StreamConfig(subject="orders", history="compact", tombstone_delay_ms=10**9)
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A table of 80 offsets; below 60 it is sparse, in several files."""
    made = TierLab(tmp_path, stream=replace(make_stream(), config=COMPACT))
    made.source.fill(4, 20)
    assert made.ship_all().whole_start(0) == 60
    return made


def folder(lab: TierLab) -> Path:
    """Return the table's folder."""
    return Path(lab.lake.table_uri(lab.stream).removeprefix("file://"))


def rows_of(lab: TierLab) -> pa.Table:
    """Read what is left, after the proofs that a reader of a range makes."""
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot()
    require_sound(snapshot, table.store, 0, snapshot.ranges[0])
    return pa.Table.from_batches(
        read_rows(snapshot, table.store, 0, snapshot.ranges[0], sparse=True)
    )


def require_refused(lab: TierLab, kind: type[HeadwaterError], reason: str | None = None) -> None:
    """Every proof refuses the newest version: the cheap one, the full one, that of a read."""
    forget_proofs()
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot()
    with pytest.raises(kind):
        certify_counts(snapshot, cut_of(snapshot, lab.stream), table.store, sparse=True)
    forget_proofs()
    with pytest.raises(kind, match=reason):
        rows_of(lab)
    with pytest.raises(HeadwaterError):
        verify_table(snapshot, table.store)


def rewrite(lab: TierLab, change: Change, *, below: int = 60) -> None:
    """Exchange the files below an offset for one of other software, which says: no data changed."""
    root, snapshot = folder(lab), lab.table.snapshot()
    gone = [one for one in snapshot.files if (one.min_offset or 0) < below]
    parts = [pq.ParquetFile(root / one.path).read() for one in gone]
    rows = change(pa.concat_tables(parts).sort_by("offset"))
    plain = rows.replace_schema_metadata(None)
    path = "partition=0/part-00000-other-software.parquet"
    pq.write_table(plain, root / path)
    offsets, count = np.asarray(rows.column("offset")), rows.num_rows
    stats = {
        "numRecords": count,
        "minValues": {"offset": int(offsets.min())},
        "maxValues": {"offset": int(offsets.max())},
    }
    values = {"partitionValues": {"partition": "0"}, "dataChange": False}
    actions: list[dict[str, Any]] = [
        {"remove": {"path": one.path, "deletionTimestamp": 1, "size": one.size_bytes, **values}}
        for one in gone
    ]
    size = (root / path).stat().st_size
    added = {"path": path, "size": size, "modificationTime": 1, "stats": json.dumps(stats)}
    actions += [{"add": {**added, **values}}, {"commitInfo": {"operation": "OPTIMIZE"}}]
    log = root / "_delta_log" / f"{snapshot.version + 1:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)))


def test_a_foreign_optimize_changes_nothing(lab: TierLab) -> None:
    """One file of everything, across the end of the sparse range; each row has its digest still."""
    before = rows_of(lab)
    DeltaTable(str(folder(lab))).optimize.compact()
    forget_proofs()
    assert rows_of(lab).equals(before)
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot()
    assert len(snapshot.files) == 1
    [cheap], _, _ = certify_counts(snapshot, cut_of(snapshot, lab.stream), table.store, sparse=True)
    assert cheap.records_count == before.num_rows
    verify_table(snapshot, table.store)


def test_rows_that_stay_as_they_are_may_be_rewritten(lab: TierLab) -> None:
    """The same commit by hand, as a control of the tests that follow."""
    before = rows_of(lab)
    rewrite(lab, lambda rows: rows)
    forget_proofs()
    assert rows_of(lab).equals(before)


def moved_into_a_gap(rows: pa.Table) -> pa.Table:
    """Give one row an offset of a record that is gone; count and bounds stay."""
    offsets = np.array(rows.column("offset").to_pylist(), np.int64)
    at = next(n for n in range(1, len(offsets)) if offsets[n] - offsets[n - 1] > 1)
    offsets[at] -= 1
    if at == len(offsets) - 1:
        pytest.fail("the last row is a bound")
    return rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(offsets))


def another_value(rows: pa.Table) -> pa.Table:
    """Change the value of one row."""
    values = rows.column("value").to_pylist()
    values[1] = b"forged"
    return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values))


@pytest.mark.parametrize("change", [moved_into_a_gap, another_value])
def test_a_changed_row_is_found_by_the_digests(lab: TierLab, change: Change) -> None:
    """Although the commit keeps the number of rows and the bounds."""
    rewrite(lab, change)
    forget_proofs()
    with pytest.raises((ObjectCorruptError, TableMismatchError)):
        rows_of(lab)
    table = lab.lake.table(lab.stream)
    with pytest.raises((ObjectCorruptError, TableMismatchError)):
        verify_table(table.snapshot(), table.store)


@pytest.mark.parametrize("count", [1, 5])
def test_a_missing_row_is_found_by_the_commit(lab: TierLab, count: int) -> None:
    """A row in the middle is gone: the offsets look like those of a sparse range."""
    rewrite(lab, lambda rows: pa.concat_tables([rows.slice(0, 2), rows.slice(2 + count)]))
    require_refused(lab, TableMismatchError)


def test_delete_and_update_are_refused(lab: TierLab) -> None:
    """By name, with version and author; what was shipped before is not lost."""
    table = DeltaTable(str(folder(lab)))
    table.delete("offset = 59")
    require_refused(lab, TableMismatchError)
    table.restore(lab.table.snapshot().version - 1)
    forget_proofs()
    rows_of(lab)
    table.update(predicate="offset = 59", updates={"leader_epoch": "7"})
    require_refused(lab, TableMismatchError)


def edited(lab: TierLab, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the actions of the commit that removed records."""
    log = folder(lab) / "_delta_log" / f"{lab.table.snapshot().version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for one in actions:
        change(one)
    log.write_text("\n".join(map(json.dumps, actions)))


def lie(action: dict[str, Any], name: str) -> None:
    """Make one statement of the commit false."""
    app = action.get("txn", {}).get("appId", "")
    if (name == "left" and app.endswith("/left")) or (name == "whole" and app.endswith("/whole")):
        action["txn"]["version"] -= 1
    elif name == "no data" and "remove" in action:
        action["remove"]["dataChange"] = False
    elif name == "account" and "commitInfo" in action:
        action["commitInfo"].pop("headwater.compacted")
    elif name == "bounds" and "add" in action:
        action["add"]["stats"] = action["add"]["stats"].replace('"numRecords": ', '"numRecords": 1')


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("left", "its transactions are"),
        ("whole", "its transactions are"),
        ("no data", "removed records change no data"),
        ("account", None),
        ("bounds", "describes a file"),
    ],
)
def test_a_commit_that_contradicts_its_account_is_refused(
    lab: TierLab, name: str, reason: str | None
) -> None:
    """Its transactions, its files and their statistics must be those of the account."""
    edited(lab, lambda action: lie(action, name))
    require_refused(lab, TableMismatchError, reason)


def test_a_row_behind_the_accounts_of_a_range_is_found(lab: TierLab) -> None:
    """Of a range that ends between two files of the account, no digest covers the last offsets."""
    table = lab.lake.table(lab.stream)
    left = KeyCompactions(table.store).of(table.snapshot(), 0).files
    before, behind = next(pair for pair in pairwise(left) if pair[0].end < pair[1].start)

    def moved(rows: pa.Table) -> pa.Table:
        offsets = rows.column("offset").to_pylist()
        offsets[offsets.index(behind.start)] = before.end
        return rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(offsets))

    rewrite(lab, moved)
    forget_proofs()
    snapshot, within = table.snapshot(), OffsetRange(left[0].start, Offset(before.end + 1))
    entries = accounts(snapshot, table.store, 0, within)
    with pytest.raises(TableMismatchError, match="no account of a committed range"):
        list(proved_rows(snapshot, table.store, 0, within, entries))


def a_file(path: str, low: int, high: int, count: int) -> DataFile:
    """Return a file by its bounds and its number of rows."""
    return DataFile(
        path=path, size_bytes=1, partition=0, records_count=count,
        min_offset=Offset(low), max_offset=Offset(high),
    )  # fmt: skip


LEFT = SparsePrefix(Offset(60), 10)
HELD = OffsetRange(Offset(0), Offset(80))


def counted(
    *files: DataFile, offsets: list[int] | None = None
) -> tuple[list[DataFile], OffsetRange]:
    """Prove the prefix of HELD; ``offsets`` are those of files that have to be read."""
    return require_left(
        files, HELD, LEFT, partition=0, offsets_of=lambda _: np.array(offsets, np.int64)
    )


def test_a_sparse_prefix_is_proved_by_its_number_of_rows() -> None:
    """The files above it are for the caller to prove."""
    above = a_file("c", 60, 79, 20)
    files = (a_file("a", 3, 30, 4), a_file("b", 31, 59, 6), above)
    assert counted(*files) == ([above], OffsetRange(Offset(60), Offset(80)))
    with pytest.raises(TableMismatchError, match="have 9 rows"):
        counted(a_file("a", 3, 30, 3), a_file("b", 31, 59, 6), above)


def test_files_that_were_joined_across_the_prefix_are_read() -> None:
    """Rows above the prefix are contiguous from its end on; the caller proves what follows."""
    joined = a_file("a", 0, 69, 20)
    low = [*range(0, 54, 6), 59]
    found = counted(joined, offsets=[*low, *range(60, 70)])
    assert found == ([], OffsetRange(Offset(70), Offset(80)))
    with pytest.raises(GapError):
        counted(joined, offsets=[*low, *range(61, 71)])
    with pytest.raises(GapError):
        counted(joined, offsets=[*low, 60, *range(62, 70)])
    with pytest.raises(HeadwaterError, match="more than once"):
        counted(joined, offsets=[0, *low, *range(60, 70)])
