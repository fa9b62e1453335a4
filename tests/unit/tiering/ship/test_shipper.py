"""One partition's shipper against a store that misbehaves, rivals, and damaged logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import (
    BatchCorruptError,
    CorruptDataError,
    GapError,
    ObjectCorruptError,
    RemoteTierUnavailableError,
)
from broker.model.offsets import Offset
from simkit.tier.faulty_store import Fault
from simkit.tier.lab import TierLab, read_table
from tiering.config import TieringConfig
from tiering.read.verify import verify_table
from tiering.ship import lifecycle as tier
from tiering.ship.shipper import PartitionShipper
from tiering.table.ledger import Ledger, ledger_key

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A lake with a stream of 60 records in three segments."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(3, 20)
    return lab


def require_exact(lab: TierLab, end: int = 60) -> None:
    """Table, ledger and recorded cold end agree, and the rows are the log's."""
    snapshot = lab.table.snapshot()
    assert snapshot.cold_end(0) == end == lab.source.cold_end
    assert read_table(lab.table, 0).equals(lab.source.truth(0, end))
    verify_table(snapshot, lab.table.store)


def run_up_to(shipper: PartitionShipper, last: type) -> tier.Effect:
    """Perform effects until one of a type is next; return that one, not performed."""
    effect = shipper.machine.step(tier.Woken())
    while not isinstance(effect, last):
        effect = shipper.machine.step(shipper.perform(effect))
    return effect


def go_on(shipper: PartitionShipper, effect: tier.Effect) -> None:
    """Resume a paused shipper, to the end of its backlog."""
    while not isinstance(effect, tier.Rest):
        effect = shipper.machine.step(shipper.perform(effect))


@pytest.mark.parametrize("operation", ["put", "get", "head", "list"])
@pytest.mark.parametrize("fault", list(Fault))
def test_any_single_fault_ends_exact(lab: TierLab, operation: str, fault: Fault) -> None:
    """One fault at every call of every kind: a typed error, and the next cycles heal it."""
    # A store that drops a small object it acknowledged is found by `verify`, not by the uploader.
    for skip in range(0, 4, 2 if fault is Fault.HIDDEN else 1):
        other = TierLab(lab.lake.config.root / f"{skip}")
        other.source.fill(2, 20)
        other.store.faults[operation].extend([*[None] * skip, fault])
        shipper = other.shipper()
        errors = 0
        while other.source.cold_end < 40:
            try:
                shipper.run_cycle()
            except (RemoteTierUnavailableError, CorruptDataError):
                errors += 1
            assert errors < 4, "shipping does not recover"
            other.store.apply_late()
        other.store.faults.clear()
        require_exact(other, 40)


def test_a_late_put_changes_nothing(lab: TierLab) -> None:
    """A PUT that timed out and is applied afterwards leaves an object that no table names."""
    lab.store.faults["put"].append(Fault.LATE)
    shipper = lab.shipper()
    with pytest.raises(RemoteTierUnavailableError):
        shipper.run_cycle()
    lab.ship_all(shipper)
    assert len(lab.store.late) == 1
    lab.store.apply_late()
    require_exact(lab)
    objects = list(lab.table.store.list("partition=0/"))
    assert len(objects) == 4
    assert len(lab.table.snapshot().files) == 3


def test_an_object_damaged_in_the_store_is_never_committed(lab: TierLab) -> None:
    """The object is read back: a wrong bit or a lost object is an error before the commit."""
    for fault in (Fault.FLIPPED, Fault.TRUNCATED):
        lab.store.faults["get"].append(fault)
        with pytest.raises(ObjectCorruptError):
            lab.shipper().run_cycle()
        assert lab.table.find() is None
    lab.store.faults["put"].append(Fault.HIDDEN)
    with pytest.raises(CorruptDataError):
        lab.shipper().run_cycle()
    assert lab.table.find() is None
    lab.ship_all()
    require_exact(lab)


def test_an_object_that_is_deleted_before_its_commit_is_put_again(lab: TierLab) -> None:
    """A VACUUM without retention by other software takes an object that no version has yet.

    The local log would be freed next, so the object has to be there after the commit.
    """
    shipper = lab.shipper()
    effect = run_up_to(shipper, tier.CommitObject)
    (entry,) = list(lab.table.store.list("partition=0/"))
    root = lab.table.store.config.root
    (root / entry.key).unlink()
    go_on(shipper, effect)
    assert (root / entry.key).stat().st_size == entry.size_bytes
    lab.ship_all()
    require_exact(lab)


def test_an_object_that_is_exchanged_before_its_commit_frees_nothing(lab: TierLab) -> None:
    """The commit is there, and the cold end is not recorded."""
    shipper = lab.shipper()
    effect = run_up_to(shipper, tier.CommitObject)
    (entry,) = list(lab.table.store.list("partition=0/"))
    (lab.table.store.config.root / entry.key).write_bytes(b"something else")
    with pytest.raises(ObjectCorruptError, match="exchanged"):
        go_on(shipper, effect)
    assert lab.source.cold_end == 0
    with pytest.raises(CorruptDataError):
        lab.shipper().run_cycle()
    assert lab.source.cold_end == 0


def test_a_damaged_log_is_not_shipped(lab: TierLab) -> None:
    """A flipped bit in a local batch: nothing is uploaded (KAFKA-15401 uploaded it)."""
    lab.source.damage(25)
    shipper = lab.shipper()
    assert shipper.run_cycle()
    with pytest.raises(BatchCorruptError):
        shipper.run_cycle()
    assert lab.table.snapshot().cold_end(0) == 20
    assert len(list(lab.table.store.list("partition=0/"))) == 1


@pytest.mark.parametrize(
    "pause",
    [tier.PackSegments, tier.StoreObject, tier.CheckObject, tier.CommitObject, tier.WriteLedger,
     tier.TellColdEnd],
)  # fmt: skip
def test_a_paused_uploader_resumes_as_a_zombie(lab: TierLab, pause: type) -> None:
    """It pauses at each step while another ships everything, and then goes on without harm."""
    zombie = lab.shipper()
    effect = run_up_to(zombie, pause)
    lab.ship_all(lab.shipper())
    require_exact(lab)
    lab.source.fill(1, 20)
    go_on(zombie, effect)
    lab.ship_all(lab.shipper())
    require_exact(lab, 80)
    ends = [entry.end for entry in Ledger(lab.table.store).entries(
        0, lab.table.snapshot().ranges[0])]  # fmt: skip
    assert ends == [20, 40, 60, 80]


def test_a_repair_that_a_rival_has_done_already_is_no_alarm(lab: TierLab) -> None:
    """A rival notes its commit and ships on between our read of the ledger and our repair."""
    rival = lab.shipper()
    noting = run_up_to(rival, tier.WriteLedger)
    mine = lab.shipper()
    repairing = run_up_to(mine, tier.RepairLedger)
    go_on(rival, noting)
    assert Ledger(lab.table.store).end(0) == 60
    go_on(mine, repairing)
    require_exact(lab)


def test_a_repair_of_another_from_the_local_log_is_taken_over(lab: TierLab) -> None:
    """A rival's entry of the same rows, with another text, is proved and accepted."""
    rival = lab.shipper()
    noting = run_up_to(rival, tier.WriteLedger)
    mine = lab.shipper()
    repairing = run_up_to(mine, tier.RepairLedger)
    entry = lab.local_entry(0, 20)
    Ledger(lab.table.store).put(entry)
    go_on(mine, repairing)
    go_on(rival, noting)
    require_exact(lab)
    assert Ledger(lab.table.store).get(0, Offset(0)) == entry


def test_another_claim_about_a_committed_range_is_an_alarm(lab: TierLab) -> None:
    """An entry whose digest is not the table's stays an error, whatever wrote it."""
    rival = lab.shipper()
    noting = run_up_to(rival, tier.WriteLedger)
    Ledger(lab.table.store).put(replace(lab.local_entry(0, 20), digest="0" * 64))
    with pytest.raises(ObjectCorruptError, match="digest"):
        go_on(rival, noting)
    assert lab.source.cold_end == 0


def test_other_boundaries_of_a_rival_are_cut_around(lab: TierLab) -> None:
    """A rival ships two segments as one; ours, of one segment, is dropped; no overlap, no gap."""
    mine = lab.shipper()
    effect = run_up_to(mine, tier.CommitObject)
    size = sum(segment.size_bytes for segment in lab.source.segments()[:2])
    lab.shipper(config=TieringConfig(object_bytes_max=size)).run_cycle()
    assert lab.table.snapshot().cold_end(0) == 40
    go_on(mine, effect)
    require_exact(lab)
    assert mine.counters.conflicts_total == 1


def test_a_commit_without_ledger_is_repaired_from_the_log_of_the_table(lab: TierLab) -> None:
    """A crash as in test_crash_between_effects: the repaired entry is the same object."""
    lab.ship_all()
    key = ledger_key(0, 40)
    path = lab.table.store.config.root / key
    wanted = path.read_bytes()
    path.unlink()
    lab.shipper().run_cycle()
    assert path.read_bytes() == wanted


def test_a_commit_without_ledger_and_history_is_repaired_from_the_local_log(lab: TierLab) -> None:
    """The table's log was cleaned: the local log, not yet freed, proves the range again."""
    lab.ship_all()
    entries = Ledger(lab.table.store).entries(0, lab.table.snapshot().ranges[0])
    lab.table.checkpoint()
    root = lab.table.store.config.root
    for commit in sorted((root / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    for entry in entries[1:]:
        (root / ledger_key(0, entry.start)).unlink()
    lab.source.recorded[:] = [20]
    lab.ship_all()
    require_exact(lab)
    again = Ledger(lab.table.store).entries(0, lab.table.snapshot().ranges[0])
    assert [one.digest for one in again] == [one.digest for one in entries]


def test_what_nobody_can_prove_is_not_made_up(lab: TierLab) -> None:
    """Ledger entry, table history and local log are all gone: a typed error, no invention."""
    lab.ship_all()
    lab.source.free_local()
    root = lab.table.store.config.root
    (root / ledger_key(0, 40)).unlink()
    lab.table.checkpoint()
    for commit in sorted((root / "_delta_log").glob("*.json")):
        commit.write_text(commit.read_text().replace("headwater.commit_id", "x.commit_id"))
    with pytest.raises(GapError, match="the ledger has no entry for"):
        lab.shipper().run_cycle()


def test_the_high_watermark_is_never_crossed(lab: TierLab) -> None:
    """Sealed but uncommitted records stay local until they are committed."""
    lab.source.hold_committed_at(45)
    lab.ship_all()
    require_exact(lab, 40)
    lab.source.hold_committed_at(None)
    lab.ship_all()
    require_exact(lab)


def test_keys_are_fresh_and_name_their_range(lab: TierLab) -> None:
    """Range, epoch and a random part: a second attempt never meets the first's object."""
    lab.source.epoch = 3
    lab.ship_all()
    paths = [file.path for file in lab.table.snapshot().files]
    assert all(path.startswith("partition=0/000000000000000") for path in paths)
    assert all(path.split("-")[2] == "3" for path in paths)
    assert len({path.split("-")[3] for path in paths}) == 3


def test_nothing_to_ship_touches_nothing(lab: TierLab) -> None:
    """A trusted, idle partition costs no request; not even a table is made for an empty one."""
    shipper = lab.shipper()
    lab.ship_all(shipper)
    lab.store.calls.clear()
    for _ in range(5):
        assert not shipper.run_cycle()
    assert dict(lab.store.calls) == {}
    assert shipper.machine.cold_end == Offset(60)


def test_a_table_is_not_made_before_there_is_something_to_hold(tmp_path: Path) -> None:
    """An empty stream has no table."""
    lab = TierLab(tmp_path)
    assert not lab.shipper().run_cycle()
    assert lab.table.find() is None
