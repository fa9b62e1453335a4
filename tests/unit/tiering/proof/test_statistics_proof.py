"""A file's statistics from another writer are compared with its rows before they are used.

A file without statistics is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import ColumnProperties, DeltaTable, WriterProperties

from broker.errors import TableMismatchError
from simkit.tier.lab import TierLab, certify, forget_proofs
from tiering.proof.proofs import decode, encode, prove
from tiering.table.delta_log import log_key

pytestmark = pytest.mark.usefixtures("forgetful")

COUNT, EACH = 3, 40

Change = Callable[[dict[str, Any], dict[str, Any]], None]  # gets an add action, its statistics


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A stream of 120 records, all of it cold, in three files."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(COUNT, EACH)
    lab.ship_all()
    return lab


def newest(lab: TierLab) -> Path:
    """Return the newest commit file."""
    version = lab.lake.table(lab.stream).snapshot().version
    root: Path = lab.table.store.config.root
    return root / log_key(version)


def optimized(lab: TierLab, change: Change) -> None:
    """Run an OPTIMIZE whose statistics differ from those of delta-rs."""
    DeltaTable(lab.table.uri).optimize.compact()
    path = newest(lab)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for add in (one["add"] for one in actions if "add" in one):
        stats = json.loads(add["stats"])
        change(add, stats)
        add["stats"] = json.dumps(stats)
    path.write_text("\n".join(map(json.dumps, actions)))


def restated(lab: TierLab, change: Change) -> None:
    """Let another writer compute the statistics of one of our files again."""
    path = newest(lab)
    (add,) = (one["add"] for one in map(json.loads, path.read_text().splitlines()) if "add" in one)
    stats = json.loads(add["stats"])
    change(add, stats)
    add |= {"stats": json.dumps(stats), "dataChange": False}
    info = {"operation": "COMPUTE STATS", "engineInfo": "somebody"}
    (path.parent / f"{int(path.stem) + 1:020}.json").write_text(
        f"{json.dumps({'commitInfo': info})}\n{json.dumps({'add': add})}\n"
    )


def local_times(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Give times of a zone behind UTC without naming the zone."""
    del add
    for kind in ("minValues", "maxValues"):
        day, _, time = stats[kind]["timestamp"].partition("T")
        stats[kind]["timestamp"] = f"{int(day[:4]) - 1}{day[4:]}T{time}"


def all_null(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Claim that no row has an offset, so that no filter on offsets finds the file."""
    del add
    stats["nullCount"]["offset"] = stats["numRecords"]


def other_epochs(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Give wrong bounds of a column for which our writer gives none."""
    del add
    stats["minValues"]["leader_epoch"] = stats["maxValues"]["leader_epoch"] = 1 << 40


def _moved(stats: dict[str, Any], kind: str, milliseconds: int) -> None:
    moment = datetime.fromisoformat(stats[kind]["timestamp"]) + timedelta(milliseconds=milliseconds)
    stats[kind]["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def earlier_last_time(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Give a last time that is one millisecond less than the last description's."""
    del add
    _moved(stats, "maxValues", -1)


def later_first_time(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Give a first time that is one millisecond more than the last description's."""
    del add
    _moved(stats, "minValues", 1)


def later_within_the_millisecond(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Give a first time of which only the part below a millisecond is false."""
    del add
    stats["minValues"]["timestamp"] = stats["minValues"]["timestamp"].replace("Z", "999Z")


def empty(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Claim that the file has no rows."""
    del add
    stats.update({"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": {}})


def true_epochs(add: dict[str, Any], stats: dict[str, Any]) -> None:
    """Give right bounds of a column for which our writer gives none."""
    del add
    stats["minValues"]["leader_epoch"] = 0
    stats["maxValues"]["leader_epoch"] = 1 << 40
    stats["nullCount"]["leader_epoch"] = 0


def test_no_row_of_a_file_is_outside_the_times_that_readers_skip_it_by(lab: TierLab) -> None:
    """Engines round both times down to milliseconds; rows within the last one are no exception.

    So it is in each description of a file: the version's, the commits', and the stored proof's.
    """
    stamps = lab.source.truth().column("timestamp").cast(pa.int64()).to_pylist()
    assert max(stamps) % 1000
    DeltaTable(lab.table.uri).optimize.compact()
    assert certify(lab) == [COUNT * EACH]
    table = lab.lake.table(lab.stream)
    proof = prove(table.snapshot(), table.store)
    described = [
        *table.snapshot().files,
        *(one.file for one in proof.files.values()),
        *(one.file for one in decode(encode(proof), "k").files.values()),
    ]
    assert len(described) == 3
    for file in described:
        assert file.min_timestamp_us is not None
        assert file.max_timestamp_us is not None
        assert file.min_timestamp_us <= min(stamps)
        assert file.max_timestamp_us >= max(stamps)


@pytest.mark.parametrize("change", [local_times, all_null, other_epochs])
@pytest.mark.parametrize("how", [optimized, restated])
def test_false_statistics_are_named(
    lab: TierLab, how: Callable[[TierLab, Change], None], change: Change
) -> None:
    """Both a process that knew the table and a new one name them, at every try."""
    assert certify(lab) == [COUNT * EACH]
    how(lab, change)
    for _ in range(2):
        with pytest.raises(TableMismatchError, match="statistics"):
            certify(lab)
    forget_proofs()
    with pytest.raises(TableMismatchError, match="statistics") as caught:
        certify(lab)
    if "ZORDER" in str(caught.value):
        DeltaTable(lab.table.uri).optimize.z_order(["offset"])
        assert certify(lab) == [COUNT * EACH]


@pytest.mark.parametrize("change", [later_first_time, later_within_the_millisecond])
def test_a_first_time_that_is_false_by_little_is_named(lab: TierLab, change: Change) -> None:
    """Each description is compared with the rows if it differs from the one before it."""
    restated(lab, change)
    for _ in range(2):
        with pytest.raises(TableMismatchError, match="first timestamp"):
            certify(lab)
        forget_proofs()


@pytest.mark.parametrize("seen", [False, True], ids=["at once", "one by one"])
def test_a_last_time_is_rounded_once_and_not_step_by_step(lab: TierLab, seen: bool) -> None:
    """We round it up and other engines round it down; a second millisecond less is false."""
    restated(lab, earlier_last_time)
    if seen:
        assert certify(lab) == [COUNT * EACH]
    restated(lab, earlier_last_time)
    for _ in range(2):
        with pytest.raises(TableMismatchError, match="last timestamp"):
            certify(lab)
        forget_proofs()


def test_statistics_that_are_computed_again_rightly_are_accepted(lab: TierLab) -> None:
    """As Spark computes them, with the last time rounded down."""
    restated(lab, earlier_last_time)
    restated(lab, lambda add, stats: None)
    assert certify(lab) == [COUNT * EACH]
    table = lab.lake.table(lab.stream)
    proof = prove(table.snapshot(), table.store)
    assert all(one.ours and one.crc32c is not None for one in proof.files.values())
    forget_proofs()
    assert certify(lab) == [COUNT * EACH]


def test_a_file_with_rows_that_is_said_to_be_empty_is_named(lab: TierLab) -> None:
    """Only Spark would read it."""
    path = newest(lab)
    (add,) = (one["add"] for one in map(json.loads, path.read_text().splitlines()) if "add" in one)
    root: Path = lab.table.store.config.root
    copy = f"{add['path']}-again.parquet"
    (root / copy).write_bytes((root / add["path"]).read_bytes())
    stats = {"numRecords": 0}
    lie = {**add, "path": copy, "stats": json.dumps(stats), "dataChange": False}
    again = {**add, "dataChange": False, "path": f"{copy}-2.parquet"}
    (root / again["path"]).write_bytes((root / add["path"]).read_bytes())
    gone = {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}
    (path.parent / f"{int(path.stem) + 1:020}.json").write_text(
        "\n".join(json.dumps(one) for one in ({"add": again}, {"add": lie}, {"remove": gone}))
    )
    with pytest.raises(TableMismatchError, match="number of rows is 0"):
        certify(lab)


def test_true_statistics_of_other_columns_are_accepted_and_kept(lab: TierLab) -> None:
    """The commit's statistics are in the stored proof, before and after they are proved."""
    optimized(lab, true_epochs)
    table = lab.lake.table(lab.stream)
    before = prove(table.snapshot(), table.store)
    assert [one.ours for one in before.files.values()] == [False]
    assert decode(encode(before), "k") == before
    assert certify(lab) == [COUNT * EACH]
    after = prove(table.snapshot(), table.store)
    assert [one.ours for one in after.files.values()] == [True]
    assert decode(encode(after), "k") == after
    forget_proofs()
    assert certify(lab) == [COUNT * EACH]


def test_an_optimize_that_collects_no_statistics_is_no_change(lab: TierLab) -> None:
    """Counts and bounds are read from the rows, which are compared with the ledger."""
    nothing = ColumnProperties(statistics_enabled="NONE")
    DeltaTable(lab.table.uri).optimize.compact(
        writer_properties=WriterProperties(default_column_properties=nothing)
    )
    assert certify(lab) == [COUNT * EACH]
    lab.source.fill(1, EACH)
    lab.ship_all()
    assert certify(lab) == [(COUNT + 1) * EACH]
    DeltaTable(lab.table.uri).optimize.compact()
    assert certify(lab) == [(COUNT + 1) * EACH]
    forget_proofs()
    assert certify(lab) == [(COUNT + 1) * EACH]


def test_a_file_that_is_added_and_removed_at_once_is_named(lab: TierLab) -> None:
    """Delta-rs lists it, Spark does not."""
    restated(lab, lambda add, stats: None)
    assert certify(lab) == [COUNT * EACH]
    path = newest(lab)
    add = json.loads(path.read_text().splitlines()[1])["add"]
    gone = {"remove": {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}}
    path.write_text(f"{path.read_text()}{json.dumps(gone)}\n")
    forget_proofs()
    with pytest.raises(TableMismatchError, match="adds and removes"):
        certify(lab)
