"""Objects of expired ranges are deleted when no version needs them that may be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ExpiredError
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from simkit.tier.lab import TickingClock, TierLab, certify, forget_proofs, read_table
from tiering.ship.compaction import plan_bins, rewrite
from tiering.ship.expired_objects import deletable_end
from tiering.ship.shipper import PartitionShipper
from tiering.table.expiries import ExpiryEntry

GRACE_MS = 1_000_000


def a_lab(root: Path) -> TierLab:
    """Return a lab whose table has four files, of which two expired."""
    lab = TierLab(root)
    lab.source.fill(4, 20)
    lab.ship_all()
    lab.source.starts.config = StreamConfig(
        subject="orders", remote_retention_records=40, remote_delete_grace_ms=GRACE_MS
    )
    lab.ship_all()
    assert lab.table.snapshot().ranges[0].start == 40
    return lab


def later(lab: TierLab, ms: int) -> PartitionShipper:
    """Return a shipper of a process whose clock is so much later."""
    shipper = lab.shipper()
    assert shipper.expirer is not None
    shipper.expirer._clock = clock = TickingClock()
    clock._ms += ms
    return shipper


def objects(lab: TierLab) -> list[str]:
    """Return the names of the objects that are stored, in order."""
    return sorted(one.key for one in lab.table.store.list("partition=0/"))


def starts(lab: TierLab) -> list[int]:
    """Return the first offset in the name of each stored object."""
    return [int(one.rpartition("/")[2][:20]) for one in objects(lab)]


def test_objects_outlive_their_expiry_by_the_grace(tmp_path: Path) -> None:
    """Before, a plain reader of an old version has them; after, they are gone, and no other is."""
    lab = a_lab(tmp_path)
    before = lab.table.snapshot(lab.table.snapshot().version - 1)
    lab.ship_all(later(lab, GRACE_MS // 2))
    assert starts(lab) == [0, 20, 40, 60]
    assert certify(lab, before.version) == [80]
    shipper = later(lab, GRACE_MS + 1_000)
    lab.ship_all(shipper)
    assert starts(lab) == [40, 60]
    assert shipper.expirer is not None
    assert shipper.expirer.counters.deleted_total == 2
    forget_proofs()
    assert certify(lab) == [40]
    assert read_table(lab.table, 0).equals(lab.source.truth(40))
    with pytest.raises(ExpiredError, match="have expired"):
        certify(lab, before.version)


def test_a_live_lease_keeps_what_its_version_had(tmp_path: Path) -> None:
    """A cut names a version from after its lease was taken: so a younger lease keeps nothing."""
    lab = a_lab(tmp_path)
    lab.source.starts.lease_us = 1
    lab.ship_all(later(lab, 10 * GRACE_MS))
    assert starts(lab) == [0, 20, 40, 60]
    lab.source.starts.lease_us = TickingClock().now_us() + 9 * GRACE_MS * 1000
    lab.ship_all(later(lab, 10 * GRACE_MS))
    assert starts(lab) == [40, 60]


def test_orphans_below_the_start_go_too_and_nothing_else_does(tmp_path: Path) -> None:
    """What was replaced by compaction goes as well; foreign names are left to VACUUM."""
    lab = a_lab(tmp_path)
    folder = tmp_path / "default/orders/partition=0"
    orphan = f"{5:020}-{15:020}-1-abcdef.parquet"
    across, above = f"{30:020}-{50:020}-1-ab.parquet", f"{60:020}-{70:020}-1-ab.parquet"
    kept = [across, above, "part-00000-x.parquet", f"{0:020}-notes.txt"]
    for name in (orphan, *kept):
        (folder / name).write_bytes(b"x")
    lab.ship_all(later(lab, 2 * GRACE_MS))
    assert not (folder / orphan).exists()
    assert all((folder / name).exists() for name in kept)


def test_a_joined_file_that_is_listed_stays_and_its_parts_go(tmp_path: Path) -> None:
    """The newest version decides what is referenced."""
    lab = TierLab(tmp_path)
    lab.source.fill(4, 20)
    lab.ship_all()
    snapshot = lab.table.snapshot()
    first = plan_bins(snapshot, target_bytes=1 + 2 * snapshot.files[0].size_bytes)[0]
    joined = rewrite(snapshot, lab.table.store, first, modified_us=1)
    lab.table.replace_files(
        snapshot, removed=first.files, added=[joined], moves={}, data_change=False, commit_id="j"
    )
    config = StreamConfig(subject="s", remote_retention_records=60, remote_delete_grace_ms=0)
    lab.source.starts.config = config
    lab.ship_all(later(lab, 0))
    assert lab.table.snapshot().ranges[0] == OffsetRange(Offset(0), Offset(80))
    assert len(objects(lab)) == 5
    lab.source.starts.config = StreamConfig(
        subject="s", remote_retention_records=40, remote_delete_grace_ms=0
    )
    lab.ship_all(later(lab, 0))
    assert starts(lab) == [40, 60]


def test_the_oldest_young_expiry_ends_the_range() -> None:
    """Expiries are in order; one that is young or held keeps itself and what follows."""

    def entry(start: int, expired_us: int) -> ExpiryEntry:
        return ExpiryEntry(
            partition=0, start=Offset(start), end=Offset(start + 10), cold_end=Offset(99),
            paths=("p",), size_bytes=1, expired_us=expired_us, lineage_id="", commit_id="c",
        )  # fmt: skip

    entries = [entry(0, 0), entry(10, 2_000_000_000), entry(20, 1_000)]

    def end(grace_us: int, now_us: int, lease_us: int | None = None) -> int:
        return deletable_end(entries, grace_us=grace_us, now_us=now_us, lease_us=lease_us)

    assert end(100, 99) == 0
    assert end(100, 100) == 10
    assert end(100, 2_000_000_099) == 10
    assert end(100, 2_000_000_100) == 30
    assert end(0, 3_000_000_000, lease_us=0) == 0
    assert end(0, 3_000_000_000, lease_us=600_000_000) == 0
    assert end(0, 3_000_000_000, lease_us=600_000_001) == 10
    assert end(0, 9_000_000_000, lease_us=2_600_000_001) == 30
