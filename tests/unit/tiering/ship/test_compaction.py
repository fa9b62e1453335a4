"""Compaction and VACUUM without Spark: rows, certificates and readers are left as they were."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.errors import (
    FilesReplacedError,
    GapError,
    InvalidRequestError,
    ObjectCorruptError,
    ObjectMissingError,
)
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from broker.model.tiering import HeldLease
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import LakeBroker
from tiering.read.certify import prove_partition
from tiering.read.verify import verify_table
from tiering.ship.compaction import Bin, only, plan_bins, rewrite
from tiering.table.delta_maintenance import (
    RETAIN_HOURS_FLOOR,
    MaintainedTable,
    hours_held,
    retention_hours,
)
from tiering.table.table import DataFile, TableSnapshot

HOUR_US = 3_600_000_000
NOW_US = 1_800_000_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    """A stream ``s`` with 60 records in six small files of partition 0, ten in one of 1."""
    made = LakeBroker(str(tmp_path / "lake"))
    made.streams.create("s", StreamConfig(subject="s", partitions=2))
    publish(made, 0, 60)
    publish(made, 0, 10, partition=1)
    made.ship("s", 0, Offset(30), files=3)
    made.ship("s", 0, Offset(60), files=3)
    made.ship("s", 1, Offset(10))
    yield made
    made.close()


def publish(broker: LakeBroker, start: int, count: int, partition: int = 0) -> None:
    """Append numbered records, ten to a batch, and wait for them."""
    from broker.codec.record_batch import prepare

    handle = broker.partitions.handle("s", partition)
    for first in range(start, start + count, 10):
        batch = prepare(numbered(first, 10), now_us=broker.clock.now_us())
        handle.submit([batch], lambda _: None)
        handle.wait_committed(Offset(first + 9), 10_000)


def compact(broker: LakeBroker, snapshot: TableSnapshot | None = None) -> int:
    """Rewrite every planned bin, in one commit."""
    table = broker.table("s")
    snapshot = snapshot or table.snapshot()
    bins = plan_bins(snapshot)
    written = [rewrite(only(snapshot, one), table.store, one, modified_us=NOW_US) for one in bins]
    return table.replace_files(
        snapshot,
        removed=[file for one in bins for file in one.files],
        added=written,
        moves={},
        data_change=False,
        commit_id=uuid.uuid4().hex,
    )


def a_file(start: int, end: int, size: int = 10, partition: int = 0) -> DataFile:
    """Return a file of ``[start, end)``."""
    return DataFile(
        path=f"partition={partition}/{start}-{end}.parquet",
        size_bytes=size,
        partition=partition,
        records_count=end - start,
        min_offset=Offset(start),
        max_offset=Offset(end - 1),
    )


def planned(*files: DataFile, target: int = 100) -> list[tuple[int, int, int]]:
    """Plan over files of partition 0; return (start, end, files) of each bin."""
    snapshot = TableSnapshot(
        uri="file:///t",
        version=1,
        stream_uuid=StreamUuid("01234567-89ab-4def-8123-456789abcdef"),
        cluster="c",
        properties={},
        files=files,
        ranges={0: OffsetRange(Offset(0), Offset(1000))},
    )
    return [
        (one.range.start, one.range.end, len(one.files))
        for one in plan_bins(snapshot, target_bytes=target)
    ]


def test_neighbours_are_joined_up_to_the_target() -> None:
    """Bins are runs of neighbours below the target; large files and lonely ones stay."""
    small = [a_file(n, n + 10, 40) for n in range(0, 50, 10)]
    assert planned(*small) == [(0, 20, 2), (20, 40, 2)]
    assert planned(a_file(0, 10, 30), a_file(10, 20, 500), a_file(20, 30), a_file(30, 40)) == [
        (20, 40, 2)
    ]
    assert planned(a_file(0, 10)) == []


def test_interleaved_files_are_joined_whatever_their_size() -> None:
    """After a foreign OPTIMIZE a range may lie in several files: one file is provable again."""
    assert planned(a_file(0, 30, 90), a_file(20, 50, 90), a_file(50, 60, 90)) == [(0, 50, 2)]


def test_compaction_changes_no_certificate(broker: LakeBroker) -> None:
    """The old version, the new one and the old one afterwards have the same certificate."""
    table = broker.table("s")
    before = table.snapshot()
    proofs = verify_table(before, table.store)

    after = table.snapshot(compact(broker))

    assert [len(one.files) for one in (before, after)] == [7, 2]
    assert after.ranges == before.ranges
    assert verify_table(after, table.store) == proofs
    assert verify_table(table.snapshot(before.version), table.store) == proofs
    prove_partition(after, 0, table.store)
    assert all(file.records_count == file.end_offset for file in after.files)


def test_shipping_goes_on_beside_compaction(broker: LakeBroker) -> None:
    """The second commit is planned anew: neither loses, and the table stays whole."""
    table = broker.table("s")
    base = table.snapshot()
    publish(broker, 60, 20)
    broker.ship("s", 0, Offset(70))

    compact(broker, base)  # planned before the file of [60, 70) came
    broker.ship("s", 0, Offset(80))

    now = table.snapshot()
    assert (now.cold_end(0), len([file for file in now.files if file.partition == 0])) == (80, 3)
    verify_table(now, table.store)


def test_an_uploader_that_looked_before_the_compaction_commits_after_it(
    broker: LakeBroker,
) -> None:
    """Its compare-and-set is on the cold end, which no compaction moves."""
    table = broker.table("s")
    base = table.snapshot()
    version = compact(broker)
    moved = {0: OffsetRange(Offset(60), Offset(60))}

    assert table.commit(base, [], moved, commit_id="late", ranges_json="[]") == version + 1


def test_of_two_compactions_one_is_told(broker: LakeBroker) -> None:
    """The second one would remove files that are gone, so it is refused and commits nothing."""
    table = broker.table("s")
    base = table.snapshot()
    version = compact(broker)

    with pytest.raises(FilesReplacedError):
        compact(broker, base)
    assert table.snapshot().version == version


@pytest.mark.parametrize("kind", ["bit", "gone", "ledger"])
def test_damage_is_not_copied_into_a_new_file(broker: LakeBroker, kind: str) -> None:
    """A flipped bit, a missing object, rows that the ledger does not know: the rewrite fails."""
    table = broker.table("s")
    snapshot = table.snapshot()
    root = table.store.config.root
    path = root / snapshot.files[1].path
    if kind == "gone":
        path.unlink()
    elif kind == "bit":
        body = bytearray(path.read_bytes())
        body[len(body) // 4] ^= 1
        path.write_bytes(body)
    else:
        entry = sorted((root / "_headwater/ledger/0").iterdir())[2]
        entry.unlink()
    expected = {"bit": ObjectCorruptError, "gone": ObjectMissingError, "ledger": GapError}

    with pytest.raises(expected[kind]):
        compact(broker)
    assert table.snapshot() == snapshot


def a_lease(age_hours: float, owner: str = "me") -> HeldLease:
    """Return a lease that was taken so long ago."""
    return HeldLease(
        lease_id=LeaseId(owner),
        owner=owner,
        taken_us=NOW_US - int(age_hours * HOUR_US),
        expires_us=NOW_US + HOUR_US,
    )


def test_a_lease_decides_how_much_is_kept() -> None:
    """The oldest lease wins over the floor; less than it needs is refused with its owner's name."""
    old = [a_lease(1), a_lease(300, "slow")]
    assert hours_held([], now_us=NOW_US) == 0
    assert hours_held([a_lease(0)], now_us=NOW_US) == 1
    assert hours_held(old, now_us=NOW_US) == 301
    assert retention_hours(None, [a_lease(1)], now_us=NOW_US) == RETAIN_HOURS_FLOOR
    assert retention_hours(None, old, now_us=NOW_US) == 301
    assert retention_hours(0, [], now_us=NOW_US) == 0
    assert retention_hours(400, old, now_us=NOW_US) == 400
    with pytest.raises(InvalidRequestError, match="slow"):
        retention_hours(200, old, now_us=NOW_US)
    with pytest.raises(InvalidRequestError):
        retention_hours(-1, [], now_us=NOW_US)


def test_a_lease_of_unknown_age_keeps_everything() -> None:
    """A lease from a state that did not know the time counts as taken at the beginning of time."""
    unknown = HeldLease(lease_id=LeaseId("l"), owner="o", taken_us=0, expires_us=NOW_US)
    assert hours_held([unknown], now_us=NOW_US) > 400_000


def test_vacuum_deletes_what_was_replaced_and_nothing_else(broker: LakeBroker) -> None:
    """Replaced files go by the time of their replacement, strays by their age, the ledger never."""
    compact(broker)
    table = broker.table("s")
    root = table.store.config.root
    ledger = sorted(path.name for path in (root / "_headwater/ledger/0").iterdir())
    fresh, stale = (root / f"partition=0/{name}.parquet" for name in ("fresh", "stale"))
    for path, age_s in ((fresh, 60), (stale, 30 * 24 * 3600)):
        path.write_bytes(b"stored, never committed")
        os.utime(path, (time.time() - age_s,) * 2)
    kept = MaintainedTable(table.store)

    would = kept.vacuum(retain_hours=RETAIN_HOURS_FLOOR, dry_run=True)
    assert would.paths == ("partition=0/stale.parquet",)
    assert stale.exists()
    assert kept.vacuum(retain_hours=0, dry_run=True).orphans is False
    gone = kept.vacuum(retain_hours=0, dry_run=False)

    assert len(gone.paths) == 6
    assert fresh.exists(), "an upload under way is younger than any retention that takes strays"
    assert stale.exists(), "strays are not looked for when so little is kept"
    kept.vacuum(retain_hours=RETAIN_HOURS_FLOOR, dry_run=False)
    assert fresh.exists()
    assert not stale.exists()
    assert sorted(path.name for path in (root / "_headwater/ledger/0").iterdir()) == ledger
    verify_table(table.snapshot(), table.store)
    publish(broker, 60, 10)
    broker.ship("s", 0, Offset(70))


def test_any_delta_table_can_be_joined(tmp_path: Path) -> None:
    """A job's table: fewer files, the same rows, its transactions kept."""
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    from tiering.read.lake import Lake

    path = tmp_path / "t"
    for number in range(4):
        write_deltalake(
            path,
            pa.table({"n": [number]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("app", number)]),
        )
    store = Lake.open(path).store

    done: dict[str, Any] = MaintainedTable(store).optimize(target_bytes=1 << 27)

    assert (done["numFilesRemoved"], done["numFilesAdded"]) == (4, 1)
    now = DeltaTable(path)
    assert sorted(now.to_pyarrow_table().column("n").to_pylist()) == [0, 1, 2, 3]
    assert now.transaction_version("app") == 3
    with pytest.raises(ObjectMissingError):
        MaintainedTable(Lake.open(tmp_path / "none").store).version()


def test_a_bin_knows_its_size() -> None:
    """The sum of its files."""
    files = (a_file(0, 5, 3), a_file(5, 9, 4))
    assert Bin(partition=0, range=OffsetRange(Offset(0), Offset(9)), files=files).size_bytes == 7
